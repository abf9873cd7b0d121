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
from fullattention.version import __version__

__all__ = [
    "Arrays",
    "Backend",
    "FullAttention",
    "InvalidInputError",
    "Precision",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "load",
    "names",
]
