"""Blocks of threads in Numba's CUDA simulator, which sleep while they have nothing to do.

The simulator itself asks each thread again and again whether it has come to a barrier or ended, and
what asks takes turns with what works: most of the time goes there. Here threads tell.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numba.cuda.simulator.kernel import BlockManager, BlockThread

_made, _worked = BlockThread.__init__, BlockThread.run


class _Release(threading.Event):
    """What a thread waits for at a barrier, once it has told its block that it is there."""

    def __init__(self, changes: threading.Semaphore) -> None:
        super().__init__()
        self._changes = changes

    def wait(self, timeout: float | None = None) -> bool:
        self._changes.release()
        return super().wait(timeout)


def _make(thread: Any, function: Any, block: Any, *place: Any) -> None:
    _made(thread, function, block, *place)
    thread.syncthreads_event = _Release(block.changes)
    thread.ended = False


def _work(thread: Any) -> None:
    _worked(thread)
    thread.ended = True
    thread._manager.changes.release()  # noqa: SLF001 - the simulator's name of its block


def _run(block: Any, place: Any, *arguments: Any) -> None:
    """Run all threads of a block to their ends, or until one of them raises."""
    block.changes = threading.Semaphore(0)
    threads = [
        BlockThread(lambda: block._f(*arguments), block, place, index, block._debug)  # noqa: SLF001
        for index in np.ndindex(*block._block_dim)  # noqa: SLF001
    ]
    for thread in threads:
        thread.start()
    while threads:
        block.changes.acquire()
        _raise_what_was_raised(threads)
        threads = [thread for thread in threads if not thread.ended]
        if all(thread.syncthreads_blocked for thread in threads):
            for thread in threads:
                thread.syncthreads_blocked = False
                thread.syncthreads_event.set()


def _raise_what_was_raised(threads: list[Any]) -> None:
    """Raise what one of the threads did, and end those that wait or come to a barrier."""
    raised = next((thread.exception for thread in threads if thread.exception), None)
    if raised is None:
        return
    for thread in threads:
        thread.abort = True
        thread.syncthreads_event.set()
    error, trace = raised
    raise error.with_traceback(trace)


def let_threads_tell() -> None:
    """From now on the simulator runs blocks so."""
    BlockThread.__init__, BlockThread.run, BlockManager.run = _make, _work, _run
