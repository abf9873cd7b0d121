"""A candidate's part in a contest: its turns, what is found of them, and the record of it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fullattention.bench.ceilings import Floor, impossible
from fullattention.bench.conditions import Conditions, by_chance, void_reason
from fullattention.bench.contest import LeftError, TakeTurn
from fullattention.bench.gpu_figures import GpuFigures
from fullattention.bench.inputs import DRAWN, SEED, InputPool
from fullattention.bench.rest import come_to_rest
from fullattention.bench.server import Ready, Turn
from fullattention.bench.spot_check import SpotCheck
from fullattention.bench.work import Work
from fullattention.bench.worker import FIGURING, PREPARING, TURNING, OutError, RefusedError
from fullattention.bench.workloads import Workload
from fullattention.conformance.subject import Declaration
from fullattention.records import Environment, Timing, Verdict

LOOKS = 0.25
"""Share of the turns in which one call's results are looked at; in the first turn of a process they
always are."""


TOO_FAST = "faster than the machine copies or multiplies"
"""Why a time is void."""


class Asked(Protocol):
    """What is needed of a `Worker` here."""

    def ask(self, name: str, *arguments: Any, seconds: float) -> Any:
        """Let the worker do something; see `Worker`."""


@dataclass(frozen=True)
class Candidate:
    """A candidate that may take part."""

    declaration: Declaration
    workers: Sequence[Asked]
    """Its processes."""
    verdict: Verdict
    asked: bool = False
    """Whether it was asked for by name."""


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
    """Seconds of the first call in its last process, which unlike the first process was not judged
    and made no call before; None if there is only one."""
    turns: list[Turn] = field(default_factory=list)
    """Those of all its processes, in the order in which they were taken."""
    looked_at: set[int] = field(default_factory=set)
    """Processes of which at least one result was looked at."""
    error: float | None = None
    """The largest error over its bound, of all that was looked at."""
    figures: GpuFigures = field(default_factory=GpuFigures)
    looks: random.Random = field(default_factory=lambda: random.Random(SEED))
    """Draws in which turns there is a look, and each look's number."""

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.candidate.declaration.name

    def prepare(self, warm_up: float, longest_call: float) -> bool:
        """Warm up each process for so many seconds; whether the candidate takes part.

        It does not where one call takes longer than `longest_call` seconds.
        """
        if not self.candidate.verdict.conformant:
            self.reason = failures(self.candidate.verdict)
            return False
        limit: float | None = longest_call  # of which the first process alone makes sure
        for worker in self.candidate.workers:
            arguments = (self.pool, warm_up, limit)
            ready: Ready | None = self._ask(worker, "prepare", *arguments, seconds=PREPARING)
            if ready is None:
                self._release()
                return False
            self.ready = self.ready or ready
            self.first_call, limit = ready.first_call, None
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
            self.reason = TOO_FAST
        if self.status != "timed":
            raise LeftError
        return turn.seconds

    def finish(self, longest_call: float) -> None:
        """See whether the inputs were changed, take a GPU's figures, and let the inputs go."""
        for worker in self.candidate.workers:
            if self.broken:
                break
            changed = self._ask(worker, "changed_inputs", seconds=TURNING)
            if changed:
                self.status, self.reason = "wrong", f"it changed its {' and '.join(changed)}"
        if self.status == "timed":
            self._take_figures(longest_call)
        self._release()

    def cut_off(self) -> None:
        """Note that its contest ended before all was known."""
        if self.status == "timed":
            self.status, self.reason = "incomplete", "the run was ended during its contest"

    def _take_figures(self, longest_call: float) -> None:
        """Take the GPU's figures in the first process, after the turns: they cannot spoil these."""
        worker = self.candidate.workers[0]
        try:
            self.figures = worker.ask("gpu_figures", longest_call, seconds=FIGURING)
        except OutError as error:  # the turns still count
            self.reason = f"no figures of the GPU: {error}"

    def timing(self, environment: Environment, conditions: Conditions) -> Timing:
        """The record of what was found."""
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
        """Compare the sample that a look brought with its bound."""
        assert turn.sample is not None
        precision = self.candidate.declaration.precision[self.pool.workload.dtype]
        error = self.check.error(turn.sample, turn.inputs, precision, look)
        come_to_rest()  # judging used threads of this process
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
