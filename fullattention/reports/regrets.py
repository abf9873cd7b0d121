"""What choosing costs on shapes that it was not told, as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fullattention.reports.blocks import Block, Lines, Table
from fullattention.units import digits

MEAN, WORST = 1.03, 1.25
"""The goals: what a choice may take of the best one's time, in geometric mean and at worst."""


def regret_blocks(
    regrets: Sequence[tuple[str, str, str, float]], machine: Sequence[str]
) -> list[Block]:
    """The mean and the worst against their goals; each shape's workload, choice, best and ratio.

    Raises:
        ValueError: there are none.
    """
    if not regrets:
        raise ValueError("too little was measured here: at least five shapes on two backends")
    logs = [math.log(ratio) for *_, ratio in regrets]
    mean, worst = math.exp(sum(logs) / len(logs)), math.exp(max(logs))
    summary = (
        f"Over {len(regrets)} shapes, the backend chosen from the other shapes takes "
        f"{digits(mean)} of the best one's time in geometric mean, {digits(worst)} at worst; it is "
        f"the best on {sum(chosen == best for _, chosen, best, _ in regrets)}."
    )
    goals = (
        f"Goals: at most {MEAN} in geometric mean, {_met(mean, MEAN)}; at most {WORST} at worst, "
        f"{_met(worst, WORST)}."
    )
    rows = [[name, chosen, best, digits(ratio)] for name, chosen, best, ratio in regrets]
    return [
        Lines([summary, goals]),
        Table(("held out", "chosen", "best", "/ best"), rows, right=("/ best",)),
        Lines(machine),
    ]


def _met(ratio: float, goal: float) -> str:
    return "met" if ratio <= goal else "missed"
