"""What a report says, block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from fullattention.records import (
    BASELINE,
    CLOCK_DRIFT,
    Ceilings,
    Comparison,
    Environment,
    Timing,
    Verdict,
)
from fullattention.reports.blocks import Block, Heading, Lines, Table
from fullattention.reports.comparable import common_environment
from fullattention.reports.tables import WORKLOAD, fastest, mean_gain, ranked
from fullattention.units import MISSING, digits, joules, memory, percent, rate, seconds

MODES = {
    "forward": "forward",
    "weights": "forward, weights returned",
    "training": "forward and backward with dropout 0.1",
    "host": "forward, from host arrays to host arrays",
}
"""Mode of a timing -> what was called."""

ON_DEVICE: Mapping[str, tuple[str, Callable[[float | None], str]]] = {
    "device_median": ("device", seconds),
    "graph_seconds": ("as graph", seconds),
    "cold_seconds": ("cold L2", seconds),
    "joules": ("energy", joules),
}
"""What a GPU tells of a call -> the column's title, and the figure in words."""


def report(
    timings: Sequence[Timing],
    comparisons: Sequence[Comparison] = (),
    verdicts: Sequence[Verdict] = (),
    ceilings: Sequence[Ceilings] = (),
) -> list[Block]:
    """The whole report: environment, conclusion, conformance, workloads, what was not run.

    Raises:
        ValueError: there are no timings, or they were made in differing environments.
    """
    environment = common_environment(timings)
    table = ranked(timings, comparisons)
    return [
        Heading("FullAttention benchmark", level=1),
        Lines([*environment_lines(environment), *map(_ceilings, ceilings[-1:])]),
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
    if any("MKL" in name for name in e.blas) and "Intel" not in e.cpu:
        lines.append(
            "MKL on a CPU that is not Intel's may take a slower path than the CPU allows: what "
            "uses it, torch above all, is ranked as installed, not as it could be."
        )
    if e.load is not None and int(e.load) + e.threads > e.cores:
        lines.append("The machine was busy before the start: expect noise.")
    return lines


def _pairs(mapping: Mapping[str, str], joint: str) -> str:
    return ", ".join(f"{name}{joint}{value}" for name, value in mapping.items())


def _ceilings(found: Ceilings) -> str:
    copies = [(int(size), speed) for size, speed in found.copy.items()]
    fastest, largest = max(speed for _, speed in copies), max(copies)[1]
    return (
        f"Ceilings: copy {rate(largest, 'B')} from memory and {rate(fastest, 'B')} in cache, "
        f"float32 matmul {rate(found.matmul, 'FLOP')}, exp {rate(found.exp, 'exp')}"
    )


def _fastest(table: pd.DataFrame) -> list[Block]:
    best = fastest(table)
    if best.empty:
        return [Heading("Fastest"), Lines(["Nothing was timed."])]
    rows = [
        [row.title, row.backend, seconds(row.median), *_of_baseline(row), _notes(row)]
        for row in best.itertuples()
    ]
    blocks: list[Block] = [
        Heading("Fastest"),
        Table(
            ("workload", "fastest", "median", f"/ {BASELINE}", "95 %", "note"),
            rows,
            right=("median", f"/ {BASELINE}", "95 %"),
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
            "Disturbed: others wanted the cores or the GPU meanwhile, or the cores' speed changed, "
            "so the ratios are those of a busy machine, and none counts for the mean. Run again on "
            "a quiet one."
        )
    lines.append(
        "Backends take turns in random order, block by block, each in several processes, and "
        "ratios are taken within blocks; intervals allow for how much processes differ. "
        "One is slower where the ratio's 99 % interval lies above 1, a tie where it lies within "
        "2 % of 1, and else not settled. The tables of report.md have each one's verdict against "
        "the best, and the least difference that such turns show nine times in ten."
    )
    return lines


def _notes(row: pd.Series) -> str:
    notes = [f"tie with {row.ties}"] if row.ties else []
    notes += [f"not settled: {row.unsettled}"] if row.unsettled else []
    return "; ".join(notes + ["disturbed"] * bool(row.disturbed))


def _of_baseline(row: pd.Series) -> tuple[str, str]:
    """The ratio to the baseline and its interval; to another backend it is no such figure."""
    if row.ratio_to != BASELINE:
        return MISSING, MISSING
    return digits(row.ratio), _interval(row)


def _interval(row: pd.Series) -> str:
    """An interval of ratios; nothing for a backend's ratio to itself."""
    return MISSING if row.low == row.high else f"{digits(row.low)}-{digits(row.high)}"


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
            blocks += _workload(tried)
    return blocks


def _workload(tried: pd.DataFrame) -> list[Block]:
    """The call, the ranking, and what else is known of one workload."""
    first = tried.iloc[0]
    return [
        *(Heading(first.title), Lines([_call(first)]), _ranking(tried)),
        *_on_device(tried),
        *_processes(tried),
        *_disturbances(tried),
        *_unranked(tried),
    ]


def _unranked(tried: pd.DataFrame) -> list[Block]:
    bad = tried[tried["status"] != "timed"]
    lines = [f"{row.backend} is {row.status.upper()}: {row.reason}" for row in bad.itertuples()]
    return [Lines(lines)] if lines else []


def _processes(tried: pd.DataFrame) -> list[Block]:
    difference = tried["process_difference"].max()
    if pd.isna(difference):
        return []
    told = f"Two processes of one backend differ by about {difference:.1%} here"
    return [Lines([f"{told}: smaller differences name no winner."])]


def _disturbances(tried: pd.DataFrame) -> list[Block]:
    first, lines = tried.iloc[0], []
    if loads := _loads(tried[tried["disturbed"] & (tried["other_load"] > 0)], "other_load"):
        lines.append(f"Disturbed; cores that others used meanwhile: {loads}.")
    if abs(first.clock_drift or 0.0) > CLOCK_DRIFT:
        drift = f"{first.clock_drift:+.0%}"
        lines.append(f"Disturbed; what the same work takes a core changed by {drift} meanwhile.")
    if (first.gpu_others or 0) > 0:
        others = int(first.gpu_others)
        lines.append(f"Disturbed; other processes that computed on the GPU: {others}.")
    if loads := _loads(tried[tried["oversubscribed"]], "own_load"):
        lines.append(f"More cores kept busy than these were told to use: {loads}.")
    return [Lines(lines)] if lines else []


def _loads(rows: pd.DataFrame, column: str) -> str:
    pairs = zip(rows["backend"], rows[column], strict=True)
    return ", ".join(f"{backend} {digits(load)}" for backend, load in pairs)


def _call(row: pd.Series) -> str:
    """The call that was timed, in words."""
    sizes = ", ".join(f"{axis} {size}" for axis, size in zip("BLSHED", row["shape"], strict=True))
    mask = "no mask" if row["mask"] == "none" else f"{row['mask']} mask"
    return f"{sizes}; {row['dtype']}; {mask}; {MODES[row['mode']]}"


def _ranking(tried: pd.DataFrame) -> Table:
    rows = [_ranking_row(row) for row in tried.itertuples()]
    ratio = "ratio" if tried.iloc[0]["ratio_to"] == BASELINE else "/ best"
    against_best = ("verdict", "least")
    columns = (
        *("rank", "backend", "median", ratio, "95 %", *against_best),
        *("ceiling", "peak", "first", "error"),
    )
    right = tuple(column for column in columns if column not in ("backend", "verdict"))
    return Table(columns, rows, right=right, widest=40, wide=against_best)


def _ranking_row(row: pd.Series) -> list[str]:
    if row.status != "timed":
        median = seconds(row.median) if row.status == "incomplete" else MISSING
        return [row.status, row.backend, median, *7 * [MISSING], digits(row.error_over_bound)]
    least = row.smallest_difference
    return [
        MISSING if pd.isna(row.rank) else str(row.rank),
        row.backend,
        seconds(row.median),
        digits(row.ratio),
        _interval(row),
        row.verdict or MISSING,
        MISSING if pd.isna(least) else f"{digits(100 * least)}%",
        MISSING if pd.isna(row.share) else f"{percent(row.share)} {row.floor}",
        memory(row.peak_bytes),
        seconds(row.first_call),
        digits(row.error_over_bound),
    ]


def _on_device(tried: pd.DataFrame) -> list[Block]:
    """The figures that a GPU tells, as far as there are any."""
    timed = tried[tried["status"] == "timed"]
    known = [name for name in ON_DEVICE if timed[name].notna().any()]
    if not known:
        return []
    rows = [
        [row.backend, *(ON_DEVICE[name][1](getattr(row, name)) for name in known)]
        for row in timed.itertuples()
    ]
    titles = tuple(ON_DEVICE[name][0] for name in known)
    told = (
        "Of a call, by the GPU itself: its time, its time in a replayed CUDA graph, its time after "
        "the L2 cache was overwritten, and the energy of the whole GPU."
    )
    return [Lines([told]), Table(("backend", *titles), rows, right=titles, widest=40)]


def _not_run(table: pd.DataFrame) -> list[Block]:
    """Each backend and reason once, with the workloads it holds for."""
    missing = table[table["status"] == "not run"]
    if missing.empty:
        return []
    every = table[WORKLOAD].drop_duplicates()
    rows = [
        [
            backend,
            "all" if len(group) == len(every) else ", ".join(group["title"]),
            reason,
        ]
        for (backend, reason), group in missing.groupby(["backend", "reason"], sort=False)
    ]
    return [Heading("Not run"), Table(("backend", "workload", "why"), rows, widest=42)]
