"""A CUDA kernel for Numba's simulator, with its two shared arrays made on one line or on two.

A module of its own: the simulator must be chosen before Numba is imported, so only a process that
was started for it imports this.
"""

from __future__ import annotations

import math
from typing import Any

import numba.cuda
import numpy as np

from fullattention.backends import Backend
from fullattention.backends.interface import Array
from fullattention.backends.numba_cuda_kernels.blocks import let_threads_tell
from fullattention.conformance.catalogue import selected
from fullattention.conformance.subject import load_subject
from fullattention.conformance.trial import run_check
from tests.zoo.attending import Call, Result
from tests.zoo.specimen import backend

cuda: Any = numba.cuda  # its simulator's names are unknown to type checkers
float32 = numba.float32

KEYS = 32
"""What the shared arrays have room for."""


def weighted_mean(scores: Array, column: Array, S: int) -> float:
    top = -math.inf
    for s in range(S):
        top = max(top, scores[s])
    total = mean = 0.0
    for s in range(S):
        w = math.exp(scores[s] - top)
        total += w
        mean += w * column[s]
    return mean / total


def row(scores: Array, column: Array, z: Array, v: Array, out: Array) -> None:
    """One row of V: one thread for each key."""
    block, s = cuda.blockIdx.x, cuda.threadIdx.x
    scores[s] = z[block, s]
    for d in range(v.shape[2]):
        column[s] = v[block, s, d]
        cuda.syncthreads()
        if s == 0:
            out[block, d] = weighted_mean(scores, column, z.shape[1])
        cuda.syncthreads()


def on_one_line(z: Array, v: Array, out: Array) -> None:
    scores, column = cuda.shared.array(KEYS, float32), cuda.shared.array(KEYS, float32)
    row(scores, column, z, v, out)


def on_two_lines(z: Array, v: Array, out: Array) -> None:
    scores = cuda.shared.array(KEYS, float32)
    column = cuda.shared.array(KEYS, float32)
    row(scores, column, z, v, out)


def launched(kernel: Any) -> Backend:
    """One block for each row of V."""

    def attend(call: Call) -> Result:
        q, k, v = (x.transpose(0, 2, 1, 3).astype(np.float32) for x in (call.q, call.k, call.v))
        z = np.float32(call.scale) * (q @ k.swapaxes(-1, -2))
        B, H, L, S = z.shape
        D = v.shape[-1]
        out = np.zeros((B * H * L, D), np.float32)
        rows = np.broadcast_to(v[:, :, None], (B, H, L, S, D)).reshape(-1, S, D)
        kernel[len(out), S](z.reshape(-1, S), rows, out)
        return out.reshape(B, H, L, D).transpose(0, 2, 1, 3), None

    lacks = dict.fromkeys(("mask", "causal", "weights", "dropout"), "one kernel, for V alone")
    return backend("simulated", attend, dtypes=("float32",), lacks=lacks)


def statuses() -> list[str]:
    """What a small check finds in each, the one-line kernel first."""
    let_threads_tell()
    (one,) = selected(("float32",), "standard", only="C5: shape=2,2,2,3,11,13 ")
    kernels = (cuda.jit(on_one_line), cuda.jit(on_two_lines))
    return [run_check(load_subject(launched(kernel)), one).status for kernel in kernels]


if __name__ == "__main__":
    print(*statuses())
