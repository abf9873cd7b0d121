"""Peak memory and device time, as Linux, torch and CuPy tell them; the GPU ones by stand-ins."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fullattention.bench.device import RESOLUTION, device_timer, peak_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_of_a_call_is_what_it_held_at_once() -> None:
    size = 64 * 2**20

    def call() -> None:
        for _ in range(3):  # one after the other: the peak is one of them
            np.ones(size // 8)

    peak = peak_bytes("numpy", "cpu", call)
    if peak is None:
        pytest.skip("this Linux does not let a process reset its high-water mark")
    assert size <= peak + RESOLUTION
    assert peak < 2 * size


def fake_proc(folder: Path, before: int, after: int) -> tuple[Path, Any]:
    status = folder / "status"
    status.write_text(f"Name:\tx\nVmHWM:\t{before} kB\nVmRSS:\t{before} kB\n")

    def call() -> None:
        assert (folder / "clear_refs").read_text() == "5", "the mark is reset before the call"
        status.write_text(f"VmHWM:\t{after} kB\nVmRSS:\t{before} kB\n")

    return folder, call


def test_the_peak_is_beyond_what_there_was(tmp_path: Path) -> None:
    proc, call = fake_proc(tmp_path, 10_000, 14_096)
    assert peak_bytes("numpy", "cpu", call, proc) == 4096 * 1024


def test_what_linux_cannot_tell_apart_is_told_as_the_least_it_can(tmp_path: Path) -> None:
    proc, call = fake_proc(tmp_path, 10_000, 10_100)
    assert peak_bytes("numpy", "cpu", call, proc) == RESOLUTION


def test_a_peak_that_the_system_does_not_tell_is_not_measured(tmp_path: Path) -> None:
    assert peak_bytes("numpy", "cpu", lambda: None, tmp_path / "nowhere") is None
    (tmp_path / "status").write_text("Name:\tx\n")
    assert peak_bytes("numpy", "cpu", lambda: None, tmp_path) is None
    assert peak_bytes("jax", "cuda", lambda: None) is None


def test_torchs_peak_is_its_allocators(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    cuda = SimpleNamespace(
        synchronize=lambda: log.append("wait"),
        memory_allocated=lambda: 100,
        max_memory_allocated=lambda: 350,
        reset_peak_memory_stats=lambda: log.append("reset"),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert peak_bytes("torch", "cuda", lambda: log.append("call")) == 250
    assert log == ["wait", "reset", "call", "wait"]


def test_cupys_peak_is_the_growth_of_an_emptied_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"bytes": 900}
    pool = SimpleNamespace(
        free_all_blocks=lambda: held.update(bytes=100), total_bytes=lambda: held["bytes"]
    )
    cupy = SimpleNamespace(
        get_default_memory_pool=lambda: pool,
        cuda=SimpleNamespace(Device=lambda: SimpleNamespace(synchronize=lambda: None)),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert peak_bytes("cupy", "cuda", lambda: held.update(bytes=350)) == 250


@pytest.mark.parametrize(("library", "enters"), [("torch", "device"), ("cupy", "Device")])
def test_a_gpu_by_its_number_is_the_current_one_while_it_is_asked(
    monkeypatch: pytest.MonkeyPatch, library: str, enters: str
) -> None:
    current = [0]
    asked: list[int] = []

    @contextlib.contextmanager
    def on(index: int) -> Iterator[None]:
        current.append(index)
        yield
        current.pop()

    class Event:
        def __init__(self, **_: object) -> None:
            self.record()

        def record(self) -> None:
            asked.append(current[-1])

        def synchronize(self) -> None:
            """There is nothing to wait for."""

        def elapsed_time(self, end: Event) -> float:
            return 1.0

    cuda = SimpleNamespace(Event=Event, get_elapsed_time=Event.elapsed_time, **{enters: on})
    monkeypatch.setitem(sys.modules, library, SimpleNamespace(cuda=cuda))
    timer = device_timer(library, "cuda:1")
    assert timer is not None
    timer.start()
    timer.stop()
    assert asked == [1, 1, 1, 1]
    assert current == [0]


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_device_time_is_that_between_two_events(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    log: list[str] = []

    class Event:
        def __init__(self, **_: object) -> None:
            self.name = f"event {len(log)}"
            log.append("made")

        def record(self) -> None:
            log.append("recorded")

        def synchronize(self) -> None:
            log.append("waited")

        def elapsed_time(self, end: Event) -> float:
            assert end is not self
            return 250.0

    cuda = SimpleNamespace(Event=Event, get_elapsed_time=Event.elapsed_time)
    monkeypatch.setitem(sys.modules, library, SimpleNamespace(cuda=cuda))
    timer = device_timer(library, "cuda")
    assert timer is not None
    timer.start()
    assert timer.stop() == 0.25
    assert log == ["made", "made", "recorded", "recorded", "waited"]


def test_the_cpu_has_no_clock_of_its_own() -> None:
    assert device_timer("torch", "cpu") is None
    assert device_timer("jax", "cuda") is None
