"""Spreads a kernel's units of work over threads.

Numba has thread pools of its own, but which one is there depends on the machine, and the one that
is always there ends the process when two threads use it at once. Here threads are Python's: kernels
release the GIL, any number of callers may share the pool, and a forked process makes itself a new
one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from fullattention.backends.numba_cpu_kernels.entry import INTEGERS

PARTS = 4
"""Parts of the work for each thread, so that one that is held up leaves its rest to the others."""

_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    """A forked process has none of its parent's threads."""
    global _pool  # noqa: PLW0603 - one pool per process
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _workers() -> ThreadPoolExecutor:
    global _pool  # noqa: PLW0603 - one pool per process
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 1) - 1))
    return _pool


class Work(NamedTuple):
    """A kernel's work on arrays of one layout, in units that any thread may do."""

    kernel: Callable[..., None]
    factors: np.ndarray
    """`Factors`, of `dtype`."""
    dtype: type[np.floating[Any]]
    """What is computed with."""
    scratch: int
    """Numbers that one thread needs."""
    units: int
    threads: int

    def run(self, call: tuple[int, ...]) -> None:
        """Do all of it, and return when it is done.

        Raises:
            MemoryError: there is no room for the scratch; the message says how much was asked.
        """
        if self.threads == 1 or self.units == 1:
            self._do(call, ((0, self.units),))
            return
        threads = min(self.threads, self.units)
        step = max(1, self.units // (PARTS * threads))
        parts = iter([(i, min(i + step, self.units)) for i in range(0, self.units, step)])
        others = [_workers().submit(self._do, call, parts) for _ in range(threads - 1)]
        try:
            self._do(call, parts)
        finally:
            # One that has not begun by now has nothing left to do.
            begun = [other for other in others if not other.cancel()]
            errors = [other.exception() for other in begun]
        for error in errors:
            if error is not None:
                raise error

    def _do(self, call: tuple[int, ...], parts: Iterable[tuple[int, int]]) -> None:
        numbers, integers = np.zeros(self.scratch + 16, self.dtype), np.empty(INTEGERS, np.int64)
        for start, stop in parts:
            self.kernel(call, self.factors, numbers, integers, start, stop)
