"""CUDA graphs, captured by stand-ins for torch and CuPy that leave as much behind as they do."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fullattention.bench.graph import WARM_UPS, capture, replay_seconds
from fullattention.bench.modes import Results
from tests.bench_fakes import FakeClock, FakeTimer

POOL = (0, 7)


class FakeStream:
    def __init__(self, name: str = "side", **_: object) -> None:
        self.name = name
        self.waited_for: list[str] = []

    def wait_stream(self, other: FakeStream) -> None:
        self.waited_for.append(other.name)


class FakeTorch:
    """Captures what is called meanwhile; a capture that fails leaves its marks, as torch's do."""

    def __init__(self) -> None:
        self.current = FakeStream("main")
        self.sides: list[FakeStream] = []
        self.capturing = False
        self.invalid = False
        """Whether a captured call did what no capture allows."""
        self.random_capturing = False
        self.allocating: set[tuple[int, int]] = set()
        self.held: set[tuple[int, int]] = set()
        self.cuda = SimpleNamespace(
            Stream=self._stream,
            stream=self._on,
            current_stream=lambda: self.current,
            current_device=lambda: 0,
            default_generators=[self],
            CUDAGraph=FakeGraph,
            graph_pool_handle=lambda: POOL,
            graph=self._graph,
        )
        self._C = SimpleNamespace(
            _cuda_endAllocateToPool=self._end_allocating,
            _cuda_releasePool=lambda device, pool: self.held.remove(pool),
        )

    def _stream(self) -> FakeStream:
        self.sides.append(FakeStream())
        return self.sides[-1]

    @contextlib.contextmanager
    def _on(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def _graph(self, graph: FakeGraph, *, pool: Any, stream: FakeStream) -> Iterator[None]:
        assert not self.allocating, "a capture before this one still allocates"
        before, self.current = self.current, stream
        self.capturing = self.random_capturing = True
        self.allocating.add(pool)
        self.held.add(pool)
        try:
            yield
        finally:
            self.capturing = False
            if self.invalid:
                self.current = FakeStream("the capture's, which is left current")
                raise RuntimeError("operation failed due to a previous error during capture")
            self.random_capturing = False
            self.allocating.remove(pool)
            self.current = before

    def clone_state(self) -> bool:
        return self.random_capturing

    def graphsafe_set_state(self, state: bool) -> None:
        self.random_capturing = state

    def _end_allocating(self, device: int, pool: tuple[int, int]) -> None:
        if pool not in self.allocating:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.allocating.remove(pool)


class FakeGraph:
    def __init__(self) -> None:
        self.replayed: Callable[[], None] = lambda: None

    def replay(self) -> None:
        self.replayed()


class Calls:
    """A call of a second, which a replay, in a quarter of it, does again."""

    def __init__(self, where: Callable[[], tuple[str, bool]]) -> None:
        self.where = where
        self.made: list[tuple[str, bool]] = []
        self.clock = FakeClock()
        self.out = np.zeros(3)

    def __call__(self) -> Results:
        self.made.append(self.where())
        self.clock.now += 1.0
        return Results(self.out)

    def replay(self) -> None:
        self.clock.now += 0.25
        self.out[...] = 1.0


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    made = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


@pytest.fixture
def calls(torch: FakeTorch) -> Calls:
    made = Calls(lambda: (torch.current.name, torch.capturing))

    class Graph(FakeGraph):
        def __init__(self) -> None:
            self.replayed = made.replay

    torch.cuda.CUDAGraph = Graph
    return made


def test_calls_on_its_stream_precede_a_capture_with_torch(torch: FakeTorch, calls: Calls) -> None:
    graph = capture("torch", calls)
    assert calls.made == [*WARM_UPS * [("side", False)], ("side", True)]
    (side,) = torch.sides
    assert side.waited_for == ["main"]
    assert torch.current.name == "main"
    assert torch.current.waited_for == ["side"]
    assert graph.given.out is calls.out
    graph.replay()
    assert list(calls.out) == [1.0] * 3


def test_after_a_capture_that_failed_torch_goes_on_as_before(
    torch: FakeTorch, calls: Calls
) -> None:
    torch.invalid = True
    with pytest.raises(RuntimeError, match="during capture"):
        capture("torch", calls)
    assert torch.current.name == "main"
    assert not torch.random_capturing
    assert not torch.allocating
    assert not torch.held
    torch.invalid = False
    capture("torch", calls)


def test_an_error_of_the_call_alone_leaves_nothing_to_mend(torch: FakeTorch, calls: Calls) -> None:
    def call() -> Results:
        if torch.capturing:
            raise ValueError("not this way")
        return calls()

    with pytest.raises(ValueError, match="not this way"):
        capture("torch", call)
    assert torch.current.name == "main"
    assert torch.held == {POOL}, "the graph itself lets go of what was captured"


def test_a_replays_time_is_that_of_one_in_a_row_without_launching(calls: Calls) -> None:
    timer = FakeTimer(calls.clock)
    assert replay_seconds("torch", calls, 8, timer) == 0.25
    assert timer.spans == [8 * 0.25] * 3


def test_what_cannot_be_captured_has_no_time(torch: FakeTorch, calls: Calls) -> None:
    torch.invalid = True
    timer = FakeTimer(calls.clock)
    assert replay_seconds("torch", calls, 8, timer) is None
    assert timer.spans == []


def test_a_replay_that_writes_nothing_has_no_time(torch: FakeTorch, calls: Calls) -> None:
    torch.cuda.CUDAGraph = FakeGraph
    assert replay_seconds("torch", calls, 8, FakeTimer(calls.clock)) is None


class FakeCupy:
    """Captures on a stream between two calls of its methods."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current = "null"
        self.capturing = False
        self.graph = SimpleNamespace(launch=lambda stream=None: self.log.append("launch"))
        self.cuda = SimpleNamespace(
            Stream=self._stream,
            Device=lambda: SimpleNamespace(synchronize=lambda: self.log.append("device waited")),
        )

    def _stream(self, *, non_blocking: bool) -> FakeCupyStream:
        assert non_blocking, "else what the null stream does is drawn into the capture"
        return FakeCupyStream(self)


class FakeCupyStream:
    def __init__(self, cupy: FakeCupy) -> None:
        self.cupy = cupy

    def __enter__(self) -> None:
        self.cupy.current = "side"

    def __exit__(self, *_: object) -> None:
        self.cupy.current = "null"

    def synchronize(self) -> None:
        self.cupy.log.append("waited")

    def begin_capture(self) -> None:
        self.cupy.capturing = True

    def end_capture(self) -> Any:
        self.cupy.capturing = False
        return self.cupy.graph


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    made = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


def test_calls_on_its_stream_precede_a_capture_with_cupy(cupy: FakeCupy) -> None:
    calls = Calls(lambda: (cupy.current, cupy.capturing))
    graph = capture("cupy", calls)
    assert calls.made == [*WARM_UPS * [("side", False)], ("side", True)]
    assert cupy.log == ["device waited", "waited"]
    assert (cupy.current, cupy.capturing) == ("null", False)
    graph.replay()
    assert cupy.log[2:] == ["launch"]


def test_after_a_capture_that_failed_cupy_captures_no_longer(cupy: FakeCupy) -> None:
    def call() -> Results:
        if cupy.capturing:
            raise RuntimeError("cudaErrorStreamCaptureUnsupported")
        return Results(None)

    with pytest.raises(RuntimeError, match="Unsupported"):
        capture("cupy", call)
    assert (cupy.current, cupy.capturing) == ("null", False)
