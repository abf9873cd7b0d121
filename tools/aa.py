"""How good the method itself is: `python tools/aa.py`.

Many processes of one backend take turns for a while. From the trace contests are held again, as
`fullattention bench` holds one of two backends, within two budgets: between one half of the
processes and the other, where every difference that is named is false, and with the times of one
half multiplied by a known ratio, where the winner is known. Beside it, the medians of a second
each, one process after the other, as pytest-benchmark takes them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import math
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fullattention.bench.contest import Rules, contest
from fullattention.bench.inputs import DRAWN, SEED, InputPool
from fullattention.bench.measure import Effort
from fullattention.bench.ratio import FINAL, PRECISION, spread_of
from fullattention.bench.server import Turn
from fullattention.bench.turns import Clock
from fullattention.bench.worker import PREPARING, TURNING, Worker
from fullattention.bench.workloads import CATALOGUE
from fullattention.machine.environment import environment
from fullattention.machine.hardware import usable_cores
from fullattention.records import Environment, Speed
from fullattention.reports.blocks import Lines, Table, as_markdown
from fullattention.reports.marked import require_marked, write_marked

CASES = (
    ("torch-sdpa", "toy"),
    ("torch-sdpa", "tslib/patchtst/etth1/h8"),
    ("torch-sdpa", "transformer/encoder"),
    ("numpy-matmul", "transformer/encoder"),
    ("numba-cpu", "tslib/patchtst/etth1/h8"),
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

BUDGETS = (2.0, Effort().contest)
"""Seconds of turns that a decision may take."""

FALSE_AT_MOST = 0.02
"""Goal: the share of decisions that name a difference where there is none."""

SURE = 1.05
"""Goal: from this ratio on nobody is named the winner who is not."""

SMALL, FOUND_AT_LEAST = 1.02, 0.9
"""Goal: the share of decisions within the smaller budget, on the machine as it is, that find so
small a difference."""

ALONE = 1.0
"""Seconds that each takes where it is measured alone, as pytest-benchmark's `max_time`."""

INTERLEAVED_SHARE = 0.75
"""Of the time, for turns in blocks; the rest for one after the other."""

LEAST_MINUTES = 2 * len(CASES) * 1.25 * max(BUDGETS) / INTERLEAVED_SHARE / 60
"""Of measuring: for each case, on either machine, turns in blocks for one contest and to spare."""

WARM_UP = 0.3
LONGEST_CALL = 10.0

AS_IT_IS, LOADED = "as it is", "loaded"
"""The machine."""

MEDIANS = "medians"
"""The method that is not ours."""

TakeTurn = Callable[[], Turn]

Trace = list[dict[str, Turn]]
"""What each process's turn gave, block by block."""

Halving = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Decision:
    """What was said of the second of two backends, and the seconds of turns that it took."""

    verdict: Speed
    seconds: float


Decisions = Sequence[Decision]

Found = Mapping[tuple[str, str, float], Decisions]
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


def contests(trace: Trace, ratio: float, budget: float) -> Iterator[Decision]:
    """Contests of one half of the processes and the other, in windows that overlap by half.

    The second half's times are multiplied by the ratio.
    """
    if not trace:
        return
    cases, start = itertools.cycle(halvings(sorted(trace[0]))), 0
    rules = Rules(budget=budget)
    while (window := _window(trace, start, rules)) is not None:
        for halving in itertools.islice(cases, HALVINGS):
            yield _held_again(trace[start : start + window], halving, ratio, rules)
        start += max(1, window // 2)


def halvings(names: Sequence[str]) -> list[Halving]:
    """Every way to halve the names, in random order."""
    found = [
        (first, tuple(name for name in names if name not in first))
        for first in itertools.combinations(names, len(names) // 2)
        if names[0] in first
    ]
    return random.Random(SEED).sample(found, len(found))


def _window(trace: Trace, start: int, rules: Rules) -> int | None:
    """Blocks from `start` on that take the budget; None where the trace has not so many."""
    used = 0.0
    for number, block in enumerate(trace[start:], 1):
        used += sum(turn.wall for turn in block.values())
        if used >= rules.budget and number >= rules.enough_blocks:
            return number
    return None


def _held_again(blocks: Trace, halving: Halving, ratio: float, rules: Rules) -> Decision:
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
    held = contest(turns, rules, random.Random(SEED), lambda: used)
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


def within(budget: float) -> str:
    """What the method is called that decides within so many seconds."""
    return f"blocks, {budget:g} s"


def verdicts(found: Found) -> Table:
    """How often each method was right, by machine."""
    others = [ratio for ratio in RATIOS if ratio > 1]
    rows = []
    for machine, method in dict.fromkeys((machine, method) for machine, method, _ in found):
        of = {ratio: found[machine, method, ratio] for ratio in RATIOS}
        rows.append(
            [
                *(machine, method, str(len(of[1.0])), _share(_named(of[1.0]), len(of[1.0]))),
                *(_share(_count(of[ratio], "slower"), len(of[ratio])) for ratio in others),
                str(_wrong_winners(found, machine, method)),
            ]
        )
    columns = (
        *("machine", "method", "decisions", "false at 1.00"),
        *(f"found at {ratio:.2f}" for ratio in others),
        f"wrong winner, {SURE:.2f} on",
    )
    return Table(columns, rows, right=columns[2:])


def times(found: Found) -> Table:
    """How long decisions in blocks took, in the middle, and which share of the budget that is."""
    rows = []
    for machine in dict.fromkeys(machine for machine, _, _ in found):
        for budget in BUDGETS:
            of = [found[machine, within(budget), ratio] for ratio in RATIOS]
            medians = [statistics.median(one.seconds for one in decisions) for decisions in of]
            cells = [f"{median:.2f} ({median / budget:.0%})" for median in medians]
            rows.append([machine, f"{budget:g} s", *cells])
    columns = ("machine", "budget", *(f"at {ratio:.2f}, s" for ratio in RATIOS))
    return Table(columns, rows, right=columns[1:])


def goals(found: Found) -> Iterator[str]:
    """Each goal for decisions in blocks, what was counted, and whether it is met."""
    ours = [key[:2] for key in found if key[1] != MEDIANS and key[2] == 1.0]
    shares = {key: _named(found[*key, 1.0]) / len(found[*key, 1.0]) for key in ours}
    worst = max(shares, key=lambda key: shares[key])
    yield (
        f"A difference where there is none, in at most {FALSE_AT_MOST:.0%}: in {shares[worst]:.1%} "
        f"at worst ({', '.join(worst)}): {_met(shares[worst] <= FALSE_AT_MOST)}."
    )
    wrong = sum(_wrong_winners(found, *key) for key in ours)
    yield f"A wrong winner from {SURE:.2f} on, never: {wrong} times: {_met(wrong == 0)}."
    small = found[AS_IT_IS, within(BUDGETS[0]), SMALL]
    seen = _count(small, "slower") / len(small)
    yield (
        f"A difference of {SMALL - 1:.0%} found within {BUDGETS[0]:g} s on the machine {AS_IT_IS}, "
        f"in at least {FOUND_AT_LEAST:.0%}: in {seen:.1%}: {_met(seen >= FOUND_AT_LEAST)}."
    )


def _met(reached: bool) -> str:
    return "met" if reached else "missed"


def _count(decisions: Decisions, verdict: Speed) -> int:
    return sum(one.verdict == verdict for one in decisions)


def _named(decisions: Decisions) -> int:
    """How many name a difference."""
    return _count(decisions, "slower") + _count(decisions, "faster")


def _wrong_winners(found: Found, machine: str, method: str) -> int:
    """How many decisions name the slower one the faster, where it is surely slower."""
    of = [found[machine, method, ratio] for ratio in RATIOS if ratio >= SURE]
    return sum(_count(decisions, "faster") for decisions in of)


def _share(count: int, of: int) -> str:
    return f"{count / of:.1%}"


def differences_told(differences: Differences) -> Iterator[str]:
    """What two processes of one backend differ by, in a sentence for each machine."""
    for machine in dict.fromkeys(machine for machine, _ in differences):
        shares = ", ".join(
            f"{share:.1%} of {case}" for (one, case), share in differences.items() if one == machine
        )
        yield f"Two processes of one backend usually differ by, machine {machine}: {shares}."


def run(minutes: float, threads: int) -> tuple[Found, Differences]:
    """Measure all cases, on the machine as it is and under a planted load."""
    found: dict[tuple[str, str, float], list[Decision]] = {}
    differences: Differences = {}
    seconds = 60 * minutes / (2 * len(CASES))
    for machine, load in ((AS_IT_IS, contextlib.nullcontext), (LOADED, planted_load)):
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
                decided = {within(budget): contests(trace, ratio, budget) for budget in BUDGETS}
                for method, decisions in (*decided.items(), (MEDIANS, by_medians(spans, ratio))):
                    found.setdefault((machine, method, ratio), []).extend(decisions)
    return found, differences


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
        taken: Turn = worker.ask("turn", DRAWN, seconds=TURNING)
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
    """The tables and the goals, with what they were measured by and on."""
    load = "" if here.load is None else f", load {here.load:.2f} before the start"
    machine = (
        f"`{command}`, {here.time[:10]}: {here.cpu}, {here.cores} usable cores, {here.threads} "
        f"threads{load}; {here.python}, "
        f"{', '.join(f'{name} {version}' for name, version in here.libraries.items())}."
    )
    return as_markdown(
        [
            verdicts(found),
            Lines(["Goals, for blocks:", *goals(found)]),
            times(found),
            Lines([*differences_told(differences), machine]),
        ]
    )


def main() -> None:
    """Measure, print the tables, and write them into a document if one is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=6.0, help="of measuring (default: 6)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="default: all cores")
    parser.add_argument("--write", type=Path, metavar="FILE", help="document with the markers")
    options = parser.parse_args()
    if not LEAST_MINUTES <= options.minutes < math.inf:
        least = f"{LEAST_MINUTES:g}"
        parser.error(f"minutes is {options.minutes:g}: a finite number from {least} on")
    try:
        require_marked("--write", options.write, "aa")
    except ValueError as error:
        parser.error(str(error))
    here = environment(options.threads)
    command = f"nox -s aa -- --minutes {options.minutes:g} --threads {options.threads}"
    text = section(*run(options.minutes, options.threads), command, here)
    print(text)
    if options.write:
        write_marked(options.write, "aa", text)


if __name__ == "__main__":
    main()
