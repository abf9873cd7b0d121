"""What the choice costs where nothing of a shape was measured: each measured shape held out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from fullattention.backends.interface import Sizes
from fullattention.choosing.choice import Known, NothingMeasuredError, Request, rank
from fullattention.records import Timing


@dataclass(frozen=True)
class Regret:
    """One shape, chosen for by all the others."""

    workload: str
    chosen: str
    best: str
    ratio: float
    """The chosen backend's measured time over the best one's."""


def regrets(known: Known) -> Iterator[Regret]:
    """Hold out each shape in turn, choose for it, and look up what the choice takes.

    Only the backends that were timed on the shape take part, and shapes on which two or more were.
    """
    newest = {(_call(timing), timing.backend): timing for timing in known.timings}
    timed = [timing for timing in newest.values() if timing.status == "timed" and timing.median]
    calls = dict.fromkeys(_call(timing) for timing in timed)
    for call in calls:
        here = {timing.backend: timing for timing in timed if _call(timing) == call}
        if len(here) < 2:
            continue
        others = [timing for timing in timed if timing.shape != call[0]]
        try:
            choice = rank(_request(call), dataclasses.replace(known, timings=others), here)
        except NothingMeasuredError:
            continue  # too few shapes of this kind were measured to choose by
        seconds = {name: timing.median or 0.0 for name, timing in here.items()}
        best = min(seconds, key=seconds.__getitem__)
        ratio = seconds[choice.backend] / seconds[best]
        yield Regret(here[best].workload, choice.backend, best, ratio)


Call = tuple[tuple[int, ...], str, str, str, str, int]


def _call(timing: Timing) -> Call:
    return (
        tuple(timing.shape),
        timing.dtype,
        timing.mask,
        timing.mode,
        timing.device,
        timing.environment.threads,
    )


def _request(call: Call) -> Request:
    shape, dtype, mask, mode, device, threads = call
    return Request(
        shape=Sizes(*shape),
        dtype=dtype,
        mask=mask,  # type: ignore[arg-type] # as the record has it
        mode=mode,  # type: ignore[arg-type]
        device=device,
        threads=threads,
    )
