"""Fixtures that several files of tests use."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from unittest import mock

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What whoever runs the tests has measured decides none of them, nor is it added to.

    On Linux: elsewhere the folder of a user's data is fixed.
    """
    data = {"XDG_DATA_HOME": str(tmp_path_factory.mktemp("data"))}
    with mock.patch.dict(os.environ, data):
        yield


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Thousands of small calls: threads that wait for each other would take most of the time."""
    import threadpoolctl
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpoolctl.threadpool_limits(1):
        yield
    torch.set_num_threads(before)


@contextlib.contextmanager
def threads_as_before() -> Iterator[None]:
    """Whatever the number of threads is set to meanwhile, it is set back."""
    import threadpoolctl

    from fullattention.machine import threads

    loaded = [sys.modules[name] for name in ("torch", "numba") if name in sys.modules]
    counts = [library.get_num_threads() for library in loaded]
    told, variables = mock.patch.object(threads, "_told", None), mock.patch.dict(os.environ)
    try:
        with threadpoolctl.threadpool_limits(), told, variables:
            yield
    finally:
        for library, count in zip(loaded, counts, strict=True):
            library.set_num_threads(count)


@pytest.fixture
def threads_restored() -> Iterator[None]:
    """Whatever a test sets the number of threads to ends with it."""
    with threads_as_before():
        yield
