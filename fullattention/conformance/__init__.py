"""The conformance suite: the contract's checks, the float64 oracle, the bound, the verdict."""

from fullattention.conformance.suite import check, check_isolated

__all__ = ["check", "check_isolated"]
