"""Figures that only a GPU tells of a call; taken once for a backend and a workload."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from fullattention.bench.cold import cold_seconds
from fullattention.bench.device import on_device
from fullattention.bench.energy import SECONDS, joules_per_call
from fullattention.bench.graph import replay_seconds
from fullattention.bench.turns import Turns
from fullattention.records import Mode

COLD_CALLS = (3, 20)
"""Fewest and most cold calls; within these limits there are as many as in a turn."""


@dataclass(frozen=True)
class GpuFigures:
    """Of one call; each is None where it cannot be had."""

    graph_seconds: float | None = None
    """By the device's clock, where the calls of a chunk are replayed as a CUDA graph."""
    cold_seconds: float | None = None
    """By the device's clock, after the L2 cache was overwritten."""
    joules: float | None = None


def gpu_figures(
    library: str, device: str, mode: Mode, turns: Turns, longest_call: float
) -> GpuFigures:
    """The GPU's figures of calls that have been warmed up.

    Only on CUDA devices, and of what torch or CuPy launches: other libraries do not tell which GPU
    is theirs, nor how to capture calls. A call of mode "host" has its energy alone: it waits for
    transfers, which cannot be captured, and its inputs come from where no cache of the GPU reaches.
    One of mode "training" is captured with its backward pass where the library can. Energy takes a
    second of calls, and is left out where a call may not last so long.

    Args:
        library: of the candidate's arrays.
        device: as the candidate names it.
        mode: of the workload.
        turns: the calls; where the device has a clock of its own, with it.
        longest_call: seconds that one call may take.
    """
    timer = turns.device_timer
    if timer is None:
        return GpuFigures()
    with on_device(library, device):
        joules = None
        if longest_call >= SECONDS:
            joules = joules_per_call(library, functools.partial(_chunk, turns), turns.clock)
        if mode == "host":
            return GpuFigures(joules=joules)
        fewest, most = COLD_CALLS
        few = max(fewest, min(turns.calls, most))
        cold = cold_seconds(library, functools.partial(turns.run, 1), few, timer)
        # Last, so that whatever a failed capture leaves behind is in no other figure.
        calls = functools.partial(turns.run, turns.per_chunk)
        chunk = replay_seconds(library, calls, turns.chunks, timer)
    return GpuFigures(None if chunk is None else chunk / turns.per_chunk, cold, joules)


def _chunk(turns: Turns) -> int:
    turns.run(turns.per_chunk)
    turns.wait()
    return turns.per_chunk
