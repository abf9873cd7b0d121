"""Timings as tables: ranked within each workload, and the fastest of each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fullattention.records import BASELINE, Comparison, Timing

WORKLOAD = ["workload", "mask", "mode", "device"]
"""Columns within whose values timings are compared."""

DIFFERENCES = ("smallest_difference", "process_difference")
"""What a comparison tells of its own precision."""

ORDER = ("timed", "incomplete", "wrong", "void", "not run")

Key = tuple[str, ...]


def ranked(timings: Sequence[Timing], comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """One row for each backend on each workload, the fastest first; a repeated timing's last.

    Columns: the fields of `Timing` but its environment; `title` of the workload; `disturbed`,
    whether others wanted the cores meanwhile or something changed their speed; `oversubscribed`,
    whether it kept more of them busy than it was told to use; `ratio` of the time to
    that of the backend in `ratio_to`, with its 95 % interval `low` and `high`; `verdict` against
    the best ("best" for itself), and the `smallest_difference` that would have shown;
    `process_difference`, that of two processes of one backend; `rank`, which those share that are
    not known to differ. What was not timed or not compared has no ratio, and no rank.
    """
    groups: dict[Key, dict[str, Timing]] = {}
    for timing in timings:
        groups.setdefault(_key(timing), {})[timing.backend] = timing
    found: dict[Key, dict[tuple[str, str], Comparison]] = {key: {} for key in groups}
    for one in comparisons:
        found.setdefault(_key(one), {})[one.backend, one.against] = one
    rows = [row for key, group in groups.items() for row in _rows(group, found[key])]
    return pd.DataFrame(rows).astype({"rank": "Int64"})


def _key(record: Timing | Comparison) -> Key:
    return tuple(getattr(record, column) for column in WORKLOAD)


def _rows(
    group: Mapping[str, Timing], comparisons: Mapping[tuple[str, str], Comparison]
) -> list[dict[str, Any]]:
    """The rows of one workload."""
    timed = [name for name, timing in group.items() if timing.status == "timed"]
    best = _best(timed, comparisons)
    reference = BASELINE if BASELINE in timed else best
    over_best = {name: comparisons.get((name, best)) for name in timed}

    def place(timing: Timing) -> tuple[int, float, float]:
        one = over_best.get(timing.backend)
        ratio = 1.0 if timing.backend == best else math.inf if one is None else one.ratio
        return ORDER.index(timing.status), ratio, timing.median or math.inf

    ordered = sorted(group.values(), key=place)
    ranks = _ranks([t.backend for t in ordered if t.backend in timed], best, over_best)
    return [
        _facts(timing)
        | _ratio(timing.backend, reference, comparisons)
        | _verdict(timing.backend, best, over_best.get(timing.backend))
        | {"rank": ranks.get(timing.backend)}
        for timing in ordered
    ]


def _best(timed: Sequence[str], comparisons: Mapping[tuple[str, str], Comparison]) -> str:
    """The backend that all others were compared with; the baseline only if there is no other."""
    targets = {against for _, against in comparisons if against in timed}
    others = targets - {BASELINE}
    return next(iter(others or targets), timed[0] if len(timed) == 1 else "")


def _facts(timing: Timing) -> dict[str, Any]:
    facts = dataclasses.asdict(timing)
    del facts["environment"], facts["schema"]
    told = {name: getattr(timing, name) for name in ("disturbed", "oversubscribed")}
    return facts | {"title": title(timing)} | told


def title(timing: Timing) -> str:
    """What was timed: the workload, its mask, mode and device where they are not the usual ones."""
    usual = ((timing.mask, "none"), (timing.mode, "forward"))
    words = ", ".join([timing.workload, *(found for found, one in usual if found != one)])
    return words if timing.device == "cpu" else f"{words} on {timing.device}"


def _ratio(
    backend: str, reference: str, comparisons: Mapping[tuple[str, str], Comparison]
) -> dict[str, Any]:
    one = comparisons.get((backend, reference))
    if one is None:
        same = 1.0 if backend == reference else math.nan
        return {"ratio": same, "low": same, "high": same, "ratio_to": reference}
    return {"ratio": one.ratio, "low": one.low, "high": one.high, "ratio_to": reference}


def _verdict(backend: str, best: str, over_best: Comparison | None) -> dict[str, Any]:
    if over_best is None:
        verdict = "best" if backend == best else ""
        return {"verdict": verdict} | dict.fromkeys(DIFFERENCES, math.nan)
    return {name: getattr(over_best, name) for name in ("verdict", *DIFFERENCES)}


def _ranks(
    ordered: Sequence[str], best: str, over_best: Mapping[str, Comparison | None]
) -> dict[str, int]:
    """A place for each backend: those not known to be slower than the best share the first.

    Of the others, those share a place whose ratio's interval reaches down to the first one's.
    """
    ranks: dict[str, int] = {}
    rank, reach = 1, -math.inf
    for place, name in enumerate(ordered, 1):
        one = over_best[name]
        if name != best and one is None:
            continue
        first = one is None or one.verdict in ("tie", "not settled", "faster")
        if not first and one is not None and one.low > reach:
            rank, reach = place, one.high
        ranks[name] = 1 if first else rank
    return ranks


def fastest(table: pd.DataFrame) -> pd.DataFrame:
    """The fastest backend of each workload: the one that all others were compared with.

    Columns: `title`, `backend`, `median`, `ratio`, `low`, `high`, `ratio_to`; `ties` and
    `unsettled`: the backends that are tied with it or not known to differ, joined by commas; and
    `disturbed`: whether any backend was.
    """
    rows = []
    for _, group in table[table["status"] == "timed"].groupby(WORKLOAD, sort=False):
        best = group[group["verdict"] == "best"]
        if best.empty:
            continue
        columns = ["title", "backend", "median", "ratio", "low", "high", "ratio_to"]
        notes = {
            "ties": _joined(group, "tie"),
            "unsettled": _joined(group, "not settled"),
            "disturbed": bool(group["disturbed"].any()),
        }
        rows.append({**best.iloc[0][columns], **notes})
    return pd.DataFrame(rows)


def _joined(group: pd.DataFrame, verdict: str) -> str:
    return ", ".join(group[group["verdict"] == verdict]["backend"])


def mean_gain(best: pd.DataFrame) -> tuple[float, int]:
    """Geometric mean of the fastest's ratio to the baseline, and of how many workloads.

    Those that were disturbed or lack the baseline are left out; NaN and 0 if that leaves none.
    """
    if best.empty:
        return math.nan, 0
    ratios = best[(best["ratio_to"] == BASELINE) & ~best["disturbed"]]["ratio"]
    return (float(np.exp(np.log(ratios).mean())), len(ratios)) if len(ratios) else (math.nan, 0)
