"""Which backend is fastest here for a call, by what was measured on this hardware."""

from fullattention.choosing.choice import NothingMeasuredError, choose
from fullattention.choosing.store import Store

__all__ = ["NothingMeasuredError", "Store", "choose"]
