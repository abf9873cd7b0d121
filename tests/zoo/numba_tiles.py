"""`numba-cuda` with heads of every length cut into tiles, so that few cases reach every edge."""

from __future__ import annotations

import functools
from dataclasses import replace

from fullattention.backends import Backend, numba_cuda


def backend(device: str) -> Backend:
    made = numba_cuda.backend(device)
    from fullattention.backends.numba_cuda_kernels import launch, passes

    tuning = replace(launch.TUNING, short=0)
    attend = functools.partial(passes.attend, tuning=tuning)
    return replace(made, name="numba-cuda-tiles", attend=attend)
