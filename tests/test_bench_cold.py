"""Calls with a cold L2 cache, on stand-ins for torch and CuPy that have one."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fullattention.bench.cold import cold_seconds
from tests.bench_fakes import FakeClock, FakeTimer

L2 = 1000
"""Bytes."""

FLUSH, COLD, HOT = 1.0, 0.004, 0.001
"""Seconds."""


class Gpu:
    """A call leaves its data in the cache, until so many bytes are written that none is left."""

    def __init__(self, size: int = L2) -> None:
        self.clock = FakeClock()
        self.hot = True
        self.sizes: list[int] = []
        self.slow = [1.0]
        """Factors of the calls to come; the last of all others."""
        self.torch = SimpleNamespace(
            uint8="uint8",
            empty=self._empty,
            cuda=SimpleNamespace(
                current_device=lambda: 3,
                get_device_properties=lambda index: (
                    SimpleNamespace(L2_cache_size=size) if index == 3 else None
                ),
            ),
        )
        device = SimpleNamespace(attributes={"L2CacheSize": size})
        cuda = SimpleNamespace(Device=lambda: device)
        self.cupy = SimpleNamespace(uint8="uint8", empty=self._empty, cuda=cuda)

    def _empty(self, size: int, *, dtype: str, device: str = "cuda") -> Any:
        assert (dtype, device) == ("uint8", "cuda")

        def write(value: int = 0) -> None:
            self.sizes.append(size)
            self.clock.now += FLUSH
            self.hot = self.hot and size <= L2

        return SimpleNamespace(zero_=write, fill=write)

    def call(self) -> None:
        factor = self.slow.pop(0) if len(self.slow) > 1 else self.slow[0]
        self.clock.now += factor * (HOT if self.hot else COLD)
        self.hot = True


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_each_call_finds_a_cache_that_was_overwritten_before_its_time_began(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    gpu = Gpu()
    monkeypatch.setitem(sys.modules, library, getattr(gpu, library))
    timer = FakeTimer(gpu.clock)
    assert cold_seconds(library, gpu.call, 5, timer) == pytest.approx(COLD)
    assert timer.spans == pytest.approx([COLD] * 5)
    assert gpu.sizes == [2 * L2] * 5


def test_one_slow_call_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu()
    gpu.slow = [100.0, 1.0]
    monkeypatch.setitem(sys.modules, "torch", gpu.torch)
    assert cold_seconds("torch", gpu.call, 3, FakeTimer(gpu.clock)) == pytest.approx(COLD)


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_a_cache_of_unknown_size_cannot_be_overwritten(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    gpu = Gpu(size=0)
    monkeypatch.setitem(sys.modules, library, getattr(gpu, library))
    assert cold_seconds(library, gpu.call, 5, FakeTimer(gpu.clock)) is None
