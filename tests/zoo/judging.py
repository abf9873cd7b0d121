"""How specimens are judged, where that is not the suite's to say."""

from __future__ import annotations

from fullattention.backends.precision import DTYPES
from fullattention.backends.torch_leak import leaks
from fullattention.conformance.catalogue import catalogue
from fullattention.conformance.check import Check
from fullattention.conformance.subject import Subject
from fullattention.conformance.trial import run_check
from fullattention.records import Level, Result

SECTIONS = ("core", "scale", "mask", "numerics", "weights", "dropout")


def checks_of(level: Level, dtypes: tuple[str, ...] = DTYPES) -> list[Check]:
    return [one for one in catalogue(dtypes, level) if one.section in SECTIONS]


def first_failure(subject: Subject, requirements: tuple[str, ...]) -> Result | None:
    """One failed check is enough to be nonconformant."""
    for one in checks_of("standard", tuple(d for d in DTYPES if d in subject.precision)):
        if one.requirement in requirements:
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
