"""The specification as code: float64 inside, one einsum per product, nothing clever."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from fullattention.backends import numpy_arrays
from fullattention.backends.interface import SCORE_COPIES, Array, Backend, Sizes
from fullattention.backends.precision import DTYPES, working


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    hidden: Array | None,
    causal: bool,
    scale: float,
    dropout: float,
    weights: bool,
) -> tuple[Array, Array | None]:
    """Attend as the contract writes it; see `interface.Attend`."""
    queries, keys, values = (array.astype(np.float64) for array in (q, k, v))
    if causal:
        hidden = np.triu(np.ones((q.shape[1], k.shape[1]), bool), 1)
    # Infinities and NaN are legal inputs and results, not accidents to warn about.
    with np.errstate(all="ignore"):
        scores = np.einsum("blhe,bshe->bhls", queries, keys)
        if hidden is not None:
            scores[np.broadcast_to(hidden, scores.shape)] = -np.inf
        scores = scale * scores
        exponentials = np.exp(scores - scores.max(-1, keepdims=True))
        a = exponentials / exponentials.sum(-1, keepdims=True)
        a = numpy_arrays.drop(a, dropout)
        out = np.einsum("bhls,bshd->blhd", a, values)
        return out.astype(q.dtype), a.astype(q.dtype) if weights else None


def _score_copies(sizes: Sizes, uses: Collection[str]) -> float:
    """Those of the formula, and the weights in the input's dtype."""
    return SCORE_COPIES + (1.0 if "weights" in uses else 0.0)


def backend(device: str) -> Backend:
    """The reference on the CPU."""
    numpy_arrays.require_cpu("numpy-reference", device)
    return Backend(
        name="numpy-reference",
        version=np.__version__,
        attend=attend,
        arrays=numpy_arrays.ARRAYS,
        device=device,
        seed=numpy_arrays.seed,
        precision={dtype: working(dtype, "float64") for dtype in DTYPES},
        masked_rows="nan",
        score_copies=_score_copies,
        lacks=numpy_arrays.LACKS,
    )
