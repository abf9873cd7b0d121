"""Energy by a stand-in for NVML: a counter that moves a few times a second, on the second GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from fullattention.bench.energy import joules_per_call
from tests.bench_fakes import FakeClock

WATTS, CALL = 200.0, 0.004
MOVE = 0.16
"""Seconds between two moves of the counter."""

CHUNK = 3
"""Calls."""

UUID, BUS = "12345678-9abc-def0-1234-56789abcdef0", "0000:3B:00.0"


class NvmlError(Exception):
    pass


class FakeNvml:
    """Knows the GPU of the process as its second; the first draws a tenth."""

    NVMLError = NvmlError

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.open = 0
        self.asked = 0
        self.watts = {"first": WATTS / 10, "second": WATTS}
        self.missing = False

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        if self.missing:
            raise NvmlError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return ("first", "second")[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return self._handle(uuid == f"GPU-{UUID}")

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> str:  # noqa: N802
        return self._handle(bus == BUS)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        assert self.open
        self.asked += 1
        moves = self.clock.now // MOVE
        return 10**9 + int(1000 * self.watts[handle] * MOVE * moves)

    @staticmethod
    def _handle(found: bool) -> str:
        if not found:
            raise NvmlError("Not Found")
        return "second"


class Calls:
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.made = 0

    def __call__(self) -> int:
        self.made += CHUNK
        self.clock.now += CHUNK * CALL
        return CHUNK


@pytest.fixture
def clock() -> FakeClock:
    made = FakeClock()
    made.now = 0.13  # well after a move of the counter
    return made


@pytest.fixture
def nvml(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml(clock)
    monkeypatch.setitem(sys.modules, "pynvml", made)
    properties = {1: SimpleNamespace(uuid=UUID)}  # torch has a class for it, which becomes a text
    torch = SimpleNamespace(
        current_device=lambda: 1, get_device_properties=lambda index: properties[index]
    )
    cupy = SimpleNamespace(Device=lambda: SimpleNamespace(pci_bus_id=BUS))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=torch))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cupy))
    return made


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_a_calls_energy_is_what_its_gpus_counter_gains_over_a_second_of_them(
    nvml: FakeNvml, clock: FakeClock, library: str
) -> None:
    calls = Calls(clock)
    joules = joules_per_call(library, calls, clock)
    # Unless it is read as it moves, the counter is off by up to a sixth.
    assert joules == pytest.approx(WATTS * CALL, rel=0.02)
    assert 1.0 <= calls.made * CALL <= 1.3
    assert nvml.open == 0


def test_a_call_that_takes_longer_than_the_counter_to_move_is_counted_whole(
    nvml: FakeNvml, clock: FakeClock
) -> None:
    def call() -> int:
        clock.now += 0.7
        return 1

    assert joules_per_call("torch", call, clock) == pytest.approx(WATTS * 0.7, rel=0.1)


def test_a_counter_that_stands_still_tells_nothing(nvml: FakeNvml, clock: FakeClock) -> None:
    nvml.watts["second"] = 0.0
    calls = Calls(clock)
    assert joules_per_call("torch", calls, clock) is None
    assert calls.made * CALL < 4


def test_a_gpu_that_nvml_does_not_know_has_no_energy(nvml: FakeNvml, clock: FakeClock) -> None:
    sys.modules["cupy"].cuda.Device = lambda: SimpleNamespace(pci_bus_id="0000:5E:00.0")
    assert joules_per_call("cupy", Calls(clock), clock) is None
    assert nvml.open == 0


def test_without_nvml_there_is_no_energy(
    nvml: FakeNvml, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(clock)
    nvml.missing = True
    assert joules_per_call("torch", calls, clock) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert joules_per_call("torch", calls, clock) is None
    assert calls.made == 0
