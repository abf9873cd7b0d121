"""What the choice costs where nothing of a shape was measured: each measured shape held out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fullattention.backends.interface import Sizes
from fullattention.choosing.choice import NothingMeasuredError, rank
from fullattention.choosing.known import Known
from fullattention.choosing.request import Request
from fullattention.records import Option, Timing


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

    Only the backends that were timed on the shape take part, as far as `choose` counts their
    timings, and shapes on which two or more were.
    """
    backends: dict[Request, set[str]] = {}
    for timing in known.timings:
        if timing.status == "timed":
            backends.setdefault(_request(timing), set()).add(timing.backend)
    for request, names in backends.items():
        others = [timing for timing in known.timings if tuple(timing.shape) != request.shape]
        try:
            truth = _measured(request, known, sorted(names))
            if len(truth) < 2:
                continue
            choice = rank(request, dataclasses.replace(known, timings=others), truth)
        except NothingMeasuredError:
            continue  # too few shapes of this kind were measured to choose by
        chosen, best = truth[choice.backend], next(iter(truth.values()))
        ratio = (chosen.seconds or 0.0) / (best.seconds or 1.0)
        yield Regret(best.workload, chosen.backend, best.backend, ratio)


def _measured(request: Request, known: Known, backends: Iterable[str]) -> dict[str, Option]:
    """What each backend takes for a call that was measured, the fastest first."""
    options = rank(request, known, backends).options
    return {option.backend: option for option in options if option.basis == "measured"}


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
