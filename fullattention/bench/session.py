"""One run of the benchmarks: its workers, their verdicts, its machine, and where records go."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from fullattention.backends import UnavailableError
from fullattention.bench.ceilings import best_of, ceilings, floors, impossible, measure_apart
from fullattention.bench.entry import TOO_FAST, Candidate, untimed
from fullattention.bench.inputs import SEED, InputPool
from fullattention.bench.limits import TooLargeError, require_disk
from fullattention.bench.measure import THOROUGH, Effort, Measured, measure
from fullattention.bench.options import Options, options_of
from fullattention.bench.work import work
from fullattention.bench.worker import JUDGING, TURNING, OutError, Worker
from fullattention.bench.workloads import Workload
from fullattention.conformance.candidate_process import uninterrupted
from fullattention.conformance.subject import Declaration
from fullattention.machine import hardware
from fullattention.machine.environment import environment
from fullattention.records import (
    CEILINGS,
    COMPARISONS,
    TIMINGS,
    VERDICTS,
    Ceilings,
    Comparison,
    Environment,
    Timing,
    Verdict,
    require_unused,
    write,
)

COMPILES = "it compiles for minutes before it can be judged and timed: name it, or use --full"

LOSSES = 3
"""Processes that a candidate may take down before the rest of its workloads are given up."""


class BenchSession:
    """Times workloads on candidates, each candidate only once it is known to be right.

    Args:
        options: what to time, and how.
        out: folder that the records are appended to; None: they are not kept.

    Raises:
        LookupError: there is no backend of a name that was given.
        TypeError: something else goes by such a name.
        ValueError: two candidates have one name, or the folder cannot be written or holds another
            run's timings.
    """

    def __init__(self, options: Options, out: Path | None = None) -> None:
        if out is not None:
            require_unused("out", out)
        self.load = hardware.load_average()  # our own processes are about to raise it
        self.options = options
        self.out = out
        self.effort = _effort(options)
        self.processes = self.effort.processes
        self.workers: dict[str, list[Worker]] = {spec: [] for spec in options.backends}
        try:
            for spec in options.backends:
                self._start(spec, self.processes)
            self.declarations = {spec: self._declared(spec) for spec in options.backends}
            _require_different_names(self.declarations)
            self._start_more()
            self.environment = self._environment()
            self.rates = measure_apart(options.device, options.threads)
            if out is not None:
                _claim(out)
            if self.rates is not None:
                self._write(CEILINGS, [ceilings(self.rates, options.device, self.environment)])
        except BaseException:
            self.close()
            raise
        self.losses = dict.fromkeys(options.backends, 0)
        self.verdicts: dict[tuple[str, str], Verdict] = {}
        self.measured: dict[Workload, Measured] = {}

    def close(self) -> None:
        """End all workers, those too that are left where Ctrl-C comes meanwhile.

        They ignore what would end them, so that this process would wait for them without end.
        """
        with contextlib.ExitStack() as stack:
            for workers in self.workers.values():
                for worker in workers:
                    stack.callback(worker.stop)

    def measure(self, workload: Workload) -> Measured:
        """What the contest of all candidates on a workload gives; it is held only once.

        Its records are written before anything else can happen; those of a contest that is
        interrupted too, as incomplete.
        """
        if workload not in self.measured:
            self.measured[workload] = found = self._measure(workload)
            self._write(TIMINGS, found.timings.values())
            self._write(COMPARISONS, found.comparisons)
        return self.measured[workload]

    def name(self, spec: str) -> str:
        """The candidate's own name, by which records call it."""
        return _name(spec, self.declarations[spec])

    def _measure(self, workload: Workload) -> Measured:
        candidates, missing = [], {}
        with tempfile.TemporaryDirectory(prefix="fullattention-") as folder:
            pool = InputPool(Path(folder) / "inputs", workload)
            for spec in self.options.backends:
                found = self._candidate(spec, pool)
                if isinstance(found, Timing):
                    missing[found.backend] = found
                else:
                    candidates.append(found)
            if not candidates:
                return Measured(missing, (), {}, {})
            pool.write(SEED)
            measured = self._contest(pool, candidates)
            if self._ceilings_were_too_low(measured, workload):
                measured = self._contest(pool, candidates)
        names = map(self.name, self.options.backends)
        timings = {**missing, **measured.timings}
        return dataclasses.replace(measured, timings={name: timings[name] for name in names})

    def _contest(self, pool: InputPool, candidates: Sequence[Candidate]) -> Measured:
        return measure(
            pool,
            candidates,
            environment=self.environment,
            effort=self.effort,
            rates=self.rates,
            salvage=functools.partial(self._write, TIMINGS),
        )

    def _ceilings_were_too_low(self, measured: Measured, workload: Workload) -> bool:
        """Measure the ceilings again if a time is void; whether they allow such a time now.

        Others may have held the machine back when they were first measured.
        """
        void = [one.minimum for one in measured.timings.values() if one.reason == TOO_FAST]
        if not void or self.rates is None:
            return False
        again = measure_apart(self.options.device, self.options.threads)
        if again is None:
            return False
        self.rates = best_of(self.rates, again)
        self._write(CEILINGS, [ceilings(self.rates, self.options.device, self.environment)])
        least = impossible(floors(work(workload), self.rates))
        return any(seconds is not None and seconds >= least for seconds in void)

    def _candidate(self, spec: str, pool: InputPool) -> Candidate | Timing:
        """The candidate, or why it cannot take part, before its inputs are written."""
        declared, workload = self.declarations[spec], pool.workload
        dtype = workload.dtype
        if isinstance(declared, UnavailableError):
            return self._untimed(spec, workload, declared.reason)
        if dtype not in declared.precision:
            takes = f"it takes {', '.join(declared.precision)}"
            return self._untimed(spec, workload, f"{dtype}: {declared.lacks.get(dtype, takes)}")
        try:
            require_disk(pool)
            workers = self._living(spec)
            workers[0].ask("require_room", workload, seconds=TURNING)
            verdict = self._verdict(spec, workers[0], dtype)
            return Candidate(declared, workers, verdict, asked=self.options.named)
        except (TooLargeError, OutError) as error:
            return self._untimed(spec, workload, str(error))

    def _untimed(self, spec: str, workload: Workload, reason: str) -> Timing:
        declared = self.declarations[spec]
        told: dict[str, str] = {}
        if isinstance(declared, Declaration):
            told = {"library": declared.library, "library_version": declared.version}
        return untimed(
            workload,
            self.environment,
            backend=self.name(spec),
            device=self.options.device,
            reason=reason,
            **told,
        )

    def _declared(self, spec: str) -> Declaration | UnavailableError:
        """What a candidate says of itself, or why it takes no part in any contest."""
        declared = self._loaded(spec, self.workers[spec])
        compiles = isinstance(declared, Declaration) and declared.compiles
        if compiles and not self.options.compiling:
            _stop(self.workers[spec])
            return UnavailableError(spec, COMPILES)
        return declared

    def _loaded(self, spec: str, workers: Sequence[Worker]) -> Declaration | UnavailableError:
        """What a candidate says of itself, once all of some processes have loaded it.

        Where it was not named but is merely installed, whatever is wrong with it stops nobody else.
        """
        try:
            first, *_ = [worker.declaration() for worker in workers]
        except UnavailableError as error:
            unavailable = error
        except OutError as error:
            unavailable = UnavailableError(spec, f"{error}, at import")
        except (LookupError, TypeError) as error:
            if self.options.named:
                raise
            unavailable = UnavailableError(spec, str(error))
        else:
            return first
        _stop(self.workers[spec])
        return unavailable

    def _start(self, spec: str, count: int) -> list[Worker]:
        """Start more processes of a candidate, which `close` knows whenever Ctrl-C comes."""
        workers = self.workers[spec]
        known = len(workers)
        with uninterrupted():
            for _ in range(count):
                workers.append(Worker(spec, self.options.device, self.options.threads))
        return workers[known:]

    def _start_more(self) -> None:
        """More processes of each candidate where few of the candidates can be loaded."""
        there = [s for s, found in self.declarations.items() if isinstance(found, Declaration)]
        missing = self.effort.processes_of_each(len(there)) - self.processes
        started = {spec: self._start(spec, missing) for spec in there}
        self.processes += missing
        for spec, workers in started.items():
            if workers:
                self.declarations[spec] = self._loaded(spec, workers)

    def _living(self, spec: str) -> list[Worker]:
        """The candidate's workers, all started anew after each one that it took down.

        Raises:
            OutError: it took down too many, or does not load again.
        """
        if all(worker.process.alive for worker in self.workers[spec]):
            return self.workers[spec]
        self.losses[spec] += 1
        if self.losses[spec] >= LOSSES:
            raise OutError(f"{LOSSES} processes hung or were taken down before")
        _stop(self.workers[spec])
        self.workers[spec] = []
        self._start(spec, self.processes)
        # A verdict is that of a process that is timed.
        self.verdicts = {key: one for key, one in self.verdicts.items() if key[0] != spec}
        try:
            for worker in self.workers[spec]:
                worker.declaration()
        except (OutError, UnavailableError, LookupError, TypeError) as error:
            self.losses[spec] = LOSSES
            raise OutError(f"could not be loaded again: {error}") from error
        return self.workers[spec]

    def _verdict(self, spec: str, worker: Worker, dtype: str) -> Verdict:
        """The verdict on a candidate in a dtype, reached in one of its workers and only once.

        Raises:
            OutError: judging took the worker down.
        """
        if (spec, dtype) not in self.verdicts:
            verdict: Verdict = worker.ask("judge", dtype, seconds=JUDGING)
            self.verdicts[spec, dtype] = verdict
            self._write(VERDICTS, [verdict])
        return self.verdicts[spec, dtype]

    def _environment(self) -> Environment:
        """This machine's, with the BLAS libraries that the workers have loaded."""
        found = {name for workers in self.workers.values() for w in workers for name in w.blas}
        return dataclasses.replace(
            environment(self.options.threads), blas=tuple(sorted(found)), load=self.load
        )

    def _write(
        self, name: str, records: Collection[Timing | Verdict | Comparison | Ceilings]
    ) -> None:
        if self.out is not None and records:
            write(self.out / name, records)


SESSION = pytest.StashKey[BenchSession]()


def bench_session(config: pytest.Config) -> BenchSession:
    """The session of a pytest run, made when it is first asked for.

    Raises:
        pytest.UsageError: an option makes no sense; the message says which and why.
    """
    if SESSION not in config.stash:
        try:
            session = BenchSession(options_of(config), config.getoption("out"))
        except (LookupError, TypeError, ValueError) as error:
            raise pytest.UsageError(error.args[0]) from error
        config.stash[SESSION] = session
        config.add_cleanup(session.close)
    return config.stash[SESSION]


def _effort(options: Options) -> Effort:
    usual = THOROUGH if options.full else Effort()
    seconds = usual.contest if options.seconds is None else options.seconds
    return dataclasses.replace(usual, contest=seconds)


def _stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.stop()


def _name(spec: str, declaration: Declaration | UnavailableError) -> str:
    return declaration.name if isinstance(declaration, Declaration) else spec


def _require_different_names(
    declarations: Mapping[str, Declaration | UnavailableError],
) -> None:
    """Refuse candidates that records could not tell apart.

    Raises:
        ValueError: two have the same name; the message says which.
    """
    first: dict[str, str] = {}
    for spec, declaration in declarations.items():
        name = _name(spec, declaration)
        if name in first:
            raise ValueError(f"backend {first[name]} and {spec} are both called {name!r}")
        first[name] = spec


def _claim(folder: Path) -> None:
    """Make a folder for records, unless another run did so since it was tried.

    Raises:
        ValueError: none can be written there any more, or it holds another run's.
    """
    require_unused("out", folder)
    folder.mkdir(parents=True, exist_ok=True)
