"""Which known mistakes, one on top of the other, give a candidate's answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fullattention.conformance.conditions import Condition, conditions
from fullattention.conformance.dialects import DIALECTS, Dialect
from fullattention.conformance.observation import Error, Observation
from fullattention.conformance.probes import Probe
from fullattention.conformance.reading import stops
from fullattention.conformance.steps import RIGHT, Steps

MOST_MISTAKES = 6
"""Mistakes that are named, at most."""

MOST_TELLING = 24
"""Wrong answers of which a mistake must explain one to be considered."""

BETTER = 0.25
"""Share of the error that an explanation may leave: less could be luck."""

MOST_PAIRS = 20
"""Pairs of mistakes that fit one answer and are tried on the others."""


@dataclass(frozen=True)
class Mistake:
    """A known mistake that explains wrong answers."""

    dialect: Dialect
    where: Condition | None = None
    """None: everywhere."""

    def within(self, steps: Steps, probe: Probe) -> Steps | None:
        """The steps with the mistake in them, where it applies; None if they exclude it."""
        if self.where is not None and not self.where.holds(probe):
            return steps
        return self.dialect.within(steps)


class Explanation:
    """What is observed, and the mistakes that explain it so far."""

    def __init__(self, observed: Sequence[Observation]) -> None:
        self.observed = observed
        self.asked = [one.probe for one in observed]
        self.mistakes: list[Mistake] = []
        self.steps: list[Steps] = []
        self.explained: set[int] = set()
        self._take([])

    @property
    def left(self) -> list[int]:
        """Which observations are not explained."""
        return [i for i in range(len(self.observed)) if i not in self.explained]

    def search(self) -> None:
        """Find as many mistakes as explain anything, and forget those that others imply."""
        while self.left and len(self.mistakes) < MOST_MISTAKES:
            found = self._next()
            if not found:
                break
            self._take([*self.mistakes, *found])
        for mistake in list(self.mistakes):
            before, all_mistakes = self.explained, self.mistakes
            self._take([other for other in self.mistakes if other is not mistake])
            if not before <= self.explained:
                self._take(all_mistakes)

    def _take(self, mistakes: list[Mistake]) -> None:
        self.mistakes = mistakes
        self.steps = [self.with_only(mistakes, i) for i in range(len(self.observed))]
        rounds = any(mistake.dialect.rounds for mistake in mistakes)
        self.explained = {
            i for i, steps in enumerate(self.steps) if _gives(self.observed[i], steps, rounds)
        }
        self._errors: dict[int, list[Error]] = {}

    def with_only(self, mistakes: Iterable[Mistake], i: int) -> Steps:
        """The steps of some mistakes, where one observation was made."""
        return _steps_with(mistakes, self.asked[i])

    def explains(self, observation: Observation) -> bool:
        """Whether the mistakes give an observation that they were not found by."""
        steps = _steps_with(self.mistakes, observation.probe)
        return _gives(observation, steps, any(m.dialect.rounds for m in self.mistakes))

    def _next(self) -> tuple[Mistake, ...]:
        """The mistake, or two at once, that explain most of what is left; empty if none does."""
        known = {dialect.text: dialect for dialect in DIALECTS}
        known |= {dialect.text: dialect for i in self.left for dialect in stops(self.observed[i])}
        return self._best([(dialect,) for dialect in known.values()]) or self._best(self._pairs())

    def _best(self, tuples: Iterable[tuple[Dialect, ...]]) -> tuple[Mistake, ...]:
        best: tuple[Mistake, ...] = ()
        most = (0, 0)
        telling = [i for i in self.left if self.observed[i].tells][:MOST_TELLING]
        for dialects in tuples:
            if not any(self._explains(dialects, i) for i in telling):
                continue
            rank, where, gains = self._worth(dialects)
            if (rank, gains) > most:
                most = (rank, gains)
                best = tuple(Mistake(dialect, where) for dialect in dialects)
        return best

    def _worth(self, dialects: tuple[Dialect, ...]) -> tuple[int, Condition | None, int]:
        """How well mistakes explain what is left, where, and how many answers.

        3: all that they concern. 2: some of that, and they spoil nothing. 1: all that they concern
        under a condition. 0: not well enough.
        """
        gains = {i for i in self.left if self._explains(dialects, i)}
        spoiled = {i for i in self.explained if not self._explains(dialects, i)}
        missed = {i for i in self.left if i not in gains and self._concerns(dialects, i)}
        if not spoiled:
            return (2 if missed else 3), None, len(gains)
        numbers = [self.asked[i] for i in gains if self.observed[i].tells]
        harmed = [self.asked[i] for i in spoiled | missed]
        usable = [
            c
            for c in conditions(self.asked)
            if any(map(c.holds, numbers)) and not any(map(c.holds, harmed))
        ]
        reach = {c.text: sum(c.holds(self.asked[i]) for i in gains) for c in usable}
        where = max(usable, key=lambda c: reach[c.text], default=None)
        return (0, None, 0) if where is None else (1, where, reach[where.text])

    def _explains(self, dialects: tuple[Dialect, ...], i: int) -> bool:
        """Whether more mistakes give an answer, and far better than it is given without them."""
        steps, one = _all_within(self.steps[i], dialects), self.observed[i]
        if steps is None:
            return False
        rounds = any(mistake.dialect.rounds for mistake in self.mistakes)
        new_rounds = any(dialect.rounds for dialect in dialects)
        if i in self.explained or not one.answered:
            return _gives(one, steps, rounds or new_rounds)
        pairs = list(zip(one.trials, self._errors_now(i), strict=True))
        if rounds and not new_rounds and all(t.is_small(before.rms) for t, before in pairs):
            return False  # what rounding leaves is for no other mistake to explain
        return all(
            trial.is_nearer(steps, BETTER * before.rms, near_is_enough=rounds or new_rounds)
            for trial, before in pairs
        )

    def _errors_now(self, i: int) -> list[Error]:
        if i not in self._errors:
            self._errors[i] = self.observed[i].errors_of(self.steps[i])
        return self._errors[i]

    def _concerns(self, dialects: tuple[Dialect, ...], i: int) -> bool:
        steps, one = _all_within(self.steps[i], dialects), self.observed[i]
        return steps is not None and one.answered and one.differs(steps, self.steps[i])

    def _pairs(self) -> Iterator[tuple[Dialect, ...]]:
        """Pairs of mistakes that together explain the first answer that is left."""
        first = next((i for i in self.left if self.observed[i].tells), None)
        if first is None:
            return
        coarse = [dialect for dialect in DIALECTS if not dialect.rounds]
        pairs = itertools.combinations(coarse, 2)
        yield from itertools.islice((p for p in pairs if self._explains(p, first)), MOST_PAIRS)

    def concerned(self, mistake: Mistake) -> tuple[list[int], list[int]]:
        """Which observations a mistake changes: those that are explained, and the others."""
        others = [other for other in self.mistakes if other is not mistake]
        changed = [
            i
            for i, one in enumerate(self.observed)
            if one.answered
            and (
                one.differs(self.steps[i], self.with_only(others, i))
                or (
                    i in self.explained and not _gives(one, self.with_only(others, i), rounds=False)
                )
            )
        ]
        return (
            [i for i in changed if i in self.explained],
            [i for i in changed if i not in self.explained],
        )


def _steps_with(mistakes: Iterable[Mistake], probe: Probe) -> Steps:
    steps = RIGHT
    for mistake in mistakes:
        steps = mistake.within(steps, probe) or steps
    return steps


def _gives(observation: Observation, steps: Steps, rounds: bool) -> bool:
    if steps is RIGHT:
        return observation.is_right
    return observation.is_near(steps) if rounds else observation.fits(steps)


def _all_within(steps: Steps, dialects: Iterable[Dialect]) -> Steps | None:
    found: Steps | None = steps
    for dialect in dialects:
        found = None if found is None else dialect.within(found)
    return found
