"""Which random bits drop a weight, and what weights that are kept are multiplied by."""

from __future__ import annotations


def threshold(dropout: float) -> int:
    """A weight is dropped if 32 random bits, read as a number, lie below it."""
    return round(dropout * 2**32)


def kept_factor(dropout: float) -> float:
    """The factor on weights that are not dropped; 0 where all are."""
    return 1.0 / (1.0 - dropout) if dropout < 1.0 else 0.0
