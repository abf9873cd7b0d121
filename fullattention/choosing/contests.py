"""What backends that took their turns in the same contest tell of each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from fullattention.records import BASELINE, Comparison, Speed, Timing

Contest = tuple[str, str]
"""The run, by its time, and the workload: that names one, among records of one kind of call."""

TIMES = ("median", "lower_quartile", "upper_quartile")
"""What a choice reads of a timing."""

OPPOSITE: Mapping[Speed, Speed] = {"faster": "slower", "slower": "faster"}


def contest(record: Timing | Comparison) -> Contest:
    """The contest that a record comes from."""
    return record.environment.time, record.workload


def in_proportion(timings: Sequence[Timing], comparisons: Iterable[Comparison]) -> list[Timing]:
    """Timings of one kind of call, those of each contest in proportion to its ratios.

    A backend that was dropped early has its median from other moments than the best one. Their
    ratio is taken in the blocks that both ran in: multiplied with the best one's median, it gives a
    time that can be compared with that.
    """
    over_best = _over_best(comparisons)
    medians = {(contest(one), one.backend): one.median for one in timings}

    def scaled(timing: Timing) -> Timing:
        one = over_best.get((contest(timing), timing.backend))
        best = medians.get((contest(timing), one.against)) if one else None
        if one is None or best is None or timing.median is None:
            return timing
        factor = best * one.ratio / timing.median
        told = {name: value for name in TIMES if (value := getattr(timing, name)) is not None}
        return dataclasses.replace(timing, **{name: factor * told[name] for name in told})

    return [scaled(timing) for timing in timings]


def _over_best(comparisons: Iterable[Comparison]) -> dict[tuple[Contest, str], Comparison]:
    """Each backend's comparison with the best of its contest."""
    comparisons = list(comparisons)
    best: dict[Contest, str] = {}
    for one in comparisons:  # all are compared with the best, and with the baseline
        if one.against != BASELINE or contest(one) not in best:
            best[contest(one)] = one.against
    return {
        (contest(one), one.backend): one for one in comparisons if one.against == best[contest(one)]
    }


def verdicts(comparisons: Iterable[Comparison]) -> dict[tuple[Contest, str, str], Speed]:
    """What each contest found of one backend against another, either way round."""
    found: dict[tuple[Contest, str, str], Speed] = {}
    for one in comparisons:
        opposite = OPPOSITE.get(one.verdict, one.verdict)
        found[contest(one), one.backend, one.against] = one.verdict
        found.setdefault((contest(one), one.against, one.backend), opposite)
    return found
