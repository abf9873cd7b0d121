"""How good the method itself is: `python tools/aa.py`.

One backend under three names, each in a worker of its own, takes turns for a while. From the trace
contests are held again: between two of the names as they are, where every difference that is named
is false, and with the times of one multiplied by a known ratio, where the winner is known. Beside
it, the medians of a second each, one after the other, as pytest-benchmark takes them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

from fullattention.bench.contest import Rules, contest
from fullattention.bench.inputs import SEED, InputPool
from fullattention.bench.ratio import FINAL, PRECISION
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

NAMES = 3
"""Of the same backend; each pair of them is a case of its own, since processes differ too."""

RATIOS = (1.0, 1.02, 1.05, 1.10, 1.30)
"""By which the times of one of two are multiplied."""

BUDGET = 2.0
"""Seconds of turns that a decision may take."""

ALONE = 1.0
"""Seconds that each takes where it is measured alone, as pytest-benchmark's `max_time`."""

INTERLEAVED_SHARE = 0.6
"""Of the time, for turns in blocks; the rest for one after the other."""

WARM_UP = 0.3
LONGEST_CALL = 10.0

VERDICTS: tuple[Speed, ...] = ("slower", "faster", "tie", "not settled")

TakeTurn = Callable[[], Turn]

Trace = list[dict[str, Turn]]
"""What each name's turn gave, block by block."""


@dataclass(frozen=True)
class Decision:
    """What was said of the second of two, and the seconds of turns that it took."""

    verdict: Speed
    seconds: float


Found = dict[tuple[str, str, float], list[Decision]]
"""Machine, method and true ratio -> decisions."""


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
    while clock() < end:
        for name, turn in turns.items():
            until, taken = clock() + ALONE, [turn()]
            while clock() < until:
                taken.append(turn())
            spans.append((name, taken))
    return spans


def contests(trace: Trace, ratio: float) -> Iterator[Decision]:
    """Contests of each two names in windows of the trace that overlap by half.

    The second one's times are multiplied by the ratio.
    """
    for first, second in combinations(trace[0] if trace else (), 2):
        start = 0
        while (window := _window(trace, first, second, start)) is not None:
            yield _held_again(trace[start : start + window], first, second, ratio)
            start += max(1, window // 2)


def _window(trace: Trace, first: str, second: str, start: int) -> int | None:
    """Blocks from `start` on that take the budget; None where the trace has not so many."""
    used = 0.0
    for number, block in enumerate(trace[start:], 1):
        used += block[first].wall + block[second].wall
        if used >= BUDGET and number >= Rules(budget=BUDGET).enough_blocks:
            return number
    return None


def _held_again(blocks: Trace, first: str, second: str, ratio: float) -> Decision:
    used, taken = 0.0, {first: 0, second: 0}

    def turn(name: str) -> float:
        nonlocal used
        one = blocks[taken[name]][name]
        taken[name] += 1
        used += one.wall
        return one.seconds * (ratio if name == second else 1.0)

    turns = {name: functools.partial(turn, name) for name in (first, second)}
    held = contest(turns, Rules(budget=BUDGET), random.Random(SEED), lambda: used)
    return Decision(held.ratio(second, first).verdict(FINAL), used)


def by_medians(spans: Sequence[tuple[str, list[Turn]]], ratio: float) -> Iterator[Decision]:
    """Of each two spans that follow each other, whose median is lower by more than 2 %."""
    for (_, first), (_, second) in pairwise(spans):
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


def run(minutes: float, threads: int) -> Found:
    """Measure all cases, on the machine as it is and under a planted load."""
    found: Found = {}
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
            for ratio in RATIOS:
                for method, decisions in (
                    ("blocks", contests(trace, ratio)),
                    ("medians", by_medians(spans, ratio)),
                ):
                    found.setdefault((machine, method, ratio), []).extend(decisions)
    return dict(sorted(found.items(), key=lambda item: item[0][:2]))


@contextlib.contextmanager
def _turns(spec: str, workload: str, threads: int) -> Iterator[dict[str, TakeTurn]]:
    """The same backend under several names, warm."""
    with tempfile.TemporaryDirectory(prefix="fullattention-") as folder:
        pool = InputPool(Path(folder) / "inputs", CATALOGUE[workload])
        pool.write(SEED)
        workers = {f"{spec} {number}": Worker(spec, "cpu", threads) for number in range(NAMES)}
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


def section(found: Found, command: str, here: Environment) -> str:
    """The table with what it was measured by and on."""
    load = "" if here.load is None else f", load {here.load:.2f} before the start"
    return (
        f"`{command}`, {here.time[:10]}: {here.cpu}, {here.cores} usable cores, {here.threads} "
        f"threads{load}; {here.python}, "
        f"{', '.join(f'{name} {version}' for name, version in here.libraries.items())}.\n\n"
        f"{table(found)}"
    )


def main() -> None:
    """Measure, print the table, and write it into a document if one is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0, help="of measuring (default: 8)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="default: all cores")
    parser.add_argument("--write", type=Path, metavar="FILE", help="document with the markers")
    options = parser.parse_args()
    here = environment(options.threads)
    command = f"nox -s aa -- --minutes {options.minutes:g} --threads {options.threads}"
    text = section(run(options.minutes, options.threads), command, here)
    print(text)
    if options.write:
        write_marked(options.write, "aa", text)


if __name__ == "__main__":
    main()
