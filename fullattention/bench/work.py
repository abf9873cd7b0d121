"""What a call has to do at least, by formula: floating-point operations, bytes, exponentials."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fullattention.bench.modes import hidden_keys
from fullattention.bench.workloads import Workload
from fullattention.conformance.data import numpy_dtype


@dataclass(frozen=True)
class Work:
    """The least that any implementation does; what is hidden need not be computed."""

    flop: int
    """Of the matrix products: two for each multiplication and addition."""
    bytes: int
    """Each input read once, each result written once."""
    exponentials: int


def work(workload: Workload) -> Work:
    """The work of one call of a workload.

    A backward pass has four products of the size of the forward pass's two, if it keeps the
    weights; it reads the inputs and the gradient of V, and writes the other gradients.
    """
    B, L, S, H, E, D = workload.shape
    item = numpy_dtype(workload.dtype).itemsize
    visible = _visible(workload)
    flop, moved = 2 * visible * (E + D), B * H * (L * E + S * E + S * D + L * D) * item
    if workload.mode == "weights":
        moved += B * H * L * S * item
    if workload.mode == "training":
        flop, moved = 3 * flop, 2 * moved
    return Work(flop, moved, visible)


def _visible(workload: Workload) -> int:
    """Pairs of a query and a key that it sees, over batch and heads."""
    B, L, S, H, _, _ = workload.shape
    if workload.mask == "causal" and L > 1:
        return B * H * L * (L + 1) // 2
    if (hidden := hidden_keys(workload)) is not None:
        return H * L * (math.prod(hidden.shape) - int(hidden.sum()))
    return B * H * L * S
