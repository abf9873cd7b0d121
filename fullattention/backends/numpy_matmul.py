"""What a NumPy user would really run: batched matmul in the input's precision, in place."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from fullattention.backends import numpy_arrays
from fullattention.backends.interface import SCORE_COPIES, Array, Backend, Sizes, dtype_name
from fullattention.backends.precision import DTYPES, accumulator, standard


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
    """Attend by two batched matrix products; see `interface.Attend`.

    Half types are widened to float32: NumPy has no fast product for them.
    """
    inside = accumulator(dtype_name(q))
    queries = q.transpose(0, 2, 1, 3).astype(inside, copy=False)
    keys = k.transpose(0, 2, 3, 1).astype(inside, copy=False)
    values = v.transpose(0, 2, 1, 3).astype(inside, copy=False)
    if causal:
        hidden = np.triu(np.ones((q.shape[1], k.shape[1]), bool), 1)
    # Infinities and NaN are legal inputs and results, not accidents to warn about.
    with np.errstate(all="ignore"):
        a = queries @ keys
        a *= a.dtype.type(scale)
        # After scaling: a scale that underflows to 0 would make NaN of -inf.
        if hidden is not None:
            np.copyto(a, -np.inf, where=hidden)
        a -= a.max(-1, keepdims=True)
        np.exp(a, out=a)
        a /= a.sum(-1, keepdims=True)
        a = numpy_arrays.drop(a, dropout)
        out = (a @ values).transpose(0, 2, 1, 3)
        return out.astype(q.dtype, order="C"), a.astype(q.dtype, copy=False) if weights else None


def _score_copies(sizes: Sizes, uses: Collection[str]) -> float:
    """One, in which every step is done, unless weights are returned or dropped."""
    return 1.0 if {"weights", "dropout"}.isdisjoint(uses) else SCORE_COPIES


def backend(device: str) -> Backend:
    """Batched matmul on the CPU."""
    numpy_arrays.require_cpu("numpy-matmul", device)
    return Backend(
        name="numpy-matmul",
        version=np.__version__,
        attend=attend,
        arrays=numpy_arrays.ARRAYS,
        device=device,
        seed=numpy_arrays.seed,
        precision={dtype: standard(dtype) for dtype in DTYPES},
        masked_rows="nan",
        score_copies=_score_copies,
        lacks=numpy_arrays.LACKS,
    )
