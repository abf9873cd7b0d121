"""One run of the benchmarks: its backends, their verdicts, its machine, and where records go."""

from __future__ import annotations

from pathlib import Path

import pytest

from fullattention.backends import UnavailableError
from fullattention.bench.environment import environment
from fullattention.bench.options import Options, options_of
from fullattention.bench.threads import set_threads
from fullattention.bench.timing import THOROUGH, Effort, Measure, not_run, time_subject
from fullattention.bench.workloads import Workload
from fullattention.conformance.subject import Subject, load_subject
from fullattention.conformance.suite import judge_subject
from fullattention.records import Timing, Verdict, write

TIMINGS = "timings.jsonl"
VERDICTS = "verdicts.jsonl"


class BenchSession:
    """Times workloads on candidates, each candidate only once it is known to be right.

    Raises:
        LookupError: there is no such backend.
        TypeError: something else goes by that name.
        ValueError: the folder holds another run's timings.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.subjects = {spec: _load(spec, options.device) for spec in options.backends}
        # Only now are the libraries loaded that have threads to set and a BLAS to name.
        set_threads(options.threads)
        self.environment = environment(options.threads)
        self.effort = THOROUGH if options.full else Effort()
        self.verdicts: dict[tuple[str, str], Verdict] = {}
        if options.out is not None:
            _claim(options.out)

    def time(self, spec: str, workload: Workload, measure: Measure) -> Timing:
        """One timing, recorded as soon as it is made, whatever comes of it."""
        subject = self.subjects[spec]
        if isinstance(subject, UnavailableError):
            return self._record(self._not_run(workload, spec, subject.reason))
        if workload.dtype not in subject.precision:
            takes = f"it takes {', '.join(subject.precision)}"
            reason = f"{workload.dtype}: {subject.lacks.get(workload.dtype, takes)}"
            return self._record(self._not_run(workload, subject.name, reason, subject.version))
        try:
            return self._record(
                time_subject(
                    subject,
                    workload,
                    verdict=self._verdict(subject, workload.dtype),
                    environment=self.environment,
                    measure=measure,
                    effort=self.effort,
                )
            )
        except Exception as error:
            reason = f"raised {type(error).__name__}: {error}"
            self._record(self._not_run(workload, subject.name, reason, subject.version))
            raise

    def _not_run(self, workload: Workload, name: str, reason: str, version: str = "") -> Timing:
        return not_run(
            workload,
            self.environment,
            backend=name,
            device=self.options.device,
            version=version,
            reason=reason,
        )

    def _verdict(self, subject: Subject, dtype: str) -> Verdict:
        """The verdict on a candidate in a dtype, reached in this process and only once."""
        if (subject.name, dtype) not in self.verdicts:
            verdict = judge_subject(subject, level="quick", dtypes=(dtype,))
            self.verdicts[subject.name, dtype] = verdict
            if self.options.out is not None:
                write(self.options.out / VERDICTS, [verdict])
        return self.verdicts[subject.name, dtype]

    def _record(self, timing: Timing) -> Timing:
        if self.options.out is not None:
            write(self.options.out / TIMINGS, [timing])
        return timing


SESSION = pytest.StashKey[BenchSession]()


def bench_session(config: pytest.Config) -> BenchSession:
    """The session of a pytest run, made when it is first asked for.

    Raises:
        pytest.UsageError: an option makes no sense; the message says which and why.
    """
    if SESSION not in config.stash:
        try:
            config.stash[SESSION] = BenchSession(options_of(config))
        except (LookupError, TypeError, ValueError) as error:
            raise pytest.UsageError(error.args[0]) from error
    return config.stash[SESSION]


def _load(spec: str, device: str) -> Subject | UnavailableError:
    try:
        return load_subject(spec, device)
    except UnavailableError as error:
        return error


def _claim(folder: Path) -> None:
    """Make a folder ready for records.

    Raises:
        ValueError: it holds another run's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / TIMINGS).exists():
        raise ValueError(f"out is {folder}: it holds the timings of another run")
