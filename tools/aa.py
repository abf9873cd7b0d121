"""How good the method itself is: `python tools/aa.py`.

Many processes of one backend take turns for a while. From the trace contests are held again, as
`fullattention bench` holds one of two backends: between one half of the processes and the other,
where every difference that is named is false, and with the times of one half multiplied by a known
ratio, where the winner is known. Beside it, the medians of a second each, one process after the
other, as pytest-benchmark takes them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fullattention.bench.contest import Rules, contest
from fullattention.bench.inputs import SEED, InputPool
from fullattention.bench.measure import Effort
from fullattention.bench.ratio import FINAL, PRECISION, spread_of
from fullattention.bench.turns import Clock
from fullattention.bench.worker import PREPARING, TURNING, Turn, Worker
from fullattention.bench.workloads import CATALOGUE
from fullattention.machine.environment import environment
from fullattention.machine.hardware import usable_cores
from fullattention.records import Environment, Speed
from fullattention.reports.marked import write_marked

CASES = (
    ("torch-sdpa", "toy"),
    ("torch-sdpa", "tslib/patchtst/etth1/h8"),
    ("torch-sdpa", "transformer/encoder"),
    ("numpy-matmul", "transformer/encoder"),
)
"""Backend and workload: calls of microseconds and of milliseconds."""

EACH = Effort().processes_of_each(2)
"""Processes of each of two backends."""

PROCESSES = 2 * EACH
"""Of the same backend. Every way to halve them is a case of its own, since processes differ."""

HALVINGS = 12
"""Ways to halve the processes that are tried in each window."""

RATIOS = (1.0, 1.02, 1.05, 1.10, 1.30)
"""By which the times of one of two are multiplied."""

BUDGET = Effort().contest
"""Seconds of turns that a decision may take."""

ALONE = 1.0
"""Seconds that each takes where it is measured alone, as pytest-benchmark's `max_time`."""

INTERLEAVED_SHARE = 0.75
"""Of the time, for turns in blocks; the rest for one after the other."""

WARM_UP = 0.3
LONGEST_CALL = 10.0

VERDICTS: tuple[Speed, ...] = ("slower", "faster", "tie", "not settled")

TakeTurn = Callable[[], Turn]

Trace = list[dict[str, Turn]]
"""What each process's turn gave, block by block."""

Halving = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Decision:
    """What was said of the second of two backends, and the seconds of turns that it took."""

    verdict: Speed
    seconds: float


Found = dict[tuple[str, str, float], list[Decision]]
"""Machine, method and true ratio -> decisions."""

Differences = dict[tuple[str, str], float]
"""Machine and case -> what two processes usually differ by, as a share of their time."""


def interleaved(
    turns: dict[str, TakeTurn], seconds: float, order: random.Random, clock: Clock
) -> Trace:
    """Turns in blocks of random order, for so long."""
    trace: Trace = []
    end = clock() + seconds
    while clock() < end:
        trace.append({name: turns[name]() for name in order.sample(list(turns), len(turns))})
    return trace


def one_after_the_other(
    turns: dict[str, TakeTurn], seconds: float, clock: Clock
) -> list[tuple[str, list[Turn]]]:
    """Turns of each alone for `ALONE` seconds, again and again for so long."""
    spans: list[tuple[str, list[Turn]]] = []
    end = clock() + seconds
    for name, turn in itertools.cycle(turns.items()):
        if clock() >= end:
            break
        until, taken = clock() + ALONE, [turn()]
        while clock() < until:
            taken.append(turn())
        spans.append((name, taken))
    return spans


def contests(trace: Trace, ratio: float) -> Iterator[Decision]:
    """Contests of one half of the processes and the other, in windows that overlap by half.

    The second half's times are multiplied by the ratio.
    """
    if not trace:
        return
    cases, start = itertools.cycle(halvings(sorted(trace[0]))), 0
    while (window := _window(trace, start)) is not None:
        for halving in itertools.islice(cases, HALVINGS):
            yield _held_again(trace[start : start + window], halving, ratio)
        start += max(1, window // 2)


def halvings(names: Sequence[str]) -> list[Halving]:
    """Every way to halve the names, in random order."""
    found = [
        (first, tuple(name for name in names if name not in first))
        for first in itertools.combinations(names, len(names) // 2)
        if names[0] in first
    ]
    return random.Random(SEED).sample(found, len(found))


def _window(trace: Trace, start: int) -> int | None:
    """Blocks from `start` on that take the budget; None where the trace has not so many."""
    used = 0.0
    for number, block in enumerate(trace[start:], 1):
        used += sum(turn.wall for turn in block.values())
        if used >= BUDGET and number >= Rules(budget=BUDGET).enough_blocks:
            return number
    return None


def _held_again(blocks: Trace, halving: Halving, ratio: float) -> Decision:
    used, taken = 0.0, dict.fromkeys(blocks[0], 0)

    def turn(name: str, factor: float) -> float:
        nonlocal used
        one = blocks[taken[name]][name]
        taken[name] += 1
        used += one.wall
        return one.seconds * factor

    turns = {
        backend: [functools.partial(turn, name, factor) for name in names]
        for backend, names, factor in zip(("first", "second"), halving, (1.0, ratio), strict=True)
    }
    held = contest(turns, Rules(budget=BUDGET), random.Random(SEED), lambda: used)
    return Decision(held.ratio("second", "first").verdict(FINAL), used)


def difference(trace: Trace) -> float:
    """What two processes usually differ by, as a share of their time."""
    times = np.array([[turn.seconds for _, turn in sorted(block.items())] for block in trace])
    return spread_of([times]).difference


def by_medians(spans: Sequence[tuple[str, list[Turn]]], ratio: float) -> Iterator[Decision]:
    """Of each two spans that follow each other, whose median is lower by more than 2 %."""
    for (_, first), (_, second) in itertools.pairwise(spans):
        found = ratio * _median(second) / _median(first)
        near = 1 + PRECISION
        verdict: Speed = "slower" if found > near else "faster" if found < 1 / near else "tie"
        yield Decision(verdict, sum(turn.wall for turn in [*first, *second]))


def _median(turns: Sequence[Turn]) -> float:
    return statistics.median(turn.seconds for turn in turns)


def table(found: Found) -> str:
    """Decisions by machine, method and true ratio, as Markdown."""
    columns = ("machine", "method", "true ratio", "decisions", *VERDICTS, "seconds, median")
    lines = [f"| {' | '.join(columns)} |", "|---|---" + "|--:" * (len(columns) - 2) + "|"]
    for (machine, method, ratio), decisions in found.items():
        counts = [sum(one.verdict == verdict for one in decisions) for verdict in VERDICTS]
        cells = " | ".join(_share(count, len(decisions)) for count in counts)
        seconds = statistics.median(one.seconds for one in decisions)
        lines.append(
            f"| {machine} | {method} | {ratio:.2f} | {len(decisions)} | {cells} | {seconds:.2f} |"
        )
    return "\n".join(lines)


def _share(count: int, of: int) -> str:
    return f"{count} ({count / of:.1%})" if count else "0"


def differences_told(differences: Differences) -> str:
    """What two processes of one backend differ by, in a sentence for each machine."""
    cases = {
        machine: ", ".join(
            f"{share:.1%} of {case}" for (one, case), share in differences.items() if one == machine
        )
        for machine, _ in differences
    }
    return "\n".join(
        f"Two processes of one backend usually differ by, machine {machine}: {told}."
        for machine, told in cases.items()
    )


def run(minutes: float, threads: int) -> tuple[Found, Differences]:
    """Measure all cases, on the machine as it is and under a planted load."""
    found: Found = {}
    differences: Differences = {}
    seconds = 60 * minutes / (2 * len(CASES))
    for machine, load in (("as it is", contextlib.nullcontext), ("loaded", planted_load)):
        for spec, workload in CASES:
            with load(), _turns(spec, workload, threads) as turns:
                trace = interleaved(
                    turns,
                    INTERLEAVED_SHARE * seconds,
                    random.Random(SEED),
                    time.perf_counter,
                )
                spans = one_after_the_other(
                    turns, (1 - INTERLEAVED_SHARE) * seconds, time.perf_counter
                )
            differences[machine, f"{spec} on {workload}"] = difference(trace)
            for ratio in RATIOS:
                for method, decisions in (
                    ("blocks", contests(trace, ratio)),
                    ("medians", by_medians(spans, ratio)),
                ):
                    found.setdefault((machine, method, ratio), []).extend(decisions)
    return dict(sorted(found.items(), key=lambda item: item[0][:2])), differences


@contextlib.contextmanager
def _turns(spec: str, workload: str, threads: int) -> Iterator[dict[str, TakeTurn]]:
    """Processes of the same backend, warm."""
    with tempfile.TemporaryDirectory(prefix="fullattention-") as folder:
        pool = InputPool(Path(folder) / "inputs", CATALOGUE[workload])
        pool.write(SEED)
        workers = {f"{spec} {number}": Worker(spec, "cpu", threads) for number in range(PROCESSES)}
        try:
            for worker in workers.values():
                worker.declaration()
            for worker in workers.values():
                worker.ask("prepare", pool, WARM_UP, LONGEST_CALL, seconds=PREPARING)
            yield {name: _turn_of(worker) for name, worker in workers.items()}
        finally:
            for worker in workers.values():
                worker.stop()


def _turn_of(worker: Worker) -> TakeTurn:
    def turn() -> Turn:
        taken: Turn = worker.ask("turn", False, seconds=TURNING)
        return taken

    return turn


@contextlib.contextmanager
def planted_load() -> Iterator[None]:
    """Another process that is busy about half of the time, in bursts of up to a second."""
    process = multiprocessing.get_context("spawn").Process(target=_burden, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _burden() -> None:
    length = random.Random(SEED)
    while True:
        end = time.perf_counter() + length.uniform(0.05, 1.0)
        while time.perf_counter() < end:
            pass
        time.sleep(length.uniform(0.05, 1.0))


def section(found: Found, differences: Differences, command: str, here: Environment) -> str:
    """The table with what it was measured by and on."""
    load = "" if here.load is None else f", load {here.load:.2f} before the start"
    return (
        f"`{command}`, {here.time[:10]}: {here.cpu}, {here.cores} usable cores, {here.threads} "
        f"threads{load}; {here.python}, "
        f"{', '.join(f'{name} {version}' for name, version in here.libraries.items())}.\n\n"
        f"{table(found)}\n\n{differences_told(differences)}"
    )


def main() -> None:
    """Measure, print the table, and write it into a document if one is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=6.0, help="of measuring (default: 6)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="default: all cores")
    parser.add_argument("--write", type=Path, metavar="FILE", help="document with the markers")
    options = parser.parse_args()
    here = environment(options.threads)
    command = f"nox -s aa -- --minutes {options.minutes:g} --threads {options.threads}"
    text = section(*run(options.minutes, options.threads), command, here)
    print(text)
    if options.write:
        write_marked(options.write, "aa", text)


if __name__ == "__main__":
    main()
