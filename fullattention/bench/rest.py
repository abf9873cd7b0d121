"""Threads that wait by spinning, and the end of that: a turn must not burden the next one's."""

from __future__ import annotations

import time
from collections.abc import Callable

GLANCE = 1e-3
"""Seconds between two looks at what the process uses."""

IDLE = 0.1
"""Cores that a process at rest uses at most: looking takes some itself."""

PATIENCE = 0.25
"""Seconds; Intel's OpenMP spins for 0.2."""


def come_to_rest(
    clock: Callable[[], float] = time.perf_counter,
    used: Callable[[], float] = time.process_time,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until no thread of this process computes; whether that came within `PATIENCE`.

    The threads of BLAS and OpenMP libraries spin for a while after a call, in case another one
    follows: OpenBLAS's for about 20 ms, as long as a turn. They would take the cores that the next
    turn, which is another process's, is to have.
    """
    end = clock() + PATIENCE
    while clock() < end:
        before, cpu = clock(), used()
        sleep(GLANCE)
        if used() - cpu < IDLE * (clock() - before):
            return True
    return False
