"""The float64 oracle: what FullAttention's definition gives for the inputs as they are stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fullattention.backends.interface import MaskedRows


@dataclass(frozen=True)
class Exact:
    """Float64 inputs, the steps between, and the results."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float
    scores: np.ndarray
    """Scaled, -inf where hidden: (B, H, L, S)."""
    weights: np.ndarray
    out: np.ndarray
    settled: np.ndarray
    """Rows (B, H, L, 1) that the profile decides, not arithmetic: fully hidden ones set to 0."""


def exact_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    hidden: np.ndarray | None,
    scale: float,
    masked_rows: MaskedRows = "nan",
) -> Exact:
    """Attend in float64, literally: hide, scale, softmax, sum.

    Shapes: q (B, L, H, E), k (B, S, H, E), v (B, S, H, D), all axes non-empty; `hidden` broadcasts
    to (B, H, L, S). NaN and infinities go where the definition sends them.
    """
    q, k, v = (np.asarray(array, np.float64) for array in (q, k, v))
    with np.errstate(all="ignore"):
        scores = np.matmul(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1))
        shown = np.broadcast_to(False if hidden is None else hidden, scores.shape)
        scores = scale * np.where(shown, -np.inf, scores)
        exponentials = np.exp(scores - scores.max(-1, keepdims=True))
        weights = exponentials / exponentials.sum(-1, keepdims=True)
        fully_hidden = np.logical_and.reduce(shown, -1, keepdims=True)
        settled = fully_hidden if masked_rows == "zero" else np.zeros_like(fully_hidden)
        weights = np.where(settled, 0.0, weights)
        out = np.matmul(weights, v.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
        out = np.where(settled.transpose(0, 2, 1, 3), 0.0, out)
    return Exact(q, k, v, scale, scores, weights, out, settled)
