"""The formula in JAX, compiled by XLA for each shape."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fullattention.backends import jax_arrays, numpy_arrays
from fullattention.backends.dropout import kept_factor
from fullattention.backends.interface import Array, Backend, dtype_name
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
    """Attend by the compiled formula; see `interface.Attend`."""
    key = jax_arrays.random_key() if dropout else None
    with jax_arrays.wide(q):
        factors = (scale, dropout, kept_factor(dropout))
        out, a = _compiled(q, k, v, hidden, key, *factors, causal, weights)
    return out, a


def _formula(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    hidden: jax.Array | None,
    key: jax.Array | None,
    scale: jax.Array,
    dropout: jax.Array,
    keep: jax.Array,
    causal: bool,
    weights: bool,
) -> tuple[jax.Array, jax.Array | None]:
    """Half types are widened to float32; `keep` is the factor on weights that are not dropped."""
    inside = accumulator(dtype_name(q))
    wide = [array.astype(inside) for array in (q, k, v)]
    scores = scale * jnp.einsum("blhe,bshe->bhls", *wide[:2], precision="highest")
    lost = None
    if causal:
        hidden = ~jnp.tri(*scores.shape[-2:], dtype=bool)
    elif hidden is not None:
        # Rows without a visible key get their NaN last: where XLA's CPU compiler foresees that exp
        # meets NaN, it leaves the result's memory as it was.
        lost = hidden.all(-1, keepdims=True)
        hidden = hidden & ~lost
    # After scaling: a scale that underflows to 0 would make NaN of -inf.
    if hidden is not None:
        scores = jnp.where(hidden, -jnp.inf, scores)
    a = jax.nn.softmax(scores, axis=-1)
    if lost is not None:
        a = jnp.where(lost, jnp.nan, a)
    if key is not None:
        uniform = jax.random.uniform(jax.random.wrap_key_data(key), a.shape, jnp.float32)
        a = jnp.where(uniform < dropout, 0.0, keep * a)
    out = jnp.einsum("bhls,bshd->blhd", a, wide[2], precision="highest")
    return out.astype(q.dtype), a.astype(q.dtype) if weights else None


_compiled = jax.jit(_formula, static_argnames=("causal", "weights"))


def backend(device: str) -> Backend:
    """The formula on one device."""
    jax_arrays.require_device("jax-einsum", device)
    return Backend(
        name="jax-einsum",
        version=jax.__version__,
        attend=attend,
        arrays=jax_arrays.arrays_on(device),
        device=device,
        compiles=True,
        seed=numpy_arrays.seed,
        precision={dtype: standard(dtype) for dtype in DTYPES},
        masked_rows="nan",
    )
