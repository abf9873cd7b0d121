"""Compares a recorded verdict with one reached anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fullattention.conformance.ledger import Exceptions, is_conformant
from fullattention.records import SKIPPED, Verdict

FACTOR = 2.0
"""Factor by which a requirement's worst error over bound may change: libraries sum in another order
on another machine, or with another number of threads."""

SMALL = 0.05
"""An error over bound below which no change is told."""


def differences(recorded: Verdict, anew: Verdict) -> list[str]:
    """What a second run found otherwise, a line each: the outcome first, and what it rests on."""
    return [
        *_outcome(recorded, anew),
        *_versions(recorded, anew),
        *_declarations(recorded, anew),
        *_statuses(recorded, anew),
        *_errors(recorded, anew),
    ]


def contradictions(recorded: Verdict) -> list[str]:
    """A line if a record's outcome is not what its own results come to: it was edited."""
    follows = is_conformant(recorded.results, some=bool(recorded.only))
    if recorded.conformant == follows:
        return []
    return [f"the record says {_said(recorded.conformant)}, and its results say {_said(follows)}"]


def _outcome(recorded: Verdict, anew: Verdict) -> Iterator[str]:
    if recorded.conformant != anew.conformant:
        before, after = _said(recorded.conformant), _said(anew.conformant)
        yield f"{recorded.backend}: was {before}, is {after}"


def _said(conformant: bool) -> str:
    return "conformant" if conformant else "NOT CONFORMANT"


def _versions(recorded: Verdict, anew: Verdict) -> Iterator[str]:
    for name, before, after in (
        ("suite", recorded.suite, anew.suite),
        ("contract", recorded.contract, anew.contract),
        (recorded.library, recorded.library_version, anew.library_version),
    ):
        if before != after:
            yield f"{name} was {before}, is {after}"


def _declarations(recorded: Verdict, anew: Verdict) -> Iterator[str]:
    for dtype in {**recorded.precision, **anew.precision}:
        before, after = (one.precision.get(dtype) for one in (recorded, anew))
        if before is None or after is None:
            yield f"{dtype}: was {_declared(before)}, is {_declared(after)}"
        else:
            yield from _changed(f"precision of {dtype}: ", before, after)
    yield from _changed("lacks ", recorded.lacks, anew.lacks)
    yield from _changed("deviates from ", recorded.deviates, anew.deviates)


def _declared(value: object) -> str:
    return "not declared" if value is None else "declared"


def _changed(what: str, before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[str]:
    """A line for each entry that is declared otherwise."""
    for name in {**before, **after}:
        was, now = (one.get(name, "not declared") for one in (before, after))
        if was != now:
            yield f"{what}{name}: was {was}, is {now}"


def _statuses(recorded: Verdict, anew: Verdict) -> Iterator[str]:
    before = {result.check: result for result in recorded.results}
    after = {result.check: result for result in anew.results}
    for check in {**before, **after}:
        was = before[check].status if check in before else "absent"
        now = after[check].status if check in after else "absent"
        if was != now:
            yield f"{check}: was {was}, is {now}"


def _errors(recorded: Verdict, anew: Verdict) -> Iterator[str]:
    """Requirements whose worst error over bound is another by more than `FACTOR`."""
    after = {one.requirement: one.worst_ratio for one in anew.requirements}
    for one in recorded.requirements:
        was, now = one.worst_ratio, after.get(one.requirement)
        if was is None or now is None:
            continue
        low, high = sorted((max(was, SMALL), max(now, SMALL)))
        if high > FACTOR * low:
            yield f"{one.requirement}: worst error/bound was {was:.3g}, is {now:.3g}"


def exceptions_of(recorded: Verdict) -> Exceptions:
    """The expected failures and skips that a verdict was reached with."""
    return Exceptions(
        expected={one.check: one.detail for one in recorded.results if one.status == "expected"},
        skipped={
            one.check: one.detail.removeprefix(SKIPPED)
            for one in recorded.results
            if one.status == "not run" and one.detail.startswith(SKIPPED)
        },
    )
