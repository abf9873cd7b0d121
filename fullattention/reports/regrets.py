"""What choosing costs on shapes that it was not told, as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fullattention.reports.blocks import Block, Lines, Table
from fullattention.reports.units import digits


def regret_blocks(
    regrets: Sequence[tuple[str, str, str, float]], machine: Sequence[str]
) -> list[Block]:
    """The mean and the worst, each shape's workload, chosen and best backend and ratio, and where.

    Raises:
        ValueError: there are none.
    """
    if not regrets:
        raise ValueError("too little was measured here: at least five shapes on two backends")
    logs = [math.log(ratio) for *_, ratio in regrets]
    summary = (
        f"Over {len(regrets)} shapes, the backend chosen from the other shapes takes "
        f"{digits(math.exp(sum(logs) / len(logs)))} of the best one's time in geometric mean, "
        f"{digits(math.exp(max(logs)))} at worst; it is the best on "
        f"{sum(chosen == best for _, chosen, best, _ in regrets)}."
    )
    rows = [[name, chosen, best, digits(ratio)] for name, chosen, best, ratio in regrets]
    return [
        Lines([summary]),
        Table(("held out", "chosen", "best", "/ best"), rows, right=("/ best",)),
        Lines(machine),
    ]
