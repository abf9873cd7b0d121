"""Numba's CUDA simulator, made fit for kernels with barriers and several shared arrays.

It runs each thread of a block as a thread of Python. It is told to do so by the environment, before
Numba is imported: NUMBA_ENABLE_CUDASIM=1.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from numba.core import config

SIMULATED = bool(config.ENABLE_CUDASIM)
"""Whether kernels run in the simulator, which has no compiler to instruct."""

_one_at_a_time = threading.Lock()


class _Allocations(dict[Any, Any]):
    """Shared arrays by their line of source.

    The simulator looks an array up and makes it if there is none. Two threads that do so at once
    would get one each; here the second waits until the first has made it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def get(self, key: Any, default: Any = None) -> Any:
        """The array; without one, the caller is expected to set it next."""
        self._lock.acquire()
        if key in self:
            self._lock.release()
        return super().get(key, default)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Let the next one look."""
        super().__setitem__(key, value)
        self._lock.release()


if SIMULATED:
    from numba.cuda.simulator.kernelapi import FakeCUDAShared

    from fullattention.backends.numba_cuda_kernels.blocks import let_threads_tell

    let_threads_tell()
    _make = FakeCUDAShared.__init__

    def _make_safely(self: Any, size: int) -> None:
        _make(self, size)
        self._allocations = _Allocations()

    FakeCUDAShared.__init__ = _make_safely


@contextlib.contextmanager
def simulating() -> Iterator[None]:
    """One launch at a time, which is all the simulator can; and its many threads in quick turns."""
    with _one_at_a_time, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NaN and overflow mean nothing to a device
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)
        try:
            yield
        finally:
            sys.setswitchinterval(before)
