"""What must hold of all outcomes, and the tables that show them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

EQUIVALENT = Path(__file__).with_name("equivalent.toml")

Group = Literal["planted", "mutant", "valid"]


@dataclass(frozen=True)
class Outcome:
    """What the suite made of one candidate."""

    group: Group
    kind: str
    id: str
    conviction: str
    """What was held against it; empty: nothing."""


def read_equivalent(path: Path = EQUIVALENT) -> dict[str, str]:
    """The mutants that break no requirement: id -> reason.

    Raises:
        ValueError: an entry is no reason with its mutants, or one is there twice.
    """
    found: dict[str, str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", []):
        if set(entry) != {"reason", "mutants"} or not (entry["reason"] and entry["mutants"]):
            raise ValueError(f"{path}: an entry must have a `reason` and `mutants`: {entry}")
        for mutant in entry["mutants"]:
            if mutant in found:
                raise ValueError(f"{path}: {mutant!r} is there twice")
            found[mutant] = entry["reason"]
    return found


def complaints(outcomes: Sequence[Outcome], equivalent: Mapping[str, str]) -> Iterator[str]:
    """What must not be, a line each; none if all is well."""
    for one in outcomes:
        if one.group == "valid" and one.conviction:
            yield f"valid, and convicted: {one.id}: {one.conviction}"
        elif one.group == "planted" and not one.conviction:
            yield f"planted, and survives: {one.id}"
        elif one.group == "mutant" and not one.conviction and one.id not in equivalent:
            yield f"survives: {one.id}"
    convictions = {one.id: one.conviction for one in outcomes if one.group == "mutant"}
    for mutant in equivalent:
        if mutant not in convictions:
            yield f"listed as equivalent, and there is no such mutant: {mutant}"
        elif convictions[mutant]:
            yield f"listed as equivalent, and killed: {mutant}: {convictions[mutant]}"


def tables(outcomes: Sequence[Outcome], equivalent: Mapping[str, str]) -> str:
    """Planted faults by kind, mutants by operator and by module, and the valid variants."""
    planted, mutants, valid = (
        [one for one in outcomes if one.group == group] for group in ("planted", "mutant", "valid")
    )
    return "\n".join(
        (
            _table("planted faults", planted, lambda one: one.kind, equivalent),
            _table("mutants by operator", mutants, lambda one: one.kind, equivalent),
            _table("mutants by module", mutants, lambda one: module_of(one.id), equivalent),
            f"Valid variants: {len(valid)}, convicted: {sum(bool(v.conviction) for v in valid)}.\n",
        )
    )


def module_of(mutant: str) -> str:
    """The module that a mutant's id begins with."""
    words = mutant.partition(":")[0].split(".")
    return ".".join(words[: 2 if words[0] == "backends" else 1])


def _table(
    title: str,
    outcomes: Iterable[Outcome],
    by: Callable[[Outcome], str],
    equivalent: Mapping[str, str],
) -> str:
    rows: dict[str, list[int]] = {}
    for one in outcomes:
        for name in (by(one), "all"):
            row = rows.setdefault(name, [0, 0, 0, 0])
            row[0] += 1
            row[1 if one.conviction else 3 if one.id in equivalent else 2] += 1
    head = (f"| {title} | number | killed | survivors | equivalent |", "|---|---:|---:|---:|---:|")
    names = sorted(rows, key=lambda name: (name == "all", name))
    lines = (f"| {name} | {' | '.join(map(str, rows[name]))} |" for name in names)
    return "\n".join((*head, *lines)) + "\n"
