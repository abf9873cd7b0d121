"""What a device tells of itself: its own clock, and the most memory that a call held."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from fullattention.backends.interface import device_kind

PROC = Path("/proc/self")

RESOLUTION = 2**19
"""Bytes; less may go unseen, since Linux counts each thread's pages in batches."""


class DeviceTimer(Protocol):
    """The time that work takes on the device itself, without the launching."""

    def start(self) -> None:
        """Mark the beginning in the device's queue."""

    def stop(self) -> float:
        """Seconds from the mark to the end of all work that was queued since."""


def device_timer(library: str, device: str) -> DeviceTimer | None:
    """The device's own clock; None where it has none, or none that this module can read."""
    if device_kind(device) != "cuda":
        return None
    on = functools.partial(on_device, library, device)
    if library == "torch":
        cuda = sys.modules["torch"].cuda
        return _Events(on, lambda: cuda.Event(enable_timing=True), _torch_elapsed)
    if library == "cupy":
        cuda = sys.modules["cupy"].cuda
        return _Events(on, cuda.Event, cuda.get_elapsed_time)
    return None


def on_device(library: str, device: str) -> contextlib.AbstractContextManager[Any]:
    """Make a GPU the current one of torch or CuPy; "cuda" is the current one already."""
    index = device.partition(":")[2]
    if not index:
        return contextlib.nullcontext()
    cuda = sys.modules[library].cuda
    on: contextlib.AbstractContextManager[Any] = (
        cuda.device(int(index)) if library == "torch" else cuda.Device(int(index))
    )
    return on


def _torch_elapsed(start: Any, end: Any) -> float:
    milliseconds: float = start.elapsed_time(end)
    return milliseconds


class _Events:
    """CUDA events; torch and CuPy name what they do alike, and both count milliseconds.

    They are made and recorded with their GPU as the current one, since its queue is the one meant.
    """

    def __init__(
        self,
        on: Callable[[], contextlib.AbstractContextManager[Any]],
        make: Callable[[], Any],
        elapsed: Callable[[Any, Any], float],
    ) -> None:
        self.on = on
        self.elapsed = elapsed
        with on():
            self.first, self.last = make(), make()

    def start(self) -> None:
        with self.on():
            self.first.record()

    def stop(self) -> float:
        with self.on():
            self.last.record()
        self.last.synchronize()
        return self.elapsed(self.first, self.last) / 1000


def peak_bytes(
    library: str, device: str, call: Callable[[], object], proc: Path = PROC
) -> int | None:
    """The most memory that one call held at a time beyond what there was before it.

    On the CPU by the process's resident pages, of which Linux tells `RESOLUTION` at least; on a GPU
    by the library's own count. None where neither tells.
    """
    kind = device_kind(device)
    if kind == "cuda" and library == "torch":
        with on_device(library, device):
            return _torch_peak(sys.modules["torch"].cuda, call)
    if kind == "cuda" and library == "cupy":
        with on_device(library, device):
            return _cupy_peak(sys.modules["cupy"], call)
    return _resident_peak(proc, call) if kind == "cpu" else None


def _torch_peak(cuda: Any, call: Callable[[], object]) -> int:
    cuda.synchronize()
    before = cuda.memory_allocated()
    cuda.reset_peak_memory_stats()
    call()
    cuda.synchronize()
    return int(cuda.max_memory_allocated() - before)


def _cupy_peak(cupy: Any, call: Callable[[], object]) -> int:
    """What an emptied pool grows by: it keeps every block, so its size afterwards is the peak."""
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    call()
    cupy.cuda.Device().synchronize()
    return int(pool.total_bytes() - before)


def _resident_peak(proc: Path, call: Callable[[], object]) -> int | None:
    _return_free_memory()
    try:
        (proc / "clear_refs").write_text("5")  # sets VmHWM, the high-water mark, to VmRSS
        before = _status(proc, "VmRSS")
        call()
        return max(_status(proc, "VmHWM") - before, RESOLUTION)
    except (OSError, KeyError):
        return None


def _return_free_memory() -> None:
    """Let glibc give the pages of freed memory back, which a call could else use unseen."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def _status(proc: Path, name: str) -> int:
    """A figure of the process's status, in bytes.

    Raises:
        KeyError: the system does not tell it.
    """
    for line in (proc / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)
