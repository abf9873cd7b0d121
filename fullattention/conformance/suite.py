"""Judges a candidate by the contract, in this process or in one of its own."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fullattention.backends.interface import Backend
from fullattention.conformance import contract
from fullattention.conformance.catalogue import selected
from fullattention.conformance.check import Check
from fullattention.conformance.diagnosis import diagnose
from fullattention.conformance.isolation import TIMEOUT, IsolatedCandidate, environment_here
from fullattention.conformance.ledger import (
    Exceptions,
    excepted,
    is_conformant,
    requirements,
    stale,
    unobserved,
)
from fullattention.conformance.subject import Declaration, Subject, declaration_of, load_subject
from fullattention.conformance.trial import result_of, run_check
from fullattention.records import SKIPPED, Level, Result, Verdict
from fullattention.version import __version__

Progress = Callable[[Result], None]

NO_EXCEPTIONS = Exceptions()


class Candidate(Protocol):
    """Something that checks can be run on."""

    declaration: Declaration

    def run(self, check: Check) -> Result:
        """What one check finds."""

    def diagnose(self, results: Sequence[Result]) -> Sequence[str]:
        """What it computes instead, or where it is wrong."""


class LocalCandidate:
    """A candidate in this process: quick to start, and trusted not to hang or crash."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.declaration = declaration_of(subject)

    def run(self, check: Check) -> Result:
        """What one check finds."""
        return run_check(self.subject, check)

    def diagnose(self, results: Sequence[Result]) -> Sequence[str]:
        """What it computes instead, or where it is wrong."""
        return diagnose(self.subject, results)


def check(
    candidate: str | Backend | Callable[..., Any],
    *,
    device: object = "cpu",
    level: Level = "quick",
    dtypes: Sequence[str] = (),
    only: str = "",
    exceptions: Exceptions = NO_EXCEPTIONS,
    progress: Progress | None = None,
) -> Verdict:
    """Judge a candidate by the contract, in this process.

    Args:
        candidate: a name, `module:object`, `path.py[:object]`, a Backend, a class with the layer's
            constructor and forward, or a function of q, k and v.
        device: where it runs, by name or as torch has it.
        level: "quick", "standard" or "full".
        dtypes: which to check; all that the candidate takes if empty.
        only: beginning of the ids of the checks to run, and no others.
        exceptions: checks that are expected to fail, or to be skipped.
        progress: called with each result as it comes.

    Raises:
        UnavailableError, LookupError, TypeError: as `backends.load`.
        ValueError: an unknown dtype or level, or no check has an id that begins with `only`.
    """
    verdict = judge_subject(
        load_subject(candidate, device),
        level=level,
        dtypes=dtypes,
        only=only,
        exceptions=exceptions,
        progress=progress,
    )
    spec = candidate if isinstance(candidate, str) else ""
    return dataclasses.replace(verdict, spec=spec, environment=environment_here())


def judge_subject(
    subject: Subject,
    *,
    level: Level = "quick",
    dtypes: Sequence[str] = (),
    only: str = "",
    exceptions: Exceptions = NO_EXCEPTIONS,
    progress: Progress | None = None,
) -> Verdict:
    """Judge a candidate that is loaded already; see `check`."""
    return _judge(LocalCandidate(subject), level, dtypes, only, exceptions, progress)


def check_isolated(
    candidate: str,
    *,
    device: object = "cpu",
    level: Level = "quick",
    dtypes: Sequence[str] = (),
    only: str = "",
    exceptions: Exceptions = NO_EXCEPTIONS,
    timeout: float = TIMEOUT,
) -> Verdict:
    """Judge a candidate in a process of its own, which it may hang or take down; see `check`.

    One check may take `timeout` seconds.

    Raises:
        ValueError: it is no finite number above 0.
    """
    if not 0 < timeout < math.inf:
        raise ValueError(f"timeout is {timeout:g}: a finite number of seconds above 0")
    with IsolatedCandidate(candidate, str(device), timeout=timeout) as isolated:
        verdict = _judge(isolated, level, dtypes, only, exceptions)
    return dataclasses.replace(verdict, spec=candidate, environment=isolated.environment)


def _judge(
    candidate: Candidate,
    level: Level,
    dtypes: Sequence[str],
    only: str,
    exceptions: Exceptions,
    progress: Progress | None = None,
) -> Verdict:
    """Run the selected checks and give the verdict."""
    declaration = candidate.declaration
    checks = selected(declaration.dtypes, level, dtypes, only)
    start = time.perf_counter()
    results: list[Result] = []
    for one in checks:
        results.append(_excepting(candidate, one, exceptions))
        if progress:
            progress(results[-1])
    if not only and not dtypes:
        tried = {one.id for one in checks}
        elsewhere = {one.id for one in selected(declaration.dtypes, "full")} - tried
        results += stale(results, exceptions, elsewhere)
        if level != "quick":  # which has not all that could show a deviation
            results += unobserved(declaration, results)
    conformant = is_conformant(results, some=bool(only))
    return Verdict(
        backend=declaration.name,
        library=declaration.library,
        library_version=declaration.version,
        device=declaration.device,
        precision={
            dtype: dataclasses.asdict(model) for dtype, model in declaration.precision.items()
        },
        lacks=declaration.lacks,
        deviates=declaration.deviates,
        level=level,
        dtypes=tuple(dtypes),
        only=only,
        contract=contract.VERSION,
        suite=__version__,
        conformant=conformant,
        diagnosis=() if conformant else tuple(candidate.diagnose(results)),
        requirements=requirements(results, level),
        results=tuple(results),
        offered=len(selected(declaration.dtypes, "full" if only else level)),
        seconds=time.perf_counter() - start,
    )


def _excepting(candidate: Candidate, check: Check, exceptions: Exceptions) -> Result:
    reason = exceptions.skipped.get(check.id)
    if reason is not None:
        return result_of(check, "not run", SKIPPED + reason)
    return excepted(candidate.run(check), exceptions)
