"""Runs the checks on a candidate and gives the verdict."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from fullattention.backends.errors import UnsupportedError
from fullattention.backends.interface import Backend
from fullattention.backends.precision import DTYPES
from fullattention.conformance import contract, core, dropout, mask, numerics, scale, weights
from fullattention.conformance.case import Failed, Refused
from fullattention.conformance.check import Check
from fullattention.conformance.data import numpy_dtype
from fullattention.conformance.subject import Subject, load_subject
from fullattention.records import Result, Status, Verdict

Level = Literal["quick", "standard"]
LEVELS: tuple[Level, ...] = ("quick", "standard")

Progress = Callable[[Result], None]

_SECTIONS = (core, scale, mask, numerics, weights, dropout)


@functools.cache
def catalogue(dtypes: tuple[str, ...], level: Level) -> tuple[Check, ...]:
    """Every check for some dtypes at a level, in the contract's order.

    What does not depend on precision is tried in one dtype: float32 where it is among them.
    """
    primary = "float32" if "float32" in dtypes else dtypes[0]
    return tuple(
        check
        for section in _SECTIONS
        for dtype in dtypes
        for check in section.checks(dtype, dtype == primary)
        if check.quick or level == "standard"
    )


def check(
    candidate: str | Backend | type,
    *,
    device: str = "cpu",
    level: Level = "quick",
    dtypes: Sequence[str] = (),
    only: str = "",
    progress: Progress | None = None,
) -> Verdict:
    """Judge a candidate by the contract.

    Args:
        candidate: a name, `module:object`, `path.py[:object]`, Backend, or class with the layer's
            constructor and forward.
        device: where it runs.
        level: "quick" or "standard".
        dtypes: which to check; all that the candidate takes if empty.
        only: id of a check, or its beginning, to run nothing else.
        progress: called with each result as it comes.

    Raises:
        UnavailableError, LookupError, TypeError: as `backends.load`.
        ValueError: an unknown dtype or level, or no check has an id that begins with `only`.
    """
    return judge_subject(
        load_subject(candidate, device), level=level, dtypes=dtypes, only=only, progress=progress
    )


def judge_subject(
    subject: Subject,
    *,
    level: Level = "quick",
    dtypes: Sequence[str] = (),
    only: str = "",
    progress: Progress | None = None,
) -> Verdict:
    """Judge a loaded candidate; see `check`."""
    if level not in LEVELS:
        raise ValueError(f"level is {level!r}: one of {', '.join(LEVELS)}")
    checks = _selected(subject, level, dtypes, only)
    start = time.perf_counter()
    results: list[Result] = []
    for one in checks:
        results.append(run_check(subject, one))
        if progress:
            progress(results[-1])
    if level == "standard" and not only and not dtypes:
        results += stale(subject, results)
    from fullattention import __version__  # not at import: the package imports its parts

    return Verdict(
        backend=subject.name,
        library=subject.library,
        library_version=subject.version,
        device=subject.device,
        level=level,
        contract=contract.VERSION,
        suite=__version__,
        conformant=is_conformant(results),
        results=tuple(results),
        seconds=time.perf_counter() - start,
    )


def _selected(subject: Subject, level: Level, dtypes: Sequence[str], only: str) -> Sequence[Check]:
    unknown = sorted(set(dtypes) - set(DTYPES))
    if unknown:
        raise ValueError(f"dtype {', '.join(unknown)} is unknown: one of {', '.join(DTYPES)}")
    wanted = tuple(dtypes) or tuple(dtype for dtype in DTYPES if dtype in subject.precision)
    if not only:
        return catalogue(wanted, level)
    found = [one for one in catalogue(wanted, "standard") if one.id.startswith(only)]
    if not found:
        raise ValueError(f"no check of {', '.join(wanted)} has an id that begins with {only!r}")
    return found


def is_conformant(results: Iterable[Result]) -> bool:
    """Whether nothing failed and enough was tried to say so: a passed comparison of numbers."""
    results = list(results)
    return not any(result.status == "failed" for result in results) and any(
        result.status == "passed" and result.ratio is not None for result in results
    )


def run_check(subject: Subject, check: Check) -> Result:
    """Try one check on a candidate; whatever it raises becomes part of the result."""
    status, detail, ratio = _outcome(subject, check)
    if status == "failed" and check.requirement in subject.deviates:
        status = "deviates"
        detail = f"declared: {subject.deviates[check.requirement]}; observed: {detail}"
    return Result(
        check=check.id,
        requirement=check.requirement,
        section=check.section,
        dtype=check.dtype,
        status=status,
        detail=detail,
        ratio=ratio,
    )


def _outcome(subject: Subject, check: Check) -> tuple[Status, str, float | None]:
    for need in sorted(check.needs):
        if need in subject.lacks:
            return "unsupported", f"{need}: {subject.lacks[need]}", None
    if check.dtype not in subject.precision:
        reason = subject.lacks.get(check.dtype, f"it takes {', '.join(subject.precision)}")
        return "unsupported", f"{check.dtype}: {reason}", None
    try:
        numpy_dtype(check.dtype)
    except ModuleNotFoundError as error:
        return "not run", f"{error.name} is not installed: pip install 'fullattention[suite]'", None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NaN and overflow are part of many cases
            ratio = check.run(subject)
    except Failed as error:
        return "failed", str(error), error.ratio
    except Refused as error:
        return "unsupported", str(error), None
    except UnsupportedError as error:
        return "unsupported", f"{error.capability}: {error.reason}", None
    except Exception as error:  # noqa: BLE001 - a candidate may raise anything
        return "failed", f"raised {type(error).__qualname__}: {error}", None
    return "passed", "", ratio


def stale(subject: Subject, results: Sequence[Result]) -> list[Result]:
    """A failure for each declared deviation that was tried and not observed."""
    stale = []
    for requirement, reason in subject.deviates.items():
        tried = [result for result in results if result.requirement == requirement]
        executed = [result for result in tried if result.status in ("passed", "deviates")]
        if executed and not any(result.status == "deviates" for result in executed):
            stale.append(
                Result(
                    check=f"{requirement}: declared deviation",
                    requirement=requirement,
                    section=contract.SECTION_OF[requirement],
                    dtype=executed[0].dtype,
                    status="failed",
                    detail=f"a deviation is declared and no longer observed: {reason}",
                )
            )
    return stale
