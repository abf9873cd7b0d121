"""The float64 gradient of attention, and how far an honest backward pass may lie from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fullattention.backends.precision import Precision
from fullattention.conformance.bound import ORACLE, gamma, weights_bound
from fullattention.conformance.oracle import Exact

SAFETY = 1.01
"""The bound is of first order in the roundoffs; their products are far below one percent."""


class Gradients(NamedTuple):
    """Something for each of q (B, L, H, E), k (B, S, H, E) and v (B, S, H, D)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


@dataclass(frozen=True)
class _Backward:
    """The steps of the backward pass; scores, weights and theirs are (B, H, L, S)."""

    dropped: np.ndarray
    """Weights after dropout."""
    d_weights: np.ndarray
    row: np.ndarray
    """sum_s weights d_weights: (B, H, L, 1)."""
    d_scores: np.ndarray


def exact_gradients(
    exact: Exact,
    g_out: np.ndarray,
    g_weights: np.ndarray | None = None,
    *,
    hidden: np.ndarray | None = None,
    keep: np.ndarray | float = 1.0,
) -> Gradients:
    """Gradients of sum(g_out V) + sum(g_weights A) in float64.

    Args:
        exact: the forward pass.
        g_out: (B, L, H, D).
        g_weights: (B, H, L, S), or None.
        hidden: what the mask hides; no gradient reaches a score there.
        keep: what dropout multiplied each weight with, 0 or 1 / (1 - p); 1 without dropout.
    """
    with np.errstate(all="ignore"):
        back = _backward(exact, g_out, g_weights, hidden, keep)
        q, k = (array.transpose(0, 2, 1, 3) for array in (exact.q, exact.k))
        g = g_out.transpose(0, 2, 1, 3)
        d_q = exact.scale * np.matmul(back.d_scores, k)
        d_k = exact.scale * np.matmul(back.d_scores.swapaxes(-1, -2), q)
        d_v = np.matmul(back.dropped.swapaxes(-1, -2), g)
    return Gradients(*(array.transpose(0, 2, 1, 3) for array in (d_q, d_k, d_v)))


def _backward(
    exact: Exact,
    g_out: np.ndarray,
    g_weights: np.ndarray | None,
    hidden: np.ndarray | None,
    keep: np.ndarray | float,
) -> _Backward:
    v, g = exact.v.transpose(0, 2, 1, 3), g_out.transpose(0, 2, 1, 3)
    d_weights = np.matmul(g, v.swapaxes(-1, -2))
    d_weights = keep * (d_weights if g_weights is None else d_weights + g_weights)
    row = (exact.weights * d_weights).sum(-1, keepdims=True)
    d_scores = exact.weights * (d_weights - row)
    shown = True if hidden is None else ~hidden
    d_scores = np.where(shown, d_scores, 0.0)
    return _Backward(keep * exact.weights, d_weights, row, np.where(exact.settled, 0.0, d_scores))


def gradient_bound(
    exact: Exact,
    g_out: np.ndarray,
    g_weights: np.ndarray | None,
    precision: Precision,
    *,
    hidden: np.ndarray | None = None,
    keep: np.ndarray | float = 1.0,
) -> Gradients:
    """The largest error of each gradient under a precision, the oracle's own included."""
    with np.errstate(all="ignore"):
        back = _backward(exact, g_out, g_weights, hidden, keep)
        own = _bound(exact, back, g_out, g_weights, precision, keep)
        oracle = _bound(exact, back, g_out, g_weights, ORACLE, keep)
    return Gradients(*(a + b for a, b in zip(own, oracle, strict=True)))


def _bound(
    exact: Exact,
    back: _Backward,
    g_out: np.ndarray,
    g_weights: np.ndarray | None,
    p: Precision,
    keep: np.ndarray | float,
) -> Gradients:
    q, k, v, g = (abs(array).transpose(0, 2, 1, 3) for array in (exact.q, exact.k, exact.v, g_out))
    L, S, D = g.shape[2], v.shape[2], v.shape[3]
    store = max(p.u_scores, p.u_weights)  # half types round what lies between the products
    underflow = 2 * p.eta_out if store else 0.0
    # The backward pass of an online softmax rebuilds the weights from the log-sum-exp.
    weight_error = weights_bound(exact, replace(p, recompute=p.recompute or p.tile > 0))
    weights = exact.weights + weight_error
    # The gradient of the weights, and the largest it can be.
    reach = keep * (
        np.matmul(g, v.swapaxes(-1, -2)) + (0.0 if g_weights is None else abs(g_weights))
    )
    d_weights_error = (gamma(D + 1, p.u_acc) + 2 * p.u_in + 2 * store + p.u_softmax) * reach
    d_weights_error += underflow
    # The row's mean of it, under the weights.
    terms = weight_error * abs(back.d_weights) + weights * d_weights_error
    row_error = (terms + (gamma(S, p.u_acc) + store) * weights * reach).sum(-1, keepdims=True)
    # The product of the weights with what lies between dA and its row's mean.
    d_scores = abs(back.d_scores)
    d_scores_error = weight_error * abs(back.d_weights - back.row)
    d_scores_error += weights * (d_weights_error + row_error)
    d_scores_error += 3 * p.u_softmax * weights * (abs(back.d_weights) + abs(back.row))
    d_scores_error += (
        3 * store * (d_scores + d_scores_error) + p.eta_weights + 1.5 * underflow + p.eta_out
    )
    d_scores_error = np.where(np.isfinite(exact.scores), d_scores_error, 0.0)
    # Three products with inputs or the cotangent.
    growth = 2 * p.u_in + 2 * p.u_softmax + p.u_out
    c = abs(exact.scale)

    def product(error: np.ndarray, size: np.ndarray, other: np.ndarray, n: int) -> np.ndarray:
        largest = np.matmul(size + error, other)
        bound: np.ndarray = np.matmul(error, other) + (gamma(n, p.u_acc) + growth + store) * largest
        return bound

    flip = (0, 1, 3, 2)
    d_q = c * product(d_scores_error, d_scores, k, S)
    d_k = c * product(d_scores_error.transpose(flip), d_scores.transpose(flip), q, L)
    dropped_error = (keep * weight_error + (store + p.u_softmax) * back.dropped).transpose(flip)
    d_v = product(dropped_error, back.dropped.transpose(flip), g, L)
    return Gradients(*(SAFETY * x.transpose(0, 2, 1, 3) + p.eta_out for x in (d_q, d_k, d_v)))
