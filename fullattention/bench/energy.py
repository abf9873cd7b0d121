"""The energy that a GPU takes for a call, by the counter of NVIDIA's management library (NVML)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fullattention.bench.turns import Clock

SECONDS = 1.0
"""How long calls are made, at least: meanwhile the counter moves about ten times."""

PATIENCE = 1.0
"""Seconds after which a counter that has not moved is waited for no longer."""

Counter = Callable[[], int]
"""Energy that the GPU has taken since some moment, in millijoules."""


def joules_per_call(library: str, run: Callable[[], int], clock: Clock) -> float | None:
    """Joules of a call on the current GPU of torch or CuPy: all that the GPU takes meanwhile.

    Args:
        library: "torch" or "cupy".
        run: makes some calls, waits for the device, and returns how many they were.
        clock: in seconds.

    Returns:
        None where the module `pynvml` is not installed, or NVML does not tell it of this GPU.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        with _initialized(pynvml):
            gpu = {"torch": _of_torch, "cupy": _of_cupy}[library](pynvml)
            return _joules(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu), run, clock)
    except pynvml.NVMLError:
        return None


@contextlib.contextmanager
def _initialized(pynvml: Any) -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


# NVML counts all GPUs, CUDA those of CUDA_VISIBLE_DEVICES: an index of one is none of the other.


def _of_torch(pynvml: Any) -> Any:
    cuda = sys.modules["torch"].cuda
    uuid = cuda.get_device_properties(cuda.current_device()).uuid
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


def _of_cupy(pynvml: Any) -> Any:
    return pynvml.nvmlDeviceGetHandleByPciBusId(sys.modules["cupy"].cuda.Device().pci_bus_id)


def _joules(counter: Counter, run: Callable[[], int], clock: Clock) -> float | None:
    """From one move of the counter to another: between its moves it is out of date."""
    first, _ = _run_until_it_moves(counter, run, clock, 0.0)
    last, calls = _run_until_it_moves(counter, run, clock, SECONDS)
    return (last - first) / 1000 / calls if last > first else None


def _run_until_it_moves(
    counter: Counter, run: Callable[[], int], clock: Clock, seconds: float
) -> tuple[int, int]:
    """Run for so long, and on until the counter moves; what it then tells, and how many calls."""
    calls, now, start = 0, counter(), clock()
    while True:
        calls += run()
        before, now = now, counter()
        took = clock() - start
        if took >= seconds + PATIENCE or (took >= seconds and now != before):
            return now, calls
