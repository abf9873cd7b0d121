"""The listing of backends as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fullattention.reports.blocks import Block, Heading, Lines, Table


def listing_blocks(entries: Sequence[Mapping[str, Any]]) -> list[Block]:
    """A table of the backends that run here, then each other one with its reasons.

    A backend that is another on another device has a row for each.
    """
    here = [entry for entry in entries if entry["devices"]]
    rows = [
        [
            entry["name"],
            entry["version"],
            ", ".join(entry["devices"]),
            *_abilities(entry),
        ]
        for entry in here
    ]
    blocks: list[Block] = [
        Heading("Backends that run here"),
        Table(("backend", "version", "devices", "dtypes", "lacks"), rows, widest=26),
        Heading("Why they lack or deviate"),
        Lines(_reasons(here)),
    ]
    missing = [entry for entry in entries if not entry["devices"]]
    if missing:
        absences = [_absence(entry) for entry in missing]
        blocks += [Heading("Backends that do not run here"), Lines(absences)]
    declared = [entry for entry in missing if entry["dtypes"]]
    if declared:
        rows = [[entry["name"], *_abilities(entry)] for entry in declared]
        blocks += [
            Heading("What some of them do elsewhere"),
            Table(("backend", "dtypes", "lacks"), rows, widest=26),
            Lines(_reasons(declared)),
        ]
    return blocks


def _abilities(entry: Mapping[str, Any]) -> tuple[str, str]:
    return ", ".join(entry["dtypes"]), ", ".join(entry["lacks"]) or "-"


def _absence(entry: Mapping[str, Any]) -> str:
    """Why a backend runs nowhere, each reason once with the devices it holds for."""
    devices: dict[str, list[str]] = {}
    for device, reason in entry["reasons"].items():
        devices.setdefault(reason, []).append(device)
    reasons = (f"{', '.join(names)}: {reason}" for reason, names in devices.items())
    return f"{entry['name']} on " + "; on ".join(reasons)


def _reasons(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each reason once, with the backends it holds for."""
    holders: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        for subject, reason in {**entry["lacks"], **entry["deviates"]}.items():
            holders.setdefault((subject, reason), []).append(entry["name"])
    return [
        f"{subject}: {reason} ({', '.join(names)})" for (subject, reason), names in holders.items()
    ]
