"""CUDA graphs: calls that are captured once, and replayed without being launched one by one."""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fullattention.bench.device import DeviceTimer
from fullattention.bench.modes import Results

Given = TypeVar("Given")

WARM_UPS = 3
"""Calls before a capture, as in torch's documentation."""

SPANS = 3
"""Rows of replays, each timed by itself."""


@dataclass(frozen=True)
class Graph(Generic[Given]):
    """A captured call."""

    replay: Callable[[], None]
    """Launches it on the current stream of its library."""
    given: Given
    """What the call returned while it was captured; every replay writes it anew."""


def replay_seconds(
    library: str, call: Callable[[], Results], replays: int, timer: DeviceTimer
) -> float | None:
    """Seconds of a call by the device's clock, where so many replays of its graph follow in a row.

    None where it cannot be captured, or does its work where a capture does not see it.
    """
    try:
        graph = capture(library, call)
    except Exception:  # noqa: BLE001 - whatever a candidate or its library raises
        return None
    if not _writes(graph):
        return None
    spans = []
    for _ in range(SPANS):
        timer.start()
        for _ in range(replays):
            graph.replay()
        spans.append(timer.stop() / replays)
    return statistics.median(spans)


def _writes(graph: Graph[Results]) -> bool:
    """Whether a replay writes its result; what ran on another stream than the captured does not."""
    out = graph.given.out
    out[...] = math.nan
    graph.replay()
    return not bool((out != out).all())  # NaN alone differs from itself, in any library


def capture(library: str, call: Callable[[], Given]) -> Graph[Given]:
    """Capture a call on the current GPU of torch or CuPy, after some calls that warm it up.

    Whether it can be captured or not, the process goes on as before.

    Raises:
        Exception: it cannot be captured, as its library says in a class of its own.
    """
    captures: dict[str, Callable[[Callable[[], Given]], Graph[Given]]]
    captures = {"torch": _torch, "cupy": _cupy}
    return captures[library](call)


def _torch(call: Callable[[], Given]) -> Graph[Given]:
    torch = sys.modules["torch"]
    cuda = torch.cuda
    side, graph, pool = cuda.Stream(), cuda.CUDAGraph(), cuda.graph_pool_handle()
    side.wait_stream(cuda.current_stream())
    # The calls before the capture run on its stream: libraries set themselves up for each stream.
    # `cuda.stream` leaves that stream again, which `cuda.graph` does not where a capture fails.
    with cuda.stream(side), _mended(torch, pool):
        for _ in range(WARM_UPS):
            call()
        with cuda.graph(graph, pool=pool, stream=side):
            given = call()
    cuda.current_stream().wait_stream(side)
    return Graph(graph.replay, given)


@contextlib.contextmanager
def _mended(torch: Any, pool: Any) -> Iterator[None]:
    """Put right what torch leaves behind where a capture fails.

    Its random numbers and its allocator then still take the capture for being under way: the next
    dropout and the next release of memory would raise.
    """
    device = torch.cuda.current_device()
    generator = torch.cuda.default_generators[device]
    state = generator.clone_state()
    try:
        yield
    except BaseException:
        generator.graphsafe_set_state(state)
        # Before torch 2.8 these have other names. A RuntimeError: torch has done it itself.
        with contextlib.suppress(AttributeError, RuntimeError):
            torch._C._cuda_endAllocateToPool(device, pool)  # noqa: SLF001 - there is no public way
            torch._C._cuda_releasePool(device, pool)  # noqa: SLF001
        raise


def _cupy(call: Callable[[], Given]) -> Graph[Given]:
    cuda = sys.modules["cupy"].cuda
    cuda.Device().synchronize()  # a stream that does not block would not wait for the others
    side = cuda.Stream(non_blocking=True)
    with side:
        for _ in range(WARM_UPS):
            call()
        side.synchronize()
        side.begin_capture()
        try:
            given = call()
        finally:
            graph = side.end_capture()
    return Graph(graph.launch, given)
