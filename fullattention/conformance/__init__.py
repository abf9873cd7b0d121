"""The conformance suite: the contract's checks, the float64 oracle, the bound, the verdict."""

from fullattention.conformance.suite import LEVELS, check

__all__ = ["LEVELS", "check"]
