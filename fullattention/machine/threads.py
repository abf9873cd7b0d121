"""How many threads the libraries use."""

from __future__ import annotations

import sys

import threadpoolctl


def set_threads(count: int) -> None:
    """Let every library that is loaded by now use this many threads, until the process ends.

    Raises:
        ValueError: the count is not positive.
    """
    if count < 1:
        raise ValueError(f"threads is {count}: at least 1")
    threadpoolctl.threadpool_limits(limits=count)
    if "torch" in sys.modules:  # importing it here would cost seconds where nothing uses it
        sys.modules["torch"].set_num_threads(count)
    if "numba" in sys.modules:
        numba = sys.modules["numba"]
        numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
