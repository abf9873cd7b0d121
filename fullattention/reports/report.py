"""What a report says, block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from fullattention.records import Environment, Timing, Verdict
from fullattention.reports.blocks import Block, Heading, Lines, Table
from fullattention.reports.comparable import common_environment
from fullattention.reports.tables import BASELINE, WORKLOAD, fastest, mean_gain, ranked
from fullattention.reports.units import MISSING, digits, seconds, seconds_range


def report(timings: Sequence[Timing], verdicts: Sequence[Verdict]) -> list[Block]:
    """The whole report: environment, conclusion, conformance, workloads, what was not run.

    Raises:
        ValueError: there are no timings, or they were made in differing environments.
    """
    environment = common_environment(timings)
    table = ranked(timings)
    return [
        Heading("FullAttention benchmark", level=1),
        Lines(environment_lines(environment)),
        *_fastest(table),
        *_conformance(verdicts),
        *_workloads(table),
        *_not_run(table),
    ]


def environment_lines(environment: Environment) -> list[str]:
    """The machine and its libraries, a subject on each line."""
    e = environment
    load = "" if e.load is None else f", load {digits(e.load)} before the start"
    lines = [
        f"CPU: {e.cpu}, {e.cores} usable cores, {e.memory_gib:g} GiB{load}",
        f"GPU: {e.gpu}, driver {e.gpu_driver}" if e.gpu else "GPU: none",
        f"Threads: {e.threads}",
        f"Libraries: {e.python}, {_pairs(e.libraries, ' ')}, fullattention {e.suite}",
        f"BLAS and OpenMP: {', '.join(e.blas) or 'none loaded'}",
        f"Variables: {_pairs(e.variables, '=') or 'none set'}",
        f"System: {e.platform}, {e.time}",
    ]
    if e.load is not None and int(e.load) + e.threads > e.cores:
        lines.append("The machine was busy before the start: expect noise.")
    return lines


def _pairs(mapping: Mapping[str, str], joint: str) -> str:
    return ", ".join(f"{name}{joint}{value}" for name, value in mapping.items())


def _fastest(table: pd.DataFrame) -> list[Block]:
    best = fastest(table)
    if best.empty:
        return [Heading("Fastest"), Lines(["Nothing was timed."])]
    rows = [
        [
            _title(row),
            row.backend,
            seconds(row.median),
            _ratio(row.ratio, row.ratio_to),
            _notes(row),
        ]
        for row in best.itertuples()
    ]
    blocks: list[Block] = [
        Heading("Fastest"),
        Table(
            ("workload", "fastest", "median", f"/ {BASELINE}", "note"),
            rows,
            right=("median", f"/ {BASELINE}"),
            widest=26,
        ),
    ]
    return [*blocks, Lines(_conclusions(best))]


def _conclusions(best: pd.DataFrame) -> list[str]:
    lines = []
    gain, count = mean_gain(best)
    if count:
        lines.append(
            f"The fastest takes {digits(gain)} of {BASELINE}'s time: geometric mean of the "
            f"undisturbed ratios ({count})."
        )
    if best["disturbed"].any():
        lines.append(
            "Disturbed: others wanted the cores meanwhile, so the order is doubtful and no ratio "
            "counts. Run again on a quiet machine."
        )
    lines.append("Backends are timed one after the other; a tie is an overlap of their quartiles.")
    return lines


def _notes(row: pd.Series) -> str:
    tie = [f"within noise of {row.ties}"] if row.ties else []
    return "; ".join(tie + ["disturbed"] * bool(row.disturbed))


def _ratio(ratio: float, ratio_to: str) -> str:
    """The ratio to the baseline; to another backend it is no such figure."""
    return digits(ratio) if ratio_to == BASELINE else MISSING


def _conformance(verdicts: Sequence[Verdict]) -> list[Block]:
    rows = []
    for verdict in verdicts:
        counts = Counter(result.status for result in verdict.results)
        dtypes = dict.fromkeys(result.dtype for result in verdict.results)
        rows.append(
            [
                verdict.backend,
                verdict.device,
                ", ".join(dtypes),
                verdict.level,
                "yes" if verdict.conformant else "NO",
                ", ".join(f"{count} {status}" for status, count in counts.most_common()),
            ]
        )
    columns = ("backend", "device", "dtype", "level", "conformant", "checks")
    return [Heading("Conformance"), Table(columns, rows, widest=48)] if rows else []


def _workloads(table: pd.DataFrame) -> list[Block]:
    blocks: list[Block] = []
    for _, group in table.groupby(WORKLOAD, sort=False):
        tried = group[group["status"] != "not run"]
        if len(tried):
            first = tried.iloc[0]
            blocks += [Heading(_title(first)), Lines([_call(first)]), _ranking(tried)]
            blocks += _disturbances(tried)
            wrong = tried[tried["status"] == "wrong"]
            if len(wrong):
                reasons = [f"{row.backend} is WRONG: {row.reason}" for row in wrong.itertuples()]
                blocks.append(Lines(reasons))
    return blocks


def _disturbances(tried: pd.DataFrame) -> list[Block]:
    loads = [
        f"{row.backend} {digits(row.other_load)}" for row in tried[tried["disturbed"]].itertuples()
    ]
    if not loads:
        return []
    return [Lines([f"Disturbed; cores that others used meanwhile: {', '.join(loads)}."])]


def _title(row: pd.Series) -> str:
    return row.workload if row.device == "cpu" else f"{row.workload} on {row.device}"


def _call(row: pd.Series) -> str:
    """The call that was timed, in words."""
    sizes = ", ".join(f"{axis} {size}" for axis, size in zip("BLSHED", row["shape"], strict=True))
    mask = "no mask" if row["mask"] == "none" else f"{row['mask']} mask"
    return f"{sizes}; {row['dtype']}; {mask}"


def _ranking(tried: pd.DataFrame) -> Table:
    ratio_to = tried.iloc[0]["ratio_to"]
    rows = [
        [
            str(row.rank),
            row.backend,
            seconds(row.median),
            seconds_range(row.lower_quartile, row.upper_quartile),
            digits(row.ratio),
            seconds(row.first_call),
            digits(row.error_over_bound),
        ]
        if row.status == "timed"
        else ["wrong", row.backend, *4 * [MISSING], digits(row.error_over_bound)]
        for row in tried.itertuples()
    ]
    ratio = f"/ {BASELINE}" if ratio_to == BASELINE else "/ fastest"
    columns = ("rank", "backend", "median", "quartiles", ratio, "first call", "error/bound")
    return Table(columns, rows, right=tuple(c for c in columns if c != "backend"), widest=40)


def _not_run(table: pd.DataFrame) -> list[Block]:
    """Each backend and reason once, with the workloads it holds for."""
    missing = table[table["status"] == "not run"]
    if missing.empty:
        return []
    every = table[WORKLOAD].drop_duplicates()
    rows = [
        [
            backend,
            "all" if len(group) == len(every) else ", ".join(_title(r) for r in group.itertuples()),
            reason,
        ]
        for (backend, reason), group in missing.groupby(["backend", "reason"], sort=False)
    ]
    return [Heading("Not run"), Table(("backend", "workload", "why"), rows, widest=42)]
