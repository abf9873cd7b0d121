"""Faults in how much is rounded."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from fullattention.backends.interface import Array, dtype_name
from fullattention.backends.precision import working
from tests.zoo.attending import (
    Call,
    Method,
    Plain,
    Result,
    drop,
    product,
    read,
    right,
    scores,
    with_softmax,
)
from tests.zoo.faulty.making import HALF, fault, if_, in_format

wrong = functools.partial(fault, "precision")


def to_tf32(x: Array) -> Array:
    """Float32 rounded to 10 explicit bits, ties to even, staying finite."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = ((bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)
    largest = np.float32(2.0**128 - 2.0**117)
    return np.where(np.isfinite(x), np.clip(rounded, -largest, largest), x).astype(x.dtype)


def in_float32(call: Call) -> Result:
    q, k, v = (x.astype(np.float32) for x in (call.q, call.k, call.v))
    out, a = right(call.but(q=q, k=k, v=v))
    kind = call.q.dtype
    return out.astype(kind), None if a is None else a.astype(kind)


def accumulated_in_half(a: Array, v: Array) -> Array:
    out = np.zeros((*a.shape[:-1], v.shape[-1]), np.float16)
    for s in range(a.shape[-1]):
        out += (a[..., s, None] * v[..., None, s, :]).astype(np.float16)
    return out.astype(a.dtype)


def truncated(x: Array, kind: np.dtype) -> Array:
    """Rounding towards 0."""
    rounded = x.astype(kind)
    wide = rounded.astype(x.dtype)
    down = np.nextafter(rounded, kind.type(0))
    return np.where((abs(wide) > abs(x)) & np.isfinite(wide), down, rounded)


def scores_in_format(name: str) -> Method:
    to = in_format(name)
    return Plain(scores=lambda q, k: to(scores(q, k)))


def reads_as(change: Callable[[Array], Array]) -> Method:
    return Plain(read=lambda x: change(read(x)))


def product_without_pairs(a: Array, v: Array) -> Array:
    """a @ v as mean and rest: right in exact arithmetic, cancelling in this one."""
    large = v.dtype.type(2**14) * (1 + abs(v).max(initial=0))
    return a @ (v + large) - a.sum(-1, keepdims=True) * large


PRECISION = (
    wrong(
        "tf32-everywhere",
        "TF32 operands in both products",
        "N1",
        reads_as(to_tf32),
        dtypes=("float32",),
    ),
    wrong(
        "tf32-in-values",
        "TF32 operands in the second product only",
        "N1",
        Plain(product=lambda a, v: product(to_tf32(a), to_tf32(v))),
        dtypes=("float32",),
    ),
    wrong(
        "tf32-in-scores",
        "TF32 operands in the first product only",
        "N1",
        Plain(scores=lambda q, k: scores(to_tf32(q), to_tf32(k))),
        dtypes=("float32",),
    ),
    wrong(
        "bfloat16-inside",
        "bfloat16 operands in a float32 backend",
        "N1",
        reads_as(in_format("bfloat16")),
        dtypes=("float32",),
    ),
    wrong(
        "half-weights",
        "float32 weights are rounded to float16",
        "N1",
        Plain(drop=lambda a, p: in_format("float16")(drop(a, p))),
        dtypes=("float32",),
    ),
    wrong(
        "half-scores",
        "float32 scores are rounded to float16",
        "N1 N2",
        scores_in_format("float16"),
        dtypes=("float32",),
    ),
    wrong(
        "values-cancel",
        "values are shifted by a large number and back",
        "N1",
        Plain(product=product_without_pairs),
        dtypes=("float32",),
    ),
    wrong(
        "float64-as-float32",
        "float64 is computed in float32",
        "N5",
        if_(lambda c: dtype_name(c.q) == "float64", in_float32),
    ),
    wrong(
        "float64-as-float32-declared",
        "float64 is computed in float32, and that is what is declared",
        "N5",
        in_float32,
        precision=lambda dtype: working(dtype, "float32"),
        dtypes=("float64",),
    ),
    wrong(
        "float64-exp-in-float32",
        "only exp is in float32",
        "N5",
        with_softmax(exp=lambda x: np.exp(x.astype(np.float32)).astype(x.dtype)),
        dtypes=("float64",),
    ),
    wrong(
        "half-accumulation",
        "weights times values summed in float16",
        "N3",
        Plain(product=accumulated_in_half),
        dtypes=("float16",),
    ),
    wrong("half-truncated", "V is rounded towards 0", "N1", Plain(write=truncated), dtypes=HALF),
    wrong(
        "half-scores-stored",
        "half scores are stored in between, undeclared",
        "N1",
        scores_in_format("float16"),
        dtypes=("float16",),
    ),
    wrong(
        "half-overflow",
        "scores beyond 65504 overflow, undeclared",
        "N3",
        Plain(
            scores=lambda q, k: np.where(
                abs(scores(q, k)) > 65504, np.sign(scores(q, k)) * np.float32(np.inf), scores(q, k)
            )
        ),
        dtypes=("float16",),
    ),
    wrong(
        "weights-coarse",
        "returned weights are rounded to bfloat16",
        "W1",
        lambda c: (right(c)[0], None if not c.weights else in_format("bfloat16")(right(c)[1])),
        dtypes=("float32",),
    ),
)
