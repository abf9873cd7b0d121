"""A small attention kernel for Numba's simulator, and the ways in which such kernels go wrong.

One block takes one head after another: its threads load keys and values into shared memory, then
each attends for some of the queries. A fault is one deviation from that.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import cuda, float64

from fullattention.backends import Backend, numba_cuda, numba_cuda_arrays
from fullattention.backends.numba_cuda_kernels import passes

FAULTS = {
    "no-barrier-after-loading": "C5",
    "no-barrier-before-reloading": "C5",
    "tail-not-loaded": "C5",
    "last-queries-dropped": "C5",
    "head-stride-of-mask-ignored": "M4",
    "key-stride-of-mask-ignored": "M4",
    "grid-cut-at-its-limit": "C5",
    "sums-not-reset": "C5",
}
"""Fault -> the requirement of which a check must fail."""

THREADS, BLOCKS, LIMIT = 3, 2, 64

MOST = 2048
"""Numbers of each shared array."""


def kernel_with(fault: str) -> Any:
    BARRIER = fault != "no-barrier-after-loading"
    BARRIER_BEFORE = fault != "no-barrier-before-reloading"
    TAIL = fault != "tail-not-loaded"
    ALL_QUERIES = fault != "last-queries-dropped"
    HEADS = int(fault != "head-stride-of-mask-ignored")
    KEYS = int(fault != "key-stride-of-mask-ignored")
    END = LIMIT if fault == "grid-cut-at-its-limit" else 2**31
    RESET = fault != "sums-not-reset"

    def kernel(q: Any, k: Any, v: Any, hidden: Any, out: Any, scale: Any, steps: Any) -> None:
        keys = cuda.shared.array(MOST, float64)
        values = cuda.shared.array(MOST, float64)
        B, L, H, E = q.shape
        S, D = v.shape[1], v.shape[3]
        sums = cuda.local.array(1, float64)
        sums[0] = 0
        mb, mh, ml, ms = steps
        for head in range(cuda.blockIdx.x, min(B * H, END), cuda.gridDim.x):
            b, h = head // H, head % H
            if BARRIER_BEFORE:
                cuda.syncthreads()
            thread, threads = cuda.threadIdx.x, cuda.blockDim.x
            for i in range(thread, S * E if TAIL else S * E // threads * threads, threads):
                keys[i] = k[b, i // E, h, i % E]
            for i in range(thread, S * D if TAIL else S * D // threads * threads, threads):
                values[i] = v[b, i // D, h, i % D]
            if BARRIER:
                cuda.syncthreads()
            for l in range(thread, L if ALL_QUERIES else L // threads * threads, threads):  # noqa: E741
                top = -math.inf
                for s in range(S):
                    z = 0.0
                    for e in range(E):
                        z += float(q[b, l, h, e]) * keys[s * E + e]
                    if not hidden[b * mb, h * mh * HEADS, l * ml, s * ms * KEYS]:
                        top = max(top, z * scale)
                for d in range(D):
                    out[b, l, h, d] = 0
                if RESET:
                    sums[0] = 0
                for s in range(S):
                    z = 0.0
                    for e in range(E):
                        z += float(q[b, l, h, e]) * keys[s * E + e]
                    if not hidden[b * mb, h * mh * HEADS, l * ml, s * ms * KEYS]:
                        w = math.exp(z * scale - top)
                        sums[0] += w
                        for d in range(D):
                            out[b, l, h, d] += w * values[s * D + d]
                for d in range(D):
                    out[b, l, h, d] /= sums[0]

    return cuda.jit(kernel)


def attend(q: Any, k: Any, v: Any, *, fault: str, hidden: Any, scale: float, **_: Any) -> Any:
    out = numba_cuda_arrays.empty((*q.shape[:3], v.shape[3]), q.dtype, "cpu")
    mask = passes.nothing("cpu") if hidden is None else hidden
    steps = tuple(int(n > 1) for n in mask.shape)
    with np.errstate(all="ignore"):
        kernel_with(fault)[BLOCKS, THREADS](q, k, v, mask, out, scale, steps)
    return out, None


def backend(fault: str) -> Backend:
    """The small kernel with a fault; without one where it is empty."""
    return Backend(
        name=f"numba-{fault or 'right'}",
        attend=functools.partial(attend, fault=fault),
        arrays=numba_cuda_arrays.ARRAYS,
        precision={"float64": numba_cuda.precision("float64")},
        lacks=dict.fromkeys(
            ("causal", "weights", "dropout", "gradient", "double_backward"), "it is a specimen"
        ),
    )
