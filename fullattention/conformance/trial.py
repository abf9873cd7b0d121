"""Tries one check on a candidate: whatever the candidate does becomes a result."""

from __future__ import annotations

import dataclasses
import re
import warnings

from fullattention.backends.errors import UnsupportedError, described
from fullattention.backends.interface import CAPABILITIES
from fullattention.conformance import contract
from fullattention.conformance.case import Failed, NotHere, Refused
from fullattention.conformance.check import Check, Evidence
from fullattention.conformance.data import numpy_dtype
from fullattention.conformance.subject import Declaration, Subject
from fullattention.records import Result, Status

LIMIT = re.compile(r"(?<![\w.])\d")
"""The beginning of a number; the digits of a name, such as float32, are none."""


def run_check(subject: Subject, check: Check) -> Result:
    """Try one check on a candidate; whatever it raises becomes part of the result."""
    missing = _missing(subject, check)
    if missing is not None:
        return missing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NaN and overflow are part of many cases
            found = check.run(subject)
    except Failed as error:
        return _wrong(subject, check, error)
    except NotHere as error:
        return result_of(check, "not run", str(error))
    except Refused as error:
        return result_of(check, "unsupported", str(error))
    except UnsupportedError as error:
        return _unsupported(subject, check, error)
    except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001 - a candidate's own
        return result_of(check, "failed", f"raised {described(error)}")
    evidence = found if isinstance(found, Evidence) else Evidence(ratio=found)
    passed = result_of(check, "passed", ratio=evidence.ratio)
    return dataclasses.replace(passed, bits=evidence.bits, warning=evidence.warning)


def _missing(subject: Subject, check: Check) -> Result | None:
    """The result of a check that cannot be tried; None if it can."""
    for need in sorted(check.needs):
        if need in subject.lacks:
            return result_of(check, "unsupported", f"{need}: {subject.lacks[need]}")
    if check.dtype not in subject.precision:
        reason = subject.lacks.get(check.dtype, f"it takes {', '.join(subject.precision)}")
        return result_of(check, "unsupported", f"{check.dtype}: {reason}")
    try:
        numpy_dtype(check.dtype)
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed: pip install 'fullattention[suite]'"
        return result_of(check, "not run", reason)
    return None


def _wrong(declaration: Declaration, check: Check, error: Failed) -> Result:
    """A wrong answer fails, or deviates where the candidate declares so.

    Only an answer does: a declared deviation excuses no exception, hang or crash.
    """
    reason = declaration.deviates.get(check.requirement)
    if reason is None:
        return result_of(check, "failed", str(error), error.ratio)
    if check.requirement in contract.UNDENIABLE:
        detail = f"{error}; no deviation can be declared from {check.requirement}"
        return result_of(check, "failed", detail, error.ratio)
    return result_of(check, "deviates", f"declared: {reason}; observed: {error}", error.ratio)


def _unsupported(declaration: Declaration, check: Check, error: UnsupportedError) -> Result:
    """A refusal, which fails unless it is declared, or by a limit that its reason names."""
    asked, reason = error.capability, error.reason
    known = asked in CAPABILITIES or asked in declaration.precision
    if asked not in declaration.lacks and (known or not LIMIT.search(reason)):
        why = "it does not declare lacking" if known else "is no capability, and no limit is named"
        return result_of(check, "failed", f"refused for want of {asked!r}, which {why}: {reason}")
    return result_of(check, "unsupported", f"{asked}: {reason}")


def result_of(check: Check, status: Status, detail: str = "", ratio: float | None = None) -> Result:
    """What a check came to."""
    return Result(
        check=check.id,
        requirement=check.requirement,
        section=check.section,
        dtype=check.dtype,
        status=status,
        detail=detail,
        ratio=ratio,
    )
