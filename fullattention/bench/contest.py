"""A contest: backends take turns in random order, block by block, until it is settled who is best.

Each backend has several processes, and in a block each of them takes one turn. Pure logic: what a
turn is, and what time it is, are given.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fullattention.bench.ratio import INTERIM, Ratio, Spread, ratio_of, spread_of

TakeTurn = Callable[[], float]
"""Seconds per call of one turn, more than 0.

Raises:
    LeftError: the backend cannot go on.
"""


class LeftError(Exception):
    """A backend has left the contest."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """When to look, and when to stop."""

    budget: float
    """Seconds after which no block is begun, once there are `fewest_blocks`."""
    fewest_blocks: int = 4
    """Before the first look, and before the budget ends a contest: fewer have no interval."""
    enough_blocks: int = 8
    """Before a contest ends because it is settled: a figure of fewer turns is a poor one."""
    growth: float = 1.2
    """Factor by which the blocks grow from one look to the next: each look is one more chance to be
    wrong."""


@dataclass
class Blocks:
    """The turns that were taken: a row for each block, seconds per call by name and process."""

    rows: list[dict[str, list[float]]] = field(default_factory=list)

    def times(self, name: str) -> np.ndarray:
        """A backend's own turns: (blocks, processes)."""
        return np.array([row[name] for row in self.rows if name in row])

    def ratio(self, name: str, against: str) -> Ratio:
        """One backend's time over another's, in the blocks where both took their turns.

        Raises:
            ValueError: they have no block in common.
        """
        both = [(row[name], row[against]) for row in self.rows if name in row and against in row]
        if not both:
            raise ValueError(f"{name} and {against} took no turn in the same block")
        times, others = (np.array(column) for column in zip(*both, strict=True))
        return ratio_of(times, others, self.spread())

    def spread(self) -> Spread:
        """How much the processes of one backend differ, by all backends of two blocks or more."""
        taken = Counter(name for row in self.rows for name in row)
        return spread_of([self.times(name) for name, blocks in taken.items() if blocks > 1])

    def best(self, among: Iterable[str]) -> str:
        """The fastest of those backends that stayed the longest, by the blocks they share."""
        turns = {name: sum(name in row for row in self.rows) for name in among}
        longest = [name for name in turns if turns[name] == max(turns.values())]
        rows = [row for row in self.rows if all(name in row for name in longest)]
        return min(longest, key=lambda name: sum(math.log(t) for row in rows for t in row[name]))


def contest(
    turns: Mapping[str, Sequence[TakeTurn]],
    rules: Rules,
    order: random.Random,
    clock: Callable[[], float],
) -> Blocks:
    """Let backends take turns until the best is settled or the time is over.

    A backend that is surely slower than the best takes no more turns, but keeps those it took; one
    that leaves is out. The others race on until each is known to be slower than the best or tied
    with it.

    Args:
        turns: for each backend, what takes a turn in each of its processes; as many for each.
        rules: when to look, and when to stop.
        order: draws the order of the turns.
        clock: in seconds.
    """
    blocks = Blocks()
    racing = list(turns)
    end = clock() + rules.budget
    next_look = rules.fewest_blocks
    while racing:
        row = _block({name: turns[name] for name in racing}, order)
        racing = list(row)
        blocks.rows.append(row)
        count = len(blocks.rows)
        settled = False
        if racing and count >= next_look:
            racing, settled = _look(blocks, racing)
            next_look = max(rules.enough_blocks, math.ceil(count * rules.growth))
        if settled and count >= rules.enough_blocks:
            break
        if count >= rules.fewest_blocks and clock() >= end:
            break
    return blocks


def _block(turns: Mapping[str, Sequence[TakeTurn]], order: random.Random) -> dict[str, list[float]]:
    """One turn of each process; a backend that leaves has none.

    The backends alternate, each time by another of their processes: turns that are compared lie
    close together.
    """
    row = {name: [math.nan] * len(processes) for name, processes in turns.items()}
    waiting = {name: order.sample(range(len(times)), len(times)) for name, times in row.items()}
    for _ in range(max(map(len, turns.values()))):
        for name in order.sample(list(row), len(row)):
            process = waiting[name].pop()
            try:
                row[name][process] = turns[name][process]()
            except LeftError:
                del row[name]
    return row


def _look(blocks: Blocks, racing: Sequence[str]) -> tuple[list[str], bool]:
    """Who races on, and whether everything is settled."""
    best = blocks.best(racing)
    verdicts = {n: blocks.ratio(n, best).verdict(INTERIM) for n in racing if n != best}
    left = [name for name in racing if verdicts.get(name) != "slower"]
    return left, "not settled" not in verdicts.values()
