"""Faults in results that depend on chance or on the batch."""

from __future__ import annotations

import functools
import itertools
import time

import numpy as np

from fullattention.backends import Precision, standard
from fullattention.backends.interface import Array
from fullattention.backends.precision import tensor_cores
from tests.zoo.attending import Call, Method, Plain, Result, Tiled, hidden_keys, right
from tests.zoo.faulty.making import fault, if_, in_format, is_half
from tests.zoo.specimen import tiled

wrong = functools.partial(fault, "determinism")


def loses_tiles(share: float) -> Method:
    """Now and then the keys of one tile are lost."""
    rng = np.random.default_rng(1)

    def lose(call: Call) -> Array | None:
        hidden = hidden_keys(call)
        if rng.random() >= share:
            return hidden
        S = call.k.shape[1]
        lost = np.arange(S) // 4 == rng.integers(-(-S // 4))
        return lost if hidden is None else hidden | lost

    return Plain(hidden=lose)


def in_any_order(a: Array, v: Array) -> Array:
    order = np.random.default_rng(time.perf_counter_ns()).permutation(a.shape[-1])
    return a[..., order] @ v[:, :, order]


def by_batch_size(call: Call) -> Result:
    """Splits the keys in as many parts as there are batch entries."""
    return Tiled(tile=2 * call.q.shape[0])(call)


def coupled_by_batch(call: Call) -> Result:
    """Adds a trace of the batch's mean, as a statistic over the batch would."""
    out, a = right(call)
    trace = out.astype(np.float64).mean(0, keepdims=True) if len(out) > 3 else 0
    return (out + 1e-4 * trace).astype(out.dtype), a


with_half_weights = Plain(product=lambda a, v: in_format("float16")(a) @ v)
"""A kernel that rounds its weights; others need not, and both keep to one declaration."""


def on_tensor_cores(dtype: str) -> Precision:
    return tensor_cores(standard(dtype), dtype)


def in_turn(first: Method, second: Method) -> Method:
    """Two kernels, taken by the count of calls."""
    kernels = itertools.cycle((first, second))

    def method(call: Call) -> Result:
        return next(kernels)(call)

    return method


DETERMINISM = (
    wrong("race", "3 % of the calls lose a tile of keys", "C9 C11 C5", loses_tiles(0.03)),
    wrong(
        "unordered-sum",
        "sums run in another order every time, undeclared",
        "C9",
        Plain(product=in_any_order),
    ),
    wrong(
        "batch-variant",
        "declares batch_invariant, splits keys by B",
        "C10",
        by_batch_size,
        batch_invariant=True,
        precision=tiled(2),
    ),
    wrong("batch-coupled", "entries of large batches mix", "C10", coupled_by_batch),
    wrong(
        "half-kernels-in-turn",
        "in half types two kernels take turns",
        "C9",
        if_(is_half, in_turn(right, with_half_weights)),
        dtypes=("float32", "float16"),
        precision=on_tensor_cores,
    ),
    wrong(
        "half-batch-variant",
        "declares batch_invariant; in half types a kernel of its own takes single entries",
        "C10",
        if_(lambda call: is_half(call) and len(call.q) == 1, with_half_weights),
        dtypes=("float32", "float16"),
        precision=on_tensor_cores,
        batch_invariant=True,
    ),
)
