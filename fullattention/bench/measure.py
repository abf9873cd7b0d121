"""One workload's contest between candidates in their workers, and the records that come of it."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fullattention.bench.ceilings import Floor, Rates, floors
from fullattention.bench.conditions import Watch
from fullattention.bench.contest import Blocks, Rules, contest
from fullattention.bench.entry import Candidate, Entry
from fullattention.bench.inputs import SEED, InputPool
from fullattention.bench.ratio import FINAL, REPORTED
from fullattention.bench.spot_check import SpotCheck
from fullattention.bench.turns import Clock
from fullattention.bench.work import Work, work
from fullattention.bench.workloads import Workload
from fullattention.records import BASELINE, Comparison, Environment, Timing


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much a workload may take: seconds, and processes."""

    contest: float = 8.0
    """Seconds; the `Rules.budget`."""
    warm_up: float = 0.1
    """Seconds of calls in each process before its turns."""
    longest_call: float = 1.0
    """Seconds; a backend of which one call takes longer, and longer than the baseline's, is left
    out."""
    longest_asked: float = 10.0
    """Likewise for a backend that was asked for by name, and for the baseline, without which there
    are no ratios."""
    processes: int = 2
    """Processes of each backend, at least."""
    differences: int = 6
    """Differences between processes of one backend, counted over all backends, at least: fewer do
    not tell how much processes differ."""

    def processes_of_each(self, backends: int) -> int:
        """Processes of each of so many backends; one alone is compared with nothing."""
        if backends < 2:
            return self.processes
        return max(self.processes, 1 + math.ceil(self.differences / backends))


THOROUGH = Effort(contest=20.0, longest_call=10.0, processes=3)
"""For a full run."""


@dataclass(frozen=True)
class Measured:
    """What comes of a workload."""

    timings: Mapping[str, Timing]
    """By the candidate's name."""
    comparisons: Sequence[Comparison]
    turns: Mapping[str, Sequence[float]]
    """Seconds per call of each turn, by the candidate's name."""
    broken: Mapping[str, str]
    """Candidates that raised, hung or died -> how; to refuse a workload is none of these."""

    def over_baseline(self, name: str) -> Comparison | None:
        """A candidate's comparison with the baseline; None where the two did not both run."""
        pairs = {(one.backend, one.against): one for one in self.comparisons}
        return pairs.get((name, BASELINE))


def measure(
    pool: InputPool,
    candidates: Sequence[Candidate],
    *,
    environment: Environment,
    effort: Effort,
    rates: Rates | None,
    salvage: Callable[[Sequence[Timing]], None],
    clock: Clock = time.perf_counter,
) -> Measured:
    """Prepare each candidate, let them take turns, and compare them.

    Args:
        pool: the inputs, drawn already.
        candidates: conformant or not; one that is not does not take part.
        environment: that the records are to tell.
        effort: the time to be spent.
        rates: the machine's ceilings; None: not measured.
        salvage: is given what was found until then where an interruption ends the contest.
        clock: in seconds.
    """
    check, least = SpotCheck(pool), work(pool.workload)
    limits = _floors(pool.workload, least, rates)
    entries = [Entry(one, pool, check, least, limits) for one in candidates]
    ready = _ready(entries, effort)
    turns = {entry.name: entry.turns_of_each() for entry in ready}
    watch = Watch(candidates[0].declaration.device)
    try:
        blocks = contest(turns, Rules(budget=effort.contest), random.Random(SEED), clock)
        conditions = watch.conditions()
        for entry in ready:
            entry.finish(effort.longest_call)
    except KeyboardInterrupt:  # a worker may owe an answer: none is asked any more
        for entry in ready:
            entry.cut_off()
        conditions = watch.conditions()
        salvage([entry.timing(environment, conditions) for entry in entries if entry.reason])
        raise
    timings = {entry.name: entry.timing(environment, conditions) for entry in entries}
    timed = [name for name, timing in timings.items() if timing.status == "timed"]
    return Measured(
        timings,
        _comparisons(pool.workload, blocks, timed, candidates, environment),
        {entry.name: [turn.seconds for turn in entry.turns] for entry in entries},
        {entry.name: entry.reason for entry in entries if entry.broken},
    )


def _ready(entries: Sequence[Entry], effort: Effort) -> list[Entry]:
    """Prepare all; those that take part. The baseline comes first: others may take as long."""
    ready: list[Entry] = []
    limit = effort.longest_call
    for entry in sorted(entries, key=lambda entry: entry.name != BASELINE):
        is_asked = entry.candidate.asked or entry.name == BASELINE
        if entry.prepare(effort.warm_up, effort.longest_asked if is_asked else limit):
            ready.append(entry)
            if entry.name == BASELINE:
                limit = max(limit, entry.first_call or 0.0)
    return ready


def _floors(workload: Workload, least: Work, rates: Rates | None) -> dict[Floor, float]:
    """Seconds at each ceiling; ceilings are measured in float32, and without transfers."""
    if rates is None or workload.dtype != "float32" or workload.mode == "host":
        return {}
    return floors(least, rates)


def _comparisons(
    workload: Workload,
    blocks: Blocks,
    timed: Sequence[str],
    candidates: Sequence[Candidate],
    environment: Environment,
) -> list[Comparison]:
    """Each backend that was timed against the best, and against the baseline."""
    if not timed:
        return []
    device, processes = candidates[0].declaration.device, len(candidates[0].workers)
    difference = blocks.spread().difference
    best = blocks.best(timed)
    targets = [best] if best == BASELINE or BASELINE not in timed else [best, BASELINE]
    comparisons = []
    for name, against in [(name, one) for one in targets for name in timed if name != one]:
        found = blocks.ratio(name, against)
        low, high = found.interval(REPORTED)
        comparisons.append(
            Comparison(
                workload=workload.name,
                shape=workload.shape,
                dtype=workload.dtype,
                mask=workload.mask,
                mode=workload.mode,
                device=device,
                backend=name,
                against=against,
                ratio=found.ratio,
                low=low,
                high=high,
                verdict=found.verdict(FINAL),
                smallest_difference=found.smallest_difference,
                blocks=found.blocks,
                processes=processes,
                process_difference=difference,
                environment=environment,
            )
        )
    return comparisons
