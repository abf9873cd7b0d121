"""Fixtures that several files of tests use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest


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


@pytest.fixture
def threads_restored() -> Iterator[None]:
    """Whatever a test sets the number of threads to ends with it."""
    import threadpoolctl

    from fullattention.machine import threads

    told, variables = mock.patch.object(threads, "_told", None), mock.patch.dict(os.environ)
    with threadpoolctl.threadpool_limits(), told, variables:
        yield
