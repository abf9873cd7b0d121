"""How many threads the libraries use."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

_told: int | None = None


def set_threads(count: int) -> None:
    """Let every library that is loaded by now use this many threads, until the process ends.

    JAX obeys only before its first array: that makes its threads.

    Raises:
        ValueError: the count is not positive.
    """
    global _told  # noqa: PLW0603 - a setting of the process, as in the libraries
    import threadpoolctl

    if count < 1:
        raise ValueError(f"threads is {count}: at least 1")
    _told = count
    threadpoolctl.threadpool_limits(limits=count)
    if "torch" in sys.modules:  # importing it here would cost seconds where nothing uses it
        sys.modules["torch"].set_num_threads(count)
    if "numba" in sys.modules:
        numba = sys.modules["numba"]
        numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
    if "jax" in sys.modules:
        os.environ["NPROC"] = str(count)


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let NumPy's products use one thread meanwhile, so that none of them spins afterwards.

    Where threadpoolctl is not installed, the threads stay as they are.
    """
    controller = _blas()
    if controller is None:
        yield
        return
    with controller.limit(limits=1):
        yield


@functools.cache
def _blas() -> Any:
    """What limits the BLAS libraries that are loaded at its first call, as NumPy's is by then."""
    try:
        import threadpoolctl
    except ModuleNotFoundError:
        return None
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def threads_told() -> int | None:
    """What `set_threads` was last told, for libraries that are told anew for each computation.

    None: nothing, and the library decides.
    """
    return _told
