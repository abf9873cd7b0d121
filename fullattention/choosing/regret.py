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
    newest = {(_request(timing), timing.backend): timing for timing in known.timings}
    measured = {key: one for key, one in newest.items() if one.status == "timed" and one.median}
    for request in dict.fromkeys(request for request, _ in measured):
        here = {name: one for (of, name), one in measured.items() if of == request}
        if len(here) < 2:
            continue
        others = [one for (of, _), one in measured.items() if of.shape != request.shape]
        try:
            choice = rank(request, dataclasses.replace(known, timings=others), here)
        except NothingMeasuredError:
            continue  # too few shapes of this kind were measured to choose by
        seconds = {name: one.median or 0.0 for name, one in here.items()}
        best = min(seconds, key=seconds.__getitem__)
        ratio = seconds[choice.backend] / seconds[best]
        yield Regret(here[best].workload, choice.backend, best, ratio)


def _request(timing: Timing) -> Request:
    """The call that a timing is of."""
    return Request(
        shape=Sizes(*timing.shape),
        dtype=timing.dtype,
        mask=timing.mask,
        mode=timing.mode,
        device=timing.device,
        threads=timing.environment.threads,
    )
