"""`numba-cuda` with heads of every length cut into tiles, so that few cases reach every edge."""

from __future__ import annotations

import functools
from dataclasses import replace

from fullattention.backends import Backend, numba_cuda


def backend(device: str) -> Backend:
    made = numba_cuda.backend(device)
    from fullattention.backends import numba_launch, numba_passes

    tuning = replace(numba_launch.TUNING, short=0)
    attend = functools.partial(numba_passes.attend, tuning=tuning)
    return replace(made, name="numba-cuda-tiles", attend=attend)
