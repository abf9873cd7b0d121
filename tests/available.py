"""The backends that run here, as parameters of tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from fullattention import UnavailableError, load
from fullattention.backends import Backend

TORCHS_OWN = (
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
)
"""Warnings that torch.compile's own code causes."""


def found(name: str) -> Backend | None:
    """A backend, if it runs here."""
    try:
        return load(name)
    except UnavailableError:
        return None


def each(names: Iterable[str]) -> list[Any]:
    """Each name as a parameter; what compiles for seconds is tried where there are minutes."""
    return [pytest.param(name, marks=_marks(found(name))) for name in names]


def _marks(backend: Backend | None) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.proof, *TORCHS_OWN) if backend and backend.compiles else ()
