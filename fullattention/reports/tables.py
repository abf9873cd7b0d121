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

WORKLOAD = ["workload", "device"]
"""Columns within whose values timings are compared."""


def ranked(timings: Sequence[Timing]) -> pd.DataFrame:
    """One row for each backend on each workload, the fastest first; a repeated timing's last.

    Columns: the fields of `Timing` but its environment; `ratio` of the median to that of the
    backend in `ratio_to`; and `rank`, one more than the number of backends that are faster beyond
    noise, so that ties share it. Only what has the status "timed" has a ratio and a rank.
    """
    rows = [dataclasses.asdict(timing) for timing in timings]
    table = pd.DataFrame(rows).drop(columns=["environment", "schema"])
    table = table.drop_duplicates([*WORKLOAD, "backend"], keep="last")
    groups = [_ranked_group(group) for _, group in table.groupby(WORKLOAD, sort=False)]
    return pd.concat(groups, ignore_index=True)


def _ranked_group(group: pd.DataFrame) -> pd.DataFrame:
    order = group["status"].map({"timed": 0, "wrong": 1, "not run": 2})
    group = group.assign(order=order).sort_values(["order", "median"]).drop(columns="order")
    timed = group[group["status"] == "timed"]
    baseline = timed[timed["backend"] == BASELINE]
    reference = baseline if len(baseline) else timed.head(1)
    faster = [int((timed["upper_quartile"] < low).sum()) for low in timed["lower_quartile"]]
    return group.assign(
        ratio=timed["median"] / reference["median"].sum(),  # the sum of one, or of none
        ratio_to="".join(reference["backend"]),
        rank=pd.Series(faster, index=timed.index, dtype="Int64") + 1,
    )


def fastest(table: pd.DataFrame) -> pd.DataFrame:
    """The fastest backend of each workload that any was timed on.

    Columns: `workload`, `device`, `backend`, `median`, `ratio`, `ratio_to`, and `ties`: the
    backends whose quartiles overlap with its own, joined by commas.
    """
    rows = []
    for _, group in table[table["status"] == "timed"].groupby(WORKLOAD, sort=False):
        best = group.sort_values("median").iloc[0]
        ties = group[(group["rank"] == 1) & (group["backend"] != best["backend"])]
        columns = [*WORKLOAD, "backend", "median", "ratio", "ratio_to"]
        rows.append({**best[columns], "ties": ", ".join(ties["backend"])})
    return pd.DataFrame(rows)


def mean_gain(best: pd.DataFrame) -> tuple[float, int]:
    """Geometric mean of the fastest's ratio to the baseline, and over how many workloads.

    NaN and 0 where the baseline was never timed.
    """
    ratios = best[best["ratio_to"] == BASELINE]["ratio"] if len(best) else pd.Series(dtype=float)
    return (float(np.exp(np.log(ratios).mean())), len(ratios)) if len(ratios) else (math.nan, 0)
