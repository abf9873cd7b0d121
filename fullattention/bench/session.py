"""One run of the benchmarks: its backends, their verdicts, its machine, and where records go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fullattention.backends import UnavailableError
from fullattention.bench.options import Options, options_of
from fullattention.bench.timing import THOROUGH, Effort, Measure, first_line, not_run, time_subject
from fullattention.bench.workloads import Workload
from fullattention.conformance.subject import Subject, load_subject
from fullattention.conformance.suite import judge_subject
from fullattention.machine.environment import environment
from fullattention.machine.threads import set_threads
from fullattention.records import Timing, Verdict, write

TIMINGS = "timings.jsonl"
VERDICTS = "verdicts.jsonl"


class BenchSession:
    """Times workloads on candidates, each candidate only once it is known to be right.

    Raises:
        LookupError: there is no such backend.
        TypeError: something else goes by that name.
        ValueError: two candidates have one name, or the folder holds another run's timings.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.subjects = {spec: _load(spec, options.device) for spec in options.backends}
        _require_different_names(self.subjects)
        # Only now are the libraries loaded that have threads to set and a BLAS to name.
        set_threads(options.threads)
        self.environment = environment(options.threads)
        self.effort = THOROUGH if options.full else Effort()
        self.verdicts: dict[tuple[str, str], Verdict] = {}
        if options.out is not None:
            _claim(options.out)

    def time(
        self, spec: str, workload: Workload, measure: Measure, tell: Callable[[Timing], None]
    ) -> Timing:
        """One timing, recorded and told as soon as it is made, whatever comes of it.

        An error of the candidate's own is recorded too, and then passed on.
        """
        try:
            timing = self._time(spec, workload, measure)
        except Exception as error:
            reason = f"raised {type(error).__name__}: {first_line(error)}"
            self._record(self._not_run(spec, workload, reason), tell)
            raise
        self._record(timing, tell)
        return timing

    def _time(self, spec: str, workload: Workload, measure: Measure) -> Timing:
        subject = self.subjects[spec]
        if isinstance(subject, UnavailableError):
            return self._not_run(spec, workload, subject.reason)
        if workload.dtype not in subject.precision:
            takes = f"it takes {', '.join(subject.precision)}"
            reason = f"{workload.dtype}: {subject.lacks.get(workload.dtype, takes)}"
            return self._not_run(spec, workload, reason)
        return time_subject(
            subject,
            workload,
            verdict=self._verdict(subject, workload.dtype),
            environment=self.environment,
            measure=measure,
            effort=self.effort,
        )

    def _not_run(self, spec: str, workload: Workload, reason: str) -> Timing:
        subject = self.subjects[spec]
        return not_run(
            workload,
            self.environment,
            backend=_name(spec, subject),
            version=subject.version if isinstance(subject, Subject) else "",
            device=self.options.device,
            reason=reason,
            verdict=self.verdicts.get((_name(spec, subject), workload.dtype)),
        )

    def _verdict(self, subject: Subject, dtype: str) -> Verdict:
        """The verdict on a candidate in a dtype, reached in this process and only once."""
        if (subject.name, dtype) not in self.verdicts:
            verdict = judge_subject(subject, level="quick", dtypes=(dtype,))
            self.verdicts[subject.name, dtype] = verdict
            if self.options.out is not None:
                write(self.options.out / VERDICTS, [verdict])
        return self.verdicts[subject.name, dtype]

    def _record(self, timing: Timing, tell: Callable[[Timing], None]) -> None:
        if self.options.out is not None:
            write(self.options.out / TIMINGS, [timing])
        tell(timing)


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


def _name(spec: str, subject: Subject | UnavailableError) -> str:
    return subject.name if isinstance(subject, Subject) else spec


def _require_different_names(subjects: Mapping[str, Subject | UnavailableError]) -> None:
    """Refuse candidates that records could not tell apart.

    Raises:
        ValueError: two have the same name; the message says which.
    """
    first: dict[str, str] = {}
    for spec, subject in subjects.items():
        name = _name(spec, subject)
        if name in first:
            raise ValueError(f"backend {first[name]} and {spec} are both called {name!r}")
        first[name] = spec


def _claim(folder: Path) -> None:
    """Make a folder ready for records.

    Raises:
        ValueError: it holds another run's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / TIMINGS).exists():
        raise ValueError(f"out is {folder}: it holds the timings of another run")
