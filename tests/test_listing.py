"""The listing of backends: one that is broken hides no other, and each device has its own facts."""

from __future__ import annotations

import dataclasses

import pytest

from fullattention.backends import Backend, UnavailableError, listing, load
from fullattention.backends.declared import DECLARED
from fullattention.backends.listing import Entry
from fullattention.backends.registry import BUILT_IN
from fullattention.reports.blocks import as_text
from fullattention.reports.listing import listing_blocks

PLAIN = load("numpy-matmul")
HALF = dataclasses.replace(
    PLAIN,
    precision={"float32": PLAIN.precision["float32"]},
    lacks={"dropout": "not on this device"},
    deviates={"N4": "leaks on this device"},
)


def listed(
    monkeypatch: pytest.MonkeyPatch, **found: dict[str, Backend | Exception]
) -> dict[str, list[Entry]]:
    """The entries of some names, by what loading them on a device gives."""

    def fake(name: str, device: str) -> Backend:
        loaded = found[name][device]
        if isinstance(loaded, Exception):
            raise loaded
        return loaded

    monkeypatch.setattr(listing, "names", lambda: list(found))
    monkeypatch.setattr(listing, "load", fake)
    entries: dict[str, list[Entry]] = {name: [] for name in found}
    for entry in listing.listing():
        entries[entry.name].append(entry)
    return entries


@pytest.mark.parametrize("error", [LookupError, TypeError])
def test_an_entry_point_that_leads_to_no_backend_is_listed_with_the_reason(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = error("there is no module")
    entries = listed(
        monkeypatch, broken={"cpu": wrong, "cuda": wrong}, right={"cpu": PLAIN, "cuda": PLAIN}
    )
    (broken,), (right,) = entries.values()
    assert broken.reasons == dict.fromkeys(("cpu", "cuda"), "there is no module")
    assert not broken.devices
    assert not broken.capabilities
    assert right.devices == ("cpu", "cuda")


def test_a_backend_that_is_another_on_another_device_has_an_entry_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (entries,) = listed(monkeypatch, two={"cpu": PLAIN, "cuda": HALF}).values()
    first, second = entries
    assert (first.devices, second.devices) == (("cpu",), ("cuda",))
    assert (first.dtypes, second.dtypes) == (tuple(PLAIN.precision), ("float32",))
    assert "dropout" in first.capabilities
    assert "dropout" not in second.capabilities
    assert (first.lacks, first.deviates) == (dict(PLAIN.lacks), dict(PLAIN.deviates))
    assert (second.lacks, second.deviates) == (dict(HALF.lacks), dict(HALF.deviates))
    printed = as_text(listing_blocks([dataclasses.asdict(entry) for entry in entries]))
    assert "dropout: not on this device (two)" in printed
    assert "N4: leaks on this device (two)" in printed


def test_our_own_backends_for_gpus_tell_what_they_do_where_they_do_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nowhere = UnavailableError("any", "no CUDA device")
    found: dict[str, dict[str, Backend | Exception]] = {
        name: {"cpu": nowhere, "cuda": nowhere} for name in DECLARED
    }
    entries = [entry for (entry,) in listed(monkeypatch, **found).values()]
    assert {entry.name for entry in entries} <= set(BUILT_IN)
    for entry in entries:
        assert entry.dtypes == DECLARED[entry.name].dtypes
        assert entry.lacks == dict(DECLARED[entry.name].lacks)
        assert {"mask", "causal", "weights", "dropout"} <= set(entry.capabilities)
        assert ("gradient" in entry.capabilities) == (
            entry.name.endswith("-torch") or entry.name == "triton"
        )
    printed = as_text(listing_blocks([dataclasses.asdict(entry) for entry in entries]))
    assert "gradient: CuPy does not differentiate (cupy-matmul, cupy-fused)" in printed
