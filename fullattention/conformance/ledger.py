"""The ledger: what each result and each requirement comes to, and that nothing is left over."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fullattention.conformance import contract
from fullattention.conformance.subject import Declaration
from fullattention.records import Requirement, Result, Status

EXECUTED: tuple[Status, ...] = ("passed", "failed", "deviates", "expected")

PRECEDENCE: tuple[Status, ...] = (
    "failed",
    "deviates",
    "expected",
    "passed",
    "unsupported",
    "not run",
)
"""A requirement's status is the first of these that one of its results has."""


@dataclass(frozen=True)
class Exceptions:
    """Checks that are known to fail, and checks not to be run: id -> reason."""

    expected: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)


def read_exceptions(path: Path) -> Exceptions:
    """The exceptions of a TOML file: tables `[[xfail]]` and `[[skip]]` of `check` and `reason`.

    Raises:
        ValueError: the file is not of that form; the message says where.
        FileNotFoundError: there is no such file.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    unknown = sorted(set(tables) - {"xfail", "skip"})
    if unknown:
        raise ValueError(f"{path}: unknown table {unknown[0]!r}; known are xfail and skip")
    return Exceptions(
        expected=_entries(path, "xfail", tables.get("xfail", [])),
        skipped=_entries(path, "skip", tables.get("skip", [])),
    )


def _entries(path: Path, table: str, entries: Sequence[Mapping[str, object]]) -> dict[str, str]:
    found: dict[str, str] = {}
    if not isinstance(entries, list):
        raise ValueError(f"{path}: {table} must be a list of tables, [[{table}]]")
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, Mapping):
            raise ValueError(f"{path}: {table} must be a list of tables, [[{table}]]")
        check, reason = entry.get("check"), entry.get("reason")
        where = f"{path}: [[{table}]] number {number}"
        if set(entry) == {"check", "reason"} and not isinstance(reason, str):
            raise ValueError(f"{where} has the reason {reason!r}: say it in words")
        if set(entry) != {"check", "reason"} or not (check and str(reason).strip()):
            raise ValueError(f"{where} must have a `check` and a `reason`, and nothing else")
        if not isinstance(check, str) or check.partition(":")[0] not in contract.TEXT:
            raise ValueError(f"{where} names {check!r}, and the contract has no such requirement")
        if str(check) in found:
            raise ValueError(f"{where} repeats {check!r}")
        found[str(check)] = str(reason)
    return found


def excepted(result: Result, exceptions: Exceptions) -> Result:
    """The result, with a failure that is expected marked so."""
    reason = exceptions.expected.get(result.check)
    if reason is None or result.status != "failed":
        return result
    return dataclasses.replace(
        result, status="expected", detail=f"expected: {reason}; observed: {result.detail}"
    )


def stale(
    results: Sequence[Result], exceptions: Exceptions, elsewhere: Container[str] = ()
) -> list[Result]:
    """A failure for each expected failure or skip that nothing shows.

    Exceptions for checks that are `elsewhere`, at another level, wait for it.
    """
    expected, skipped = (
        {check: reason for check, reason in entries.items() if check not in elsewhere}
        for entries in (exceptions.expected, exceptions.skipped)
    )
    return [
        *_unused(results, expected, "expected", "expected to fail, and did not"),
        *_unused(results, skipped, "not run", "to be skipped, and there is no such check"),
    ]


def unobserved(declaration: Declaration, results: Sequence[Result]) -> list[Result]:
    """A failure for each declared deviation that was tried and not observed, or is from nothing.

    Where some checks of the requirement were not run, they might have shown it.
    """
    found = []
    for requirement, reason in declaration.deviates.items():
        if requirement not in contract.TEXT:
            detail = f"a deviation is declared from {requirement!r}, which the contract has not"
            found.append(_stale(f"{requirement}: declared deviation", requirement, detail))
        statuses = {result.status for result in results if result.requirement == requirement}
        tried = not statuses.isdisjoint(EXECUTED) and "not run" not in statuses
        if tried and "deviates" not in statuses:
            detail = f"a deviation is declared and no longer observed: {reason}"
            found.append(_stale(f"{requirement}: declared deviation", requirement, detail))
    return found


def _unused(
    results: Sequence[Result], entries: Mapping[str, str], status: Status, detail: str
) -> list[Result]:
    used = {result.check for result in results if result.status == status}
    return [
        _stale(check, check.partition(":")[0], f"{detail}: {reason}")
        for check, reason in entries.items()
        if check not in used
    ]


def _stale(check: str, requirement: str, detail: str) -> Result:
    return Result(
        check=check,
        requirement=requirement,
        section=contract.SECTION_OF.get(requirement, "exceptions"),
        dtype="",
        status="failed",
        detail=detail,
    )


def requirements(results: Iterable[Result], level: str) -> tuple[Requirement, ...]:
    """Every requirement of the contract with its status: none is left out."""
    by_id: dict[str, list[Result]] = {requirement: [] for requirement in contract.TEXT}
    for result in results:
        by_id.setdefault(result.requirement, []).append(result)
    return tuple(_requirement(requirement, found, level) for requirement, found in by_id.items())


def _requirement(requirement: str, results: Sequence[Result], level: str) -> Requirement:
    if not results:
        return Requirement(
            requirement=requirement, status="not run", reason=f"level {level} has no check of it"
        )
    status = next(status for status in PRECEDENCE if any(r.status == status for r in results))
    of_status = [result for result in results if result.status == status]
    tried = [result for result in results if result.status in EXECUTED and result.dtype]
    worst = _worst(tried)
    return Requirement(
        requirement=requirement,
        status=status,
        reason=of_status[0].detail,
        checks=len(tried),
        worst_ratio=None if worst is None else worst.ratio,
        worst_check="" if worst is None else worst.check,
    )


def _worst(tried: Sequence[Result]) -> Result | None:
    """The largest error over its bound, among failures if there are any; else the first of them."""
    failed = [result for result in tried if result.status == "failed"]
    compared = [result for result in failed or tried if result.ratio is not None]
    return max(compared, key=lambda r: r.ratio or 0.0, default=failed[0] if failed else None)


def is_conformant(results: Iterable[Result], *, some: bool = False) -> bool:
    """Whether nothing failed and enough was tried to say so: a passed comparison of numbers.

    Where only `some` checks were asked for, one that passed, or deviates as declared, is enough.
    """
    statuses = {(result.status, result.ratio is not None) for result in results}
    found = {status for status, _ in statuses}
    enough = bool(found & {"passed", "deviates"}) if some else ("passed", True) in statuses
    return "failed" not in found and enough
