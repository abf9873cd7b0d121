"""Threads that wait by spinning, and the end of that: a turn must not burden the next one's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

TASKS = Path("/proc/self/task")
"""Where Linux tells of each thread of this process what it does."""

GLANCE = 1e-3
"""Seconds between two looks."""

PATIENCE = 0.25
"""Seconds; Intel's OpenMP spins for 0.2."""


def come_to_rest(
    tasks: Path = TASKS,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until no other thread of this process runs; whether that came within `PATIENCE`.

    The threads of BLAS and OpenMP libraries spin for a while after a call, in case another one
    follows: OpenBLAS's for about 20 ms, as long as a turn. They would take the cores that the next
    turn, which is another process's, is to have. Their CPU time does not tell it: the system
    renews that of a running thread by ticks, of up to 10 ms. Where no states are told, nothing is
    waited for.
    """
    end = clock() + PATIENCE
    while _others_run(tasks):
        if clock() >= end:
            return False
        sleep(GLANCE)
    return True


def _others_run(tasks: Path) -> bool:
    own = str(threading.get_native_id())
    return any(_state(task) == "R" for task in tasks.glob("*") if task.name != own)


def _state(task: Path) -> str:
    """The letter for what a thread does: R where it runs or could; none where it has ended."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
