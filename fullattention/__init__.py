"""FullAttention on many backends: conformance, benchmarks, and a choice made from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fullattention.backends import (
    Arrays,
    Backend,
    InvalidInputError,
    Precision,
    UnavailableError,
    UnsupportedError,
    load,
    names,
)
from fullattention.layer import FullAttention
from fullattention.version import __version__

if TYPE_CHECKING:
    from fullattention.choosing import choose

__all__ = [
    "Arrays",
    "Backend",
    "FullAttention",
    "InvalidInputError",
    "Precision",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "choose",
    "load",
    "names",
]


def __getattr__(name: str) -> Any:
    """Import what needs more than NumPy only when it is asked for."""
    if name == "choose":
        from fullattention.choosing import choose

        return choose
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
