"""Whether timed training steps are right: what must hold whichever weights dropout dropped.

V is linear in the values, so the sum of v dv equals that of V g; and V depends on q and k by their
product alone, so the sum of q dq equals that of k dk: for each batch entry and head. V itself lies
round the exact one as far as dropout scatters it, and so does dq, being linear in what dropout
multiplies the weights with: of both, the means are those without dropout.
"""

from __future__ import annotations

import math

import numpy as np

from fullattention.backends.precision import Precision
from fullattention.bench.modes import DROPOUT
from fullattention.conformance.bound import Expected, error_over_bound, gamma
from fullattention.conformance.gradient_bound import exact_gradients
from fullattention.conformance.oracle import Exact

SIGMAS = 6.0
"""Standard deviations that the mean square of the scatter may be off; chance alone goes beyond that
once in many million runs."""

DOUBT = math.log(3e7)
"""Logarithm of the number of steps in one of which chance may make right gradients look wrong."""

SPREAD = DROPOUT / (1 - DROPOUT)
"""Variance of what dropout multiplies a weight with, of which the mean is 1."""

ENOUGH, NEXT_TO_NOTHING = 16, 0.01
"""Of so many rows or more, a mean square below this share of its expectation means that nothing was
dropped."""


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
    return max(
        _imbalance(v * dv, out * g, precision),
        _imbalance(q * dq, k * dk, precision),
        _scatter(out[:, rows], v, expected),
    )


def gradient_fault(dq: np.ndarray, g: np.ndarray, exact: Exact, precision: Precision) -> float:
    """How far the size of dq is from its mean, over what may lie between: at most 1 if right.

    `training_fault` sees a wrong factor of V and dv, or of one gradient alone, but not one that dq
    and dk share: it is in both of the sums that are compared.

    The size is the inner product with the exact gradient, each row's over its variance. That is a
    sum over all weights of what dropout multiplies each with, times a term; by Bernstein's
    inequality such a sum keeps within a distance of its mean.

    Args:
        dq: some rows of each pair (pairs, rows, E).
        g: gradient of V in these rows (pairs, rows, D).
        exact: these rows without dropout, each pair a batch entry with one head.
        precision: how the candidate rounds.
    """
    dq, g = dq.astype(np.float64), g.astype(np.float64)
    mean = exact_gradients(exact, g[:, :, None]).q[:, :, 0]
    weights, k, v = exact.weights[:, 0], exact.k[:, :, 0], exact.v[:, :, 0]
    along = exact.scale * np.matmul(mean, k.swapaxes(1, 2))
    along -= (weights * along).sum(-1, keepdims=True)
    terms = weights * np.matmul(g, v.swapaxes(1, 2)) * along
    variance = SPREAD * (terms**2).sum(-1, keepdims=True)
    of_rows = np.zeros_like(variance)  # as it is where there is one key: the gradient is 0
    np.divide(terms.sum(-1, keepdims=True), variance, out=of_rows, where=variance > 0)
    terms, products = of_rows * terms, of_rows * mean * dq
    reach = DOUBT * float(abs(terms).max()) / 3
    chance = reach + math.sqrt(reach**2 + 2 * DOUBT * SPREAD * float((terms**2).sum()))
    rounded = _rounding(precision, products.size) * float(abs(products).sum() + abs(terms).sum())
    return error_over_bound(products.sum(), terms.sum(), np.asarray(chance + rounded))


def _imbalance(left: np.ndarray, right: np.ndarray, precision: Precision) -> float:
    """The largest difference of two sums of each pair, over what rounding of their terms allows."""
    axes = (1, 2)
    size = abs(left).sum(axes) + abs(right).sum(axes)
    allowed = _rounding(precision, max(left[0].size, right[0].size)) * size
    return error_over_bound(left.sum(axes), right.sum(axes), allowed)


def _rounding(p: Precision, steps: int) -> float:
    """What rounding may change a sum of so many terms by, as a share of their sizes."""
    unit = 8 * (p.u_in + p.u_out + p.u_scores + p.u_weights + p.exp_ulp * p.u_softmax)
    # Single terms may err by more than their own size allows, never by more than the largest.
    return (unit + gamma(64, p.u_acc)) * math.sqrt(math.log2(2 + steps))


def _scatter(out: np.ndarray, v: np.ndarray, expected: Expected) -> float:
    """How far the scatter of V is from what dropout makes it, over what chance allows."""
    exact = expected.out[:, :, 0]
    variance = SPREAD * np.matmul(expected.weights[:, 0] ** 2, v**2)
    square = (out - exact) ** 2 / (variance + expected.out_bound[:, :, 0] ** 2 + 1e-300)
    each_row = square.mean(-1)  # the columns of a row share what was dropped
    spread = max(math.sqrt(2.0), float(each_row.std())) / math.sqrt(each_row.size)
    if each_row.size >= ENOUGH and each_row.mean() < NEXT_TO_NOTHING:
        return math.inf  # nothing was dropped
    return float(abs(each_row.mean() - 1)) / (SIGMAS * spread)
