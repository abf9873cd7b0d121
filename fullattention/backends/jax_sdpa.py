"""JAX's own dot_product_attention, compiled by XLA for each shape."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fullattention.backends import jax_arrays
from fullattention.backends.interface import Array, Backend
from fullattention.backends.precision import DTYPES, Precision, standard, with_stored_weights
from fullattention.backends.reasons import CLEAN

NO_WEIGHTS = "dot_product_attention does not return weights"
NO_DROPOUT = "dot_product_attention drops nothing"
NO_HALF = (
    "XLA's CPU compiler refuses products of halves with float32 sums, some or all by their size"
)
NARROWED = "dot_product_attention takes its softmax in float32"


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
    """Attend by dot_product_attention; see `interface.Attend`."""
    return _compiled(q, k, v, hidden, scale, causal), None


def _call(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    hidden: jax.Array | None,
    scale: jax.Array,
    causal: bool,
) -> jax.Array:
    """It takes E == D: zeros appended to features or columns change no score and no column of V."""
    width = max(q.shape[-1], v.shape[-1])
    with jax.default_matmul_precision("highest"):
        out = jax.nn.dot_product_attention(
            *(_widened(array, width) for array in (q, k, v)),
            mask=None if hidden is None else ~hidden,
            scale=scale,
            is_causal=causal,
        )
    return out[..., : v.shape[-1]]


_compiled = jax.jit(_call, static_argnames="causal")


def _widened(array: jax.Array, width: int) -> jax.Array:
    return jnp.pad(array, ((0, 0), (0, 0), (0, 0), (0, width - array.shape[-1])))


def _precision(dtype: str) -> Precision:
    """Weights are stored in the values' dtype."""
    model = standard(dtype)
    return model if dtype == "float32" else with_stored_weights(model, dtype)


def backend(device: str) -> Backend:
    """JAX's choice of kernel on one device."""
    jax_arrays.require_device("jax", device)
    refused = {"float64": NARROWED}
    if device == "cpu":
        refused |= dict.fromkeys(("float16", "bfloat16"), NO_HALF)
    return Backend(
        name="jax",
        version=jax.__version__,
        attend=attend,
        arrays=jax_arrays.arrays_on(device),
        device=device,
        compiles=True,
        precision={dtype: _precision(dtype) for dtype in DTYPES if dtype not in refused},
        lacks={"weights": NO_WEIGHTS, "dropout": NO_DROPOUT, **refused},
        deviates={"G3": CLEAN},
    )
