"""Which figures of a GPU are taken, of which calls, and that the turns stay as they are."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fullattention.bench import gpu_figures as module
from fullattention.bench.gpu_figures import GpuFigures, gpu_figures
from fullattention.bench.modes import Inputs, Results
from fullattention.bench.turns import Turns
from fullattention.records import Mode
from tests.bench_fakes import FakeClock, FakeTimer

CALL = 2.0**-11
"""Seconds; a chunk has three of these calls, and a turn 14 chunks."""


class Gpu:
    """Where the figures come from; each notes the calls that were made for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: float = CALL) -> None:
        self.clock = FakeClock()
        self.call_seconds = call
        self.made = 0
        self.waits = 0
        self.current = [0]
        self.taken: dict[str, Any] = {}
        self.turns = Turns(
            self.call, [Inputs(0, 0, 0, 0)], self.wait, self.clock, FakeTimer(self.clock)
        )
        self.turns.warm_up(0.0)
        self.made = 0
        torch = SimpleNamespace(cuda=SimpleNamespace(device=self.on))
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(module, "joules_per_call", self.joules)
        monkeypatch.setattr(module, "cold_seconds", self.cold)
        monkeypatch.setattr(module, "replay_seconds", self.replayed)

    @contextlib.contextmanager
    def on(self, index: int) -> Iterator[None]:
        self.current.append(index)
        yield
        self.current.pop()

    def call(self, inputs: Inputs) -> Results:
        self.made += 1
        self.clock.now += self.call_seconds
        return Results(self.made)

    def wait(self) -> None:
        self.waits += 1

    def _calls_of(self, function: Callable[[], object]) -> int:
        before = self.made
        function()
        return self.made - before

    def joules(self, library: str, run: Callable[[], int], clock: object) -> float:
        assert clock is self.clock
        waits = self.waits
        assert run() == self.turns.per_chunk
        assert self.waits == waits + 1
        self.taken["joules"] = (library, self.current[-1])
        return 3.0

    def cold(self, library: str, call: Callable[[], object], calls: int, timer: object) -> float:
        self.taken["cold"] = (library, self.current[-1], self._calls_of(call), calls)
        return 0.5

    def replayed(
        self, library: str, call: Callable[[], object], replays: int, timer: object
    ) -> float | None:
        waits = self.waits
        self.taken["graph"] = (library, self.current[-1], self._calls_of(call), replays)
        assert self.waits == waits, "a capture ends where something waits for the device"
        return 0.75

    def figures(
        self, device: str = "cuda:1", mode: Mode = "forward", longest_call: float = 1.0
    ) -> GpuFigures:
        return gpu_figures("torch", device, mode, self.turns, longest_call)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def test_all_figures_are_of_one_call_on_the_gpu_that_was_asked_for(gpu: Gpu) -> None:
    assert (gpu.turns.per_chunk, gpu.turns.chunks) == (3, 14)
    assert gpu.figures() == GpuFigures(graph_seconds=0.75 / 3, cold_seconds=0.5, joules=3.0)
    assert gpu.taken == {
        "joules": ("torch", 1),
        "cold": ("torch", 1, 1, 20),
        "graph": ("torch", 1, 3, 14),
    }
    assert list(gpu.taken)[-1] == "graph", "what fails comes last"
    assert gpu.current == [0]


def test_few_calls_are_cold_where_they_last_long(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch, call=0.5)
    gpu.figures()
    assert gpu.taken["cold"][-1] == 3


def test_transfers_are_neither_captured_nor_cold(gpu: Gpu) -> None:
    assert gpu.figures(mode="host") == GpuFigures(joules=3.0)


def test_no_energy_is_taken_where_a_call_may_not_last_as_long(gpu: Gpu) -> None:
    assert gpu.figures(longest_call=0.5).joules is None
    assert "joules" not in gpu.taken


def test_what_cannot_be_captured_has_its_other_figures(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "replay_seconds", lambda *arguments: None)
    assert gpu.figures() == GpuFigures(cold_seconds=0.5, joules=3.0)


def test_without_a_clock_of_the_device_there_are_none(gpu: Gpu) -> None:
    gpu.turns.device_timer = None
    assert gpu.figures() == GpuFigures()
    assert gpu.taken == {}
    assert gpu.made == 0


def test_turns_go_on_after_the_figures(gpu: Gpu) -> None:
    before = gpu.turns.take(keep=0)
    gpu.figures()
    after = gpu.turns.take(keep=0)
    assert (after.seconds, after.device_seconds) == (before.seconds, before.device_seconds)
