"""Whether timed training steps are right: what must hold whichever weights dropout dropped.

V is linear in the values, so the sum of v dv equals that of V g; and V depends on q and k by their
product alone, so the sum of q dq equals that of k dk: for each batch entry and head. V itself lies
round the exact one as far as dropout scatters it.
"""

from __future__ import annotations

import math

import numpy as np

from fullattention.backends.precision import Precision
from fullattention.bench.modes import DROPOUT
from fullattention.conformance.bound import Expected, gamma

SIGMAS = 6.0
"""Of the mean square of the scatter; chance alone goes beyond it once in many million runs."""

ENOUGH, NEXT_TO_NOTHING = 16, 0.01
"""Rows, and their mean square in units of its expectation."""


def training_fault(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    g: np.ndarray,
    *,
    rows: np.ndarray,
    expected: Expected,
    out: np.ndarray,
    gradients: tuple[np.ndarray, ...],
    precision: Precision,
) -> float:
    """How far a training step is from what must hold, over what may be: at most 1 if it is right.

    Args:
        q: queries (pairs, L, E).
        k: keys (pairs, S, E).
        v: values (pairs, S, D).
        g: gradient of V (pairs, L, D).
        rows: the queries of which `expected` tells.
        expected: of those rows, without dropout.
        out: V (pairs, L, D).
        gradients: dq, dk and dv, of the shapes of q, k and v.
        precision: how the candidate rounds.
    """
    q, k, v, g, out, dq, dk, dv = (x.astype(np.float64) for x in (q, k, v, g, out, *gradients))
    if not all(np.isfinite(x).all() for x in (out, dq, dk, dv)):
        return math.inf
    of_values = _imbalance(v * dv, out * g, precision)
    of_scores = _imbalance(q * dq, k * dk, precision)
    return max(of_values, of_scores, _scatter(out[:, rows], v, expected))


def _imbalance(left: np.ndarray, right: np.ndarray, precision: Precision) -> float:
    """The largest difference of two sums of each pair, over what rounding of their terms allows."""
    axes = (1, 2)
    p = precision
    size = abs(left).sum(axes) + abs(right).sum(axes)
    steps = max(left[0].size, right[0].size)
    unit = 8 * (p.u_in + p.u_out + p.u_scores + p.u_weights + p.exp_ulp * p.u_softmax)
    # Single terms may err by more than their own size allows, never by more than the largest.
    allowed = (unit + gamma(64, p.u_acc)) * size * math.sqrt(math.log2(2 + steps))
    return float((abs(left.sum(axes) - right.sum(axes)) / allowed).max())


def _scatter(out: np.ndarray, v: np.ndarray, expected: Expected) -> float:
    """Mean square of the scatter round the exact V against its expectation."""
    exact = expected.out[:, :, 0]
    variance = DROPOUT / (1 - DROPOUT) * np.matmul(expected.weights[:, 0] ** 2, v**2)
    square = (out - exact) ** 2 / (variance + expected.out_bound[:, :, 0] ** 2 + 1e-300)
    each_row = square.mean(-1)  # the columns of a row share what was dropped
    spread = max(math.sqrt(2.0), float(each_row.std())) / math.sqrt(each_row.size)
    if each_row.size >= ENOUGH and each_row.mean() < NEXT_TO_NOTHING:
        return math.inf  # nothing was dropped
    return float(abs(each_row.mean() - 1)) / (SIGMAS * spread)
