"""How Numba's simulator runs a block, which only a process of its own can switch on.

Run by `test_numba_simulator.py`; prints one line of JSON.
"""

from __future__ import annotations

import json
import threading
from typing import Any
from unittest import mock

import numba.cuda
import numpy as np

from fullattention.backends.numba_cuda_kernels.simulator import simulating

cuda: Any = numba.cuda  # its simulator's names are unknown to type checkers

THREADS, ROUNDS = 5, 3


def sum_in_rounds(numbers: Any, sums: Any) -> None:
    """Each round sums what all threads wrote in the one before; the first thread ends early."""
    thread = cuda.threadIdx.x
    for number in range(1, ROUNDS + 1):
        if thread == 0 and number > 1:
            return
        cuda.syncthreads()
        total = numbers[thread]
        for other in range(sums.shape[1]):
            total += sums[number - 1, other]
        sums[number, thread] = total


def fail_before_a_barrier(numbers: Any, sums: Any) -> None:
    """One thread raises where the others wait."""
    if cuda.threadIdx.x == 3:
        raise ValueError("three")
    cuda.syncthreads()


def launched(kernel: Any) -> tuple[np.ndarray, str]:
    """The sums, and what was raised."""
    sums = np.zeros((ROUNDS + 1, THREADS))
    try:
        with simulating():
            cuda.jit(kernel)[1, THREADS](np.arange(float(THREADS)), sums)
    except ValueError as error:
        return sums, str(error)
    return sums, ""


def looks() -> list[str]:
    """Threads of which it is asked whether they still run; the list grows as that is done."""
    asked: list[str] = []
    is_alive = threading.Thread.is_alive

    def noted(thread: threading.Thread) -> bool:
        asked.append(thread.name)
        return is_alive(thread)

    mock.patch.object(threading.Thread, "is_alive", noted).start()
    return asked


def left() -> int:
    """Threads that have not ended, though they had the time to."""
    others = [one for one in threading.enumerate() if one is not threading.current_thread()]
    for one in others:
        one.join(30)
    return threading.active_count() - 1


if __name__ == "__main__":
    asked = looks()
    sums = launched(sum_in_rounds)[0]
    raised = launched(fail_before_a_barrier)[1]
    found = {"sums": sums.tolist(), "raised": raised, "looks": len(asked), "left": left()}
    print(json.dumps(found))
