"""What the machine was like during a contest, and what makes a timing void."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from fullattention.machine import hardware
from fullattention.records import Timing
from fullattention.units import counted

TAKEN = 0.5
"""If others took more than this share of the cores that a backend was told to use, its time is
void."""

EXCESS = 0.5
"""If a backend kept so many more cores busy than it was told to use, its time is void."""

ADDITIONS, TRIES = 2**16, 20
"""Additions that are timed, and how often: the fastest try tells the clock of a core. That takes
some milliseconds in all."""


@dataclass(frozen=True)
class Conditions:
    """What held during a contest; each None where the system does not tell."""

    throttlings: int | None
    """How often cores were held back."""
    clock_drift: float | None
    """Share by which a core took longer at the end for the same work; negative: less."""
    gpu_others: int | None
    """Other processes on the GPUs at the end."""


class Watch:
    """Compares the machine as it is when `conditions` is asked for with what it was before."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.throttlings = hardware.throttlings()
        self.pace = pace()

    def conditions(self) -> Conditions:
        """What held since the watch began."""
        throttlings = self.throttlings
        if throttlings is not None:
            throttlings = (hardware.throttlings() or 0) - throttlings
        return Conditions(
            throttlings=throttlings,
            clock_drift=pace() / self.pace - 1 if self.pace else None,
            gpu_others=None if self.device == "cpu" else hardware.others_on_gpus(),
        )


def pace() -> float:
    """CPU seconds that a fixed piece of work takes at best, however busy other processes are."""

    def once() -> float:
        start = time.thread_time()
        sum(range(ADDITIONS))
        return time.thread_time() - start

    return min(once() for _ in range(TRIES))


def by_chance(turns: int, cores: int) -> float:
    """CPU seconds that others may seem to have used in so many turns, by chance alone.

    Three standard deviations of the sum. A turn's figure comes from a counter of each core and two
    of the process. Each is read twice, and each reading is off by some part of a tick.
    """
    return 3 * hardware.TICK * math.sqrt(turns * (cores + 2) / 6)


def void_reason(timing: Timing) -> str:
    """Why a time tells nothing of what it is recorded for; empty where it does."""
    threads = timing.environment.threads
    if timing.own_load is not None and timing.own_load > threads + EXCESS:
        return f"it kept {timing.own_load:.1f} cores busy, and was told to use {threads}"
    return crowded_out(timing)


def crowded_out(timing: Timing) -> str:
    """Why a time is void, where others took too much of the backend's cores; else empty."""
    threads = timing.environment.threads
    if timing.crowding <= TAKEN * threads:
        return ""
    cores = f"{timing.crowding:.1f} of the {counted(threads, 'core')}"
    return f"other processes took {cores} it was told to use: run again on a quieter machine"
