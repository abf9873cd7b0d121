"""What there is: every known backend, where it runs, what it can do, or why it cannot run here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fullattention.backends.errors import UnavailableError
from fullattention.backends.interface import CAPABILITIES, Backend
from fullattention.backends.registry import load, names

DEVICES = ("cpu", "cuda")
"""Devices that a listing tries."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One backend as a listing shows it; empty apart from `reasons` where it runs nowhere."""

    name: str
    version: str = ""
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    lacks: dict[str, str]
    """Missing capability -> why."""
    deviates: dict[str, str]
    """Requirement that is knowingly not met -> why."""
    reasons: dict[str, str]
    """Device it cannot run on -> why."""


def listing(devices: Iterable[str] = DEVICES) -> list[Entry]:
    """Every backend known by name, tried on each device."""
    return [_entry(name, tuple(devices)) for name in names()]


def _entry(name: str, devices: tuple[str, ...]) -> Entry:
    found: dict[str, Backend] = {}
    reasons: dict[str, str] = {}
    for device in devices:
        try:
            found[device] = load(name, device)
        except UnavailableError as error:
            reasons[device] = error.reason
        except (LookupError, TypeError) as error:  # another's, installed beside
            reasons[device] = str(error)
    if not found:
        return Entry(name=name, lacks={}, deviates={}, reasons=reasons)
    first = next(iter(found.values()))
    lacks = dict(first.lacks)
    return Entry(
        name=name,
        version=first.version,
        devices=tuple(found),
        dtypes=tuple(first.precision),
        capabilities=tuple(capability for capability in CAPABILITIES if capability not in lacks),
        lacks=lacks,
        deviates=dict(first.deviates),
        reasons=reasons,
    )
