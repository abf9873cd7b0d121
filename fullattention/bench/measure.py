"""One workload's contest between candidates in their workers, and the records that come of it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fullattention.bench.ceilings import Floor, Rates, floors, impossible
from fullattention.bench.conditions import Conditions, Watch, by_chance, void_reason
from fullattention.bench.contest import Blocks, LeftError, Rules, TakeTurn, contest
from fullattention.bench.gpu_figures import GpuFigures
from fullattention.bench.inputs import DRAWN, SEED, InputPool
from fullattention.bench.ratio import FINAL, REPORTED
from fullattention.bench.rest import come_to_rest
from fullattention.bench.spot_check import SpotCheck
from fullattention.bench.turns import Clock
from fullattention.bench.work import Work, work
from fullattention.bench.worker import (
    FIGURING,
    PREPARING,
    TURNING,
    OutError,
    Ready,
    RefusedError,
    Turn,
)
from fullattention.bench.workloads import Workload
from fullattention.conformance.subject import Declaration
from fullattention.records import BASELINE, Comparison, Environment, Timing, Verdict

LOOKS = 0.25
"""Share of the turns of which a result is looked at; a process's first turn's always is."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much a workload may take: seconds, and processes."""

    contest: float = 8.0
    warm_up: float = 0.1
    longest_call: float = 1.0
    """A backend of which one call takes longer is left out."""
    processes: int = 2
    """Of each backend, at least."""
    differences: int = 6
    """Between processes of one backend, over all backends, at least: from fewer it cannot be told
    how much processes differ."""

    def processes_of_each(self, backends: int) -> int:
        """Processes of each of so many backends; one alone is compared with nothing."""
        if backends < 2:
            return self.processes
        return max(self.processes, 1 + math.ceil(self.differences / backends))


THOROUGH = Effort(contest=20.0, longest_call=10.0, processes=3)
"""For a full run."""


class Asked(Protocol):
    """A worker, as far as it is asked here."""

    def ask(self, name: str, *arguments: Any, seconds: float) -> Any:
        """Let the worker do something; see `Worker`."""


@dataclass(frozen=True)
class Candidate:
    """A candidate that may take part."""

    declaration: Declaration
    workers: Sequence[Asked]
    """Its processes."""
    verdict: Verdict


@dataclass(frozen=True)
class Measured:
    """What comes of a workload."""

    timings: Mapping[str, Timing]
    """By the candidate's name."""
    comparisons: Sequence[Comparison]
    turns: Mapping[str, Sequence[float]]
    """Seconds per call of each turn, by the candidate's name."""
    broken: Mapping[str, str]
    """Candidates that raised, hung or died, which is no refusal -> how."""

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
    clock: Clock = time.perf_counter,
) -> Measured:
    """Prepare each candidate, let them take turns, and compare them.

    Args:
        pool: the inputs, drawn already.
        candidates: conformant or not; one that is not does not take part.
        environment: that the records are to tell.
        effort: the time to be spent.
        rates: the machine's ceilings; None: not measured.
        clock: in seconds.
    """
    check, least = SpotCheck(pool), work(pool.workload)
    limits = _floors(pool.workload, least, rates)
    entries = [Entry(one, pool, check, least, limits) for one in candidates]
    ready = [entry for entry in entries if entry.prepare(effort)]
    turns = {entry.name: entry.turns_of_each() for entry in ready}
    watch = Watch(candidates[0].declaration.device)
    blocks = contest(turns, Rules(budget=effort.contest), random.Random(SEED), clock)
    conditions = watch.conditions()
    for entry in ready:
        entry.finish(effort.longest_call)
    timings = {entry.name: entry.timing(environment, conditions) for entry in entries}
    timed = [name for name, timing in timings.items() if timing.status == "timed"]
    return Measured(
        timings,
        _comparisons(pool.workload, blocks, timed, candidates, environment),
        {entry.name: [turn.seconds for turn in entry.turns] for entry in entries},
        {entry.name: entry.reason for entry in entries if entry.broken},
    )


def _floors(workload: Workload, least: Work, rates: Rates | None) -> dict[Floor, float]:
    """Seconds at each ceiling; ceilings are measured in float32, and without transfers."""
    if rates is None or workload.dtype != "float32" or workload.mode == "host":
        return {}
    return floors(least, rates)


def untimed(workload: Workload, environment: Environment, **fields: Any) -> Timing:
    """A timing that was not made."""
    known: dict[str, Any] = {"library_version": "", "status": "not run"}
    return Timing(
        workload=workload.name,
        shape=workload.shape,
        dtype=workload.dtype,
        mask=workload.mask,
        mode=workload.mode,
        environment=environment,
        **known | fields,
    )


@dataclass
class Entry:
    """A candidate's part in a contest, and what is found of it."""

    candidate: Candidate
    pool: InputPool
    check: SpotCheck
    work: Work
    floors: dict[Floor, float]
    """Seconds of that work at each of the machine's ceilings; empty where they do not apply."""
    status: str = "not run"
    reason: str = ""
    broken: bool = False
    """Whether it raised, hung or died."""
    ready: Ready | None = None
    """Of its first process."""
    first_call: float | None = None
    """Seconds; of its last process, which unlike the first was not judged and made no call before.
    None where there is no other process than the first."""
    turns: list[Turn] = field(default_factory=list)
    """Of all its processes, as they were taken."""
    looked_at: set[int] = field(default_factory=set)
    """Processes of which a result was."""
    error: float | None = None
    figures: GpuFigures = field(default_factory=GpuFigures)
    looks: random.Random = field(default_factory=lambda: random.Random(SEED))

    @property
    def name(self) -> str:
        """The candidate's."""
        return self.candidate.declaration.name

    def prepare(self, effort: Effort) -> bool:
        """Warm up each process; whether the candidate takes part."""
        if not self.candidate.verdict.conformant:
            self.reason = failures(self.candidate.verdict)
            return False
        longest_call: float | None = effort.longest_call
        for worker in self.candidate.workers:
            arguments = (self.pool, effort.warm_up, longest_call)
            ready: Ready | None = self._ask(worker, "prepare", *arguments, seconds=PREPARING)
            if ready is None:
                self._release()
                return False
            self.ready = self.ready or ready
            self.first_call, longest_call = ready.first_call, None
        return True

    def turns_of_each(self) -> list[TakeTurn]:
        """What takes a turn, for each process."""
        return [functools.partial(self.turn, n) for n in range(len(self.candidate.workers))]

    def turn(self, process: int) -> float:
        """Let a process take a turn; seconds per call.

        Raises:
            LeftError: the candidate broke down, or what it gave is wrong.
        """
        first = process not in self.looked_at
        look = self.looks.randrange(1, 2**32) if first or self.looks.random() < LOOKS else DRAWN
        worker = self.candidate.workers[process]
        turn: Turn | None = self._ask(worker, "turn", look, seconds=TURNING)
        if turn is None:
            raise LeftError
        self.looked_at.add(process)
        self.turns.append(turn)
        self.status = "timed"
        if turn.sample is not None:
            self._judge(turn, look)
        if self.status == "timed" and turn.seconds < impossible(self.floors):
            self.status = "void"
            self.reason = "faster than the machine copies or multiplies"
        if self.status != "timed":
            raise LeftError
        return turn.seconds

    def finish(self, longest_call: float) -> None:
        """Look whether the inputs are as they were, take a GPU's figures, and let the inputs go."""
        for worker in self.candidate.workers:
            if self.broken:
                break
            changed = self._ask(worker, "changed_inputs", seconds=TURNING)
            if changed:
                self.status, self.reason = "wrong", f"it changed its {' and '.join(changed)}"
        if self.status == "timed":
            self._take_figures(longest_call)
        self._release()

    def _take_figures(self, longest_call: float) -> None:
        """Those of its first process; after the turns, which nothing can then spoil."""
        worker = self.candidate.workers[0]
        try:
            self.figures = worker.ask("gpu_figures", longest_call, seconds=FIGURING)
        except OutError as error:  # the turns still count
            self.reason = f"no figures of the GPU: {error}"

    def timing(self, environment: Environment, conditions: Conditions) -> Timing:
        """The record."""
        declared, verdict = self.candidate.declaration, self.candidate.verdict
        made = untimed(
            self.pool.workload,
            environment,
            backend=declared.name,
            library=declared.library,
            library_version=declared.version,
            device=declared.device,
            status=self.status,
            reason=self.reason,
            verdict_level=verdict.level,
            conformant=verdict.conformant,
        )
        if self.ready is None or self.status == "not run":
            return made
        seconds = [turn.seconds for turn in self.turns]
        lower, median, upper = (float(x) for x in np.quantile(seconds, (0.25, 0.5, 0.75)))
        on_device = [t.device_seconds for t in self.turns if t.device_seconds is not None]
        floor = max(self.floors, key=lambda name: self.floors[name], default=None)
        wall = sum(turn.wall for turn in self.turns)
        chance = by_chance(len(seconds), environment.cores)
        made = dataclasses.replace(
            made,
            error_over_bound=None if self.error is None or math.isinf(self.error) else self.error,
            first_call=self.first_call,
            median=median,
            lower_quartile=lower,
            upper_quartile=upper,
            minimum=min(seconds),
            blocks=len(seconds) // len(self.candidate.workers),
            processes=len(self.candidate.workers),
            calls_per_turn=self.ready.calls_per_turn,
            device_median=float(np.median(on_device)) if on_device else None,
            peak_bytes=self.ready.peak_bytes,
            graph_seconds=self.figures.graph_seconds,
            cold_seconds=self.figures.cold_seconds,
            joules=self.figures.joules,
            flop=self.work.flop,
            bytes_moved=self.work.bytes,
            floor=floor,
            share=None if floor is None else self.floors[floor] / median,
            other_load=max(0.0, sum(turn.others for turn in self.turns) - chance) / wall,
            own_load=sum(turn.own for turn in self.turns) / wall,
            throttlings=conditions.throttlings,
            clock_drift=conditions.clock_drift,
            gpu_others=conditions.gpu_others,
            seed=SEED,
        )
        reason = void_reason(made) if self.status == "timed" else ""
        return dataclasses.replace(made, status="void", reason=reason) if reason else made

    def _ask(self, worker: Asked, name: str, *arguments: Any, seconds: float) -> Any:
        """A worker's answer; None where it has none, and then the candidate is out."""
        try:
            return worker.ask(name, *arguments, seconds=seconds)
        except OutError as error:
            self.status, self.reason = "not run", str(error)
            self.broken = not isinstance(error, RefusedError)
            return None

    def _release(self) -> None:
        """Let every process that still lives let go of the inputs."""
        for worker in self.candidate.workers:
            with contextlib.suppress(OutError):
                worker.ask("release", seconds=TURNING)

    def _judge(self, turn: Turn, look: int) -> None:
        assert turn.sample is not None
        precision = self.candidate.declaration.precision[self.pool.workload.dtype]
        error = self.check.error(turn.sample, turn.inputs, precision, look)
        come_to_rest()  # looking took this process's own threads
        self.error = max(error, self.error or 0.0)
        if math.isinf(error):
            self.reason = "a sampled output has a wrong shape, or a NaN or infinity out of place"
        elif error > 1:
            self.reason = f"a sampled output's error is {error:.3g} times its bound"
        self.status = "wrong" if error > 1 else "timed"


def failures(verdict: Verdict) -> str:
    """Which checks a candidate failed, in words."""
    failed = [result.check for result in verdict.results if result.status == "failed"]
    if not failed:
        return "not conformant: no check could be tried"
    return f"not conformant: {failed[0]}" + (f", {len(failed) - 1} more" if failed[1:] else "")


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
    for against in targets:
        for name in timed:
            if name == against:
                continue
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
