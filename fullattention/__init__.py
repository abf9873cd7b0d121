"""FullAttention on many backends: conformance, benchmarks, and a choice made from them."""

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

__version__ = "0.1.0"

__all__ = [
    "Arrays",
    "Backend",
    "FullAttention",
    "InvalidInputError",
    "Precision",
    "UnavailableError",
    "UnsupportedError",
    "load",
    "names",
]
