"""Calls that find nothing in the GPU's L2 cache."""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Callable

from fullattention.bench.device import DeviceTimer

TIMES = 2
"""So many times the size of the cache is overwritten."""


def cold_seconds(
    library: str, call: Callable[[], object], calls: int, timer: DeviceTimer
) -> float | None:
    """Seconds of a single call by the device's clock after the L2 cache was overwritten.

    On the current GPU of torch or CuPy; the median of so many calls. None where the GPU does not
    tell the size of its cache.
    """
    overwrite = {"torch": _torch, "cupy": _cupy}[library]()
    if overwrite is None:
        return None
    seconds = []
    for _ in range(calls):
        overwrite()  # still under way when the call is launched: the device never waits
        timer.start()
        call()
        seconds.append(timer.stop())
    return statistics.median(seconds)


def _torch() -> Callable[[], object] | None:
    torch = sys.modules["torch"]
    size = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    if not size:
        return None
    zero: Callable[[], object] = torch.empty(TIMES * size, dtype=torch.uint8, device="cuda").zero_
    return zero


def _cupy() -> Callable[[], object] | None:
    cupy = sys.modules["cupy"]
    size = cupy.cuda.Device().attributes["L2CacheSize"]
    return functools.partial(cupy.empty(TIMES * size, dtype=cupy.uint8).fill, 0) if size else None
