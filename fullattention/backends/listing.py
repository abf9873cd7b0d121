"""What there is: every known backend, where it runs, what it can do, or why it cannot run here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fullattention.backends.declared import DECLARED
from fullattention.backends.errors import UnavailableError
from fullattention.backends.interface import CAPABILITIES, Backend
from fullattention.backends.registry import load, names

DEVICES = ("cpu", "cuda")
"""Devices that a listing tries."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A backend as a listing shows it, on devices where it is the same.

    Without devices it runs nowhere here, and what it does elsewhere is told as far as it is known.
    """

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
    """Every backend known by name, tried on each device: an entry wherever it is another."""
    return [entry for name in names() for entry in _entries(name, tuple(devices))]


def _entries(name: str, devices: tuple[str, ...]) -> list[Entry]:
    alike: dict[tuple[object, ...], dict[str, Backend]] = {}
    reasons: dict[str, str] = {}
    for device in devices:
        try:
            backend = load(name, device)
        except UnavailableError as error:
            reasons[device] = error.reason
        except (LookupError, TypeError) as error:  # of an entry point that leads to no backend
            reasons[device] = str(error.args[0])
        else:
            alike.setdefault(_facts(backend), {})[device] = backend
    if not alike:
        return [_absent(name, reasons)]
    return [_present(name, backends, reasons) for backends in alike.values()]


def _facts(backend: Backend) -> tuple[object, ...]:
    """What is to be the same where one entry stands for several devices."""
    reasons = (backend.lacks, backend.deviates)
    return (backend.version, *backend.precision, *(tuple(table.items()) for table in reasons))


def _present(name: str, backends: Mapping[str, Backend], reasons: dict[str, str]) -> Entry:
    """The entry of devices on which a backend is the same."""
    first = next(iter(backends.values()))
    return Entry(
        name=name,
        version=first.version,
        devices=tuple(backends),
        dtypes=tuple(first.precision),
        capabilities=_capabilities(first.lacks),
        lacks=dict(first.lacks),
        deviates=dict(first.deviates),
        reasons=reasons,
    )


def _absent(name: str, reasons: dict[str, str]) -> Entry:
    """The entry of a backend that runs nowhere."""
    if name not in DECLARED:
        return Entry(name=name, lacks={}, deviates={}, reasons=reasons)
    declared = DECLARED[name]
    return Entry(
        name=name,
        dtypes=declared.dtypes,
        capabilities=_capabilities(declared.lacks),
        lacks=dict(declared.lacks),
        deviates={},
        reasons=reasons,
    )


def _capabilities(lacks: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(capability for capability in CAPABILITIES if capability not in lacks)
