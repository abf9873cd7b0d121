"""How specimens are judged, where that is not the suite's to say."""

from __future__ import annotations

from collections.abc import Iterable

from fullattention.backends.torch_leak import leaks
from fullattention.conformance.catalogue import LEVELS, catalogue
from fullattention.conformance.check import Check
from fullattention.conformance.subject import Subject
from fullattention.conformance.trial import run_check
from fullattention.records import Result


def checks_of(requirements: tuple[str, ...], dtypes: tuple[str, ...]) -> list[Check]:
    """Those of the standard level; of what it has none of, those of the full level."""
    for level in LEVELS[1:]:
        found = [one for one in catalogue(dtypes, level) if one.requirement in requirements]
        if found:
            return found
    return []


def first_failure(subject: Subject, requirements: tuple[str, ...]) -> Result | None:
    """What is found of a subject where it breaks one of these requirements."""
    return first_failed(subject, checks_of(requirements, subject.dtypes))


def first_failed(subject: Subject, checks: Iterable[Check]) -> Result | None:
    """One failed check is enough to be nonconformant."""
    for one in checks:
        result = run_check(subject, one)
        if result.status == "failed":
            return result
    return None


def torchs_own(name: str, result: Result) -> bool:
    """Whether it is torch that misplaces a NaN: its bfloat16 product does on CPUs with AMX."""
    return (
        name == "UpstreamLayer"
        and result.dtype == "bfloat16"
        and result.requirement in ("M6", "N4")
        and "got nan" in result.detail
        and leaks()
    )
