"""What a verdict comes to, in a few words: what it leaves out is said with it."""

from __future__ import annotations

from collections import Counter

from fullattention.records import SKIPPED, Result, Verdict
from fullattention.units import counted

MOST_NAMED = 3
"""Requirements that are named one by one."""

LONGEST = 24
"""Characters of a check's id."""


def outcome(verdict: Verdict) -> str:
    """Whether the backend is conformant, but for which deviations, and in which part of all."""
    if not verdict.judged:
        return "not judged: no check could be tried"
    if not verdict.conformant:
        return "not conformant"
    part = restrictions(verdict)
    return f"conformant{_deviations(verdict)}" + (
        f" in {_met(verdict)} ({', '.join(part)})" if part else ""
    )


def restrictions(verdict: Verdict) -> list[str]:
    """What makes a verdict one of a part of the checks only; empty if it is of all."""
    part = []
    if verdict.only:
        short = len(verdict.only) <= LONGEST
        part.append(f"only {verdict.only if short else verdict.only[: LONGEST - 3] + '...'}")
    if verdict.dtypes and not set(verdict.precision) <= set(verdict.dtypes):
        part.append(f"{', '.join(verdict.dtypes)} only")
    expected = sum(result.status == "expected" for result in verdict.results)
    skipped = sum(_is_skipped(result) for result in verdict.results)
    part += [counted(expected, "expected failure")] if expected else []
    part += [f"{skipped} skipped"] if skipped else []
    return part


def tried(verdict: Verdict) -> int:
    """How many checks ran."""
    return sum(is_tried(result) for result in verdict.results)


def is_tried(result: Result) -> bool:
    """Whether a check ran: it did not where a declaration or an exception is out of date."""
    return result.status not in ("unsupported", "not run") and bool(result.dtype)


def _deviations(verdict: Verdict) -> str:
    ids = list(dict.fromkeys(r.requirement for r in verdict.results if r.status == "deviates"))
    more = f" and {len(ids) - MOST_NAMED} more" if ids[MOST_NAMED:] else ""
    return f" but for {', '.join(ids[:MOST_NAMED])}{more}" if ids else ""


def _met(verdict: Verdict) -> str:
    """How many checks are met, or deviate as declared, and of how many."""
    counts = Counter(result.status for result in verdict.results)
    met = counts["passed"] + counts["deviates"]
    return f"{met} of {counted(max(verdict.offered, len(verdict.results)), 'check')}"


def _is_skipped(result: Result) -> bool:
    return result.status == "not run" and result.detail.startswith(SKIPPED)
