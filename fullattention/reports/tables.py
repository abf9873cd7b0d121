"""Timings as tables: ranked within each workload, and the fastest of each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fullattention.records import Timing

BASELINE = "torch-sdpa"
"""What ratios are taken to, wherever it was timed."""

ALLOWANCE = 0.1
"""Cores that other processes may keep busy beyond the spare ones: no system is ever idle."""

WORKLOAD = ["workload", "device"]
"""Columns within whose values timings are compared."""


def ranked(timings: Sequence[Timing]) -> pd.DataFrame:
    """One row for each backend on each workload, the fastest first; a repeated timing's last.

    Columns: the fields of `Timing` but its environment; `disturbed`, whether others wanted the
    cores meanwhile; `ratio` of the median to that of the backend in `ratio_to`; and `rank`, which
    a backend shares with the fastest that it is tied with. Only what has the status "timed" has a
    ratio and a rank.
    """
    rows = [dataclasses.asdict(timing) | {"disturbed": _disturbed(timing)} for timing in timings]
    table = pd.DataFrame(rows).drop(columns=["environment", "schema"])
    table = table.drop_duplicates([*WORKLOAD, "backend"], keep="last")
    groups = [_ranked_group(group) for _, group in table.groupby(WORKLOAD, sort=False)]
    return pd.concat(groups, ignore_index=True)


def _disturbed(timing: Timing) -> bool:
    here = timing.environment
    spare = here.cores - here.threads + ALLOWANCE
    return timing.other_load is not None and timing.other_load > spare


def _ranked_group(group: pd.DataFrame) -> pd.DataFrame:
    order = group["status"].map({"timed": 0, "wrong": 1, "not run": 2})
    group = group.assign(order=order).sort_values(["order", "median"]).drop(columns="order")
    timed = group[group["status"] == "timed"]
    baseline = timed[timed["backend"] == BASELINE]
    reference = baseline if len(baseline) else timed.head(1)
    return group.assign(
        ratio=timed["median"] / reference["median"].sum(),  # the sum of one, or of none
        ratio_to="".join(reference["backend"]),
        rank=pd.Series(_ranks(timed), index=timed.index, dtype="Int64"),
    )


def _ranks(timed: pd.DataFrame) -> list[int]:
    """A place for each row, fastest first; rows whose quartiles overlap the leader's share its."""
    ranks: list[int] = []
    leader = -np.inf
    for place, row in enumerate(timed.itertuples(), 1):
        tied = row.lower_quartile <= leader
        ranks.append(ranks[-1] if tied else place)
        leader = leader if tied else row.upper_quartile
    return ranks


def fastest(table: pd.DataFrame) -> pd.DataFrame:
    """The fastest backend of each workload that any was timed on.

    Columns: `workload`, `device`, `backend`, `median`, `ratio`, `ratio_to`; `ties`: the
    backends whose quartiles overlap with its own, joined by commas; and `disturbed`: whether any
    backend was, so that the order is doubtful.
    """
    rows = []
    for _, group in table[table["status"] == "timed"].groupby(WORKLOAD, sort=False):
        best = group.sort_values("median").iloc[0]
        ties = group[(group["rank"] == 1) & (group["backend"] != best["backend"])]
        columns = [*WORKLOAD, "backend", "median", "ratio", "ratio_to"]
        notes = {"ties": ", ".join(ties["backend"]), "disturbed": bool(group["disturbed"].any())}
        rows.append({**best[columns], **notes})
    return pd.DataFrame(rows)


def mean_gain(best: pd.DataFrame) -> tuple[float, int]:
    """Geometric mean of the fastest's ratio to the baseline, and of how many workloads.

    Those that were disturbed or lack the baseline are left out; NaN and 0 if that leaves none.
    """
    if best.empty:
        return math.nan, 0
    ratios = best[(best["ratio_to"] == BASELINE) & ~best["disturbed"]]["ratio"]
    return (float(np.exp(np.log(ratios).mean())), len(ratios)) if len(ratios) else (math.nan, 0)
