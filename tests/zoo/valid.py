"""Candidates that are right, each unusual in one way that a suite might hold against it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from fullattention.backends import standard, tf32
from fullattention.backends.interface import Array
from fullattention.backends.precision import working
from tests.zoo.attending import (
    RANDOM,
    Call,
    Method,
    Plain,
    Result,
    Tiled,
    hidden_keys,
    hide,
    multiply,
    read,
    right,
    row_max,
    row_sum,
    scores,
    shifted,
    tiles,
    with_softmax,
    write,
)
from tests.zoo.faulty.determinism import in_any_order
from tests.zoo.faulty.making import HALF
from tests.zoo.faulty.precision import to_tf32
from tests.zoo.layers import NumpyLayer, UpstreamLayer
from tests.zoo.specimen import Specimen, backend, tiled


def valid(kind: str, name: str, reason: str, method: Method, **fields: Any) -> Specimen:
    usual = {"dtypes": ("float32", "float16")}  # the classes take all four: enough for the others
    candidate = backend(name, method, **usual | fields)
    return Specimen(name=name, kind=kind, reason=reason, candidate=candidate)


def backwards(S: int, size: int) -> list[slice]:
    return tiles(S, size)[::-1]


def uneven(S: int, size: int) -> list[slice]:
    """Tiles of 1, 2, 3, ... keys."""
    edges = [0]
    while edges[-1] < S:
        edges.append(min(edges[-1] + len(edges), S))
    return [slice(low, high) for low, high in itertools.pairwise(edges)]


def split_keys(call: Call) -> Result:
    """Three parts of the keys by themselves, merged by their logsumexp."""
    q, k, v = (read(x) for x in (call.q, call.k, call.v))
    z = multiply(hide(scores(q, k), hidden_keys(call)), call.scale)
    kept = Plain().drop(np.ones_like(z), call.dropout)
    parts = []
    for keys in np.array_split(np.arange(z.shape[-1]), 3):
        if len(keys):
            part = z[..., keys]
            top = row_max(part)
            w = shifted(part, top)
            parts.append((top, row_sum(w), (w * kept[..., keys]) @ v[:, :, keys]))
    highest = np.max([top for top, _, _ in parts], axis=0)
    total = sum(shifted(top, highest) * s for top, s, _ in parts)
    out = sum(shifted(top, highest) * o for top, _, o in parts) / total
    a = kept * shifted(z, highest) / total
    dtype = call.q.dtype
    return write(out.transpose(0, 2, 1, 3), dtype), write(a, dtype) if call.weights else None


def entry_by_entry(call: Call) -> Result:
    """A loop over the batch, so that no entry can know of another."""
    hidden = call.hidden
    results = []
    for b in range(len(call.q)):
        span = slice(b, b + 1)
        own = hidden if hidden is None or len(hidden) == 1 else hidden[span]
        results.append(right(call.but(q=call.q[span], k=call.k[span], v=call.v[span], hidden=own)))
    outs, weights = zip(*results, strict=True)
    return np.concatenate(outs), np.concatenate(weights) if call.weights else None


def float64_inside(x: Array) -> Array:
    return x.transpose(0, 2, 1, 3).astype(np.float64)


def exp_by_squaring(x: Array) -> Array:
    """exp(x) = exp(x / 2) ** 2: a few ulp, declared."""
    return np.exp(x / 2) ** 2


def merged_scale(call: Call) -> Result:
    """Scale and log2(e) go into the queries, exp becomes exp2."""
    z = scores(multiply(read(call.q), call.scale * math.log2(math.e)), read(call.k))
    plain = with_softmax(exp=np.exp2)
    return replace(plain, scores=lambda q, k: z, scale=lambda z, c: z)(call)


def other_random(a: Array, p: float) -> Array:
    """Whole numbers below 2^16 instead of uniform ones, drawn keys first."""
    if p in (0, 1):
        return a * a.dtype.type(1 - p)
    bits = RANDOM.generator.integers(2**16, size=a.shape[::-1]).T
    return np.where(bits >= p * 2**16, multiply(a, 1 / (1 - p)), a.dtype.type(0))


def strided_result(call: Call) -> Result:
    """Views with gaps: the layer makes them contiguous."""
    out, a = right(call)
    return with_gaps(out), None if a is None else with_gaps(a)


def with_gaps(x: Array) -> Array:
    wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan, np.float32).astype(x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def by_the_letter(call: Call) -> Result:
    """Relies on all that the interface promises, and on never being sent a hidden row."""
    (B, L, H, E), (_, S, _, D) = call.q.shape, call.v.shape
    assert min(B, L, S, H, E, D) > 0
    assert call.k.shape == (B, S, H, E)
    assert call.v.shape == (B, S, H, D)
    assert call.hidden is None or (call.hidden.ndim == 4 and call.hidden.dtype == bool)
    assert not call.causal or (L == S and call.hidden is None)
    assert math.isfinite(call.scale)
    assert call.scale != 0
    assert 0 <= call.dropout <= 1
    hidden = hidden_keys(call)
    assert hidden is None or not hidden.all(-1).any()
    return right(call)


NOTHING = dict.fromkeys(("mask", "causal", "weights", "dropout", "gradient"), "kept small")

VALID_BACKENDS = (
    valid("order", "tile-7", "an online softmax, tiles of 7", Tiled(tile=7), precision=tiled(1)),
    valid("order", "tile-3", "an online softmax, tiles of 3", Tiled(tile=3), precision=tiled(1)),
    valid(
        "order",
        "reversed-keys",
        "an online softmax from the last key on",
        Tiled(tiles=backwards),
        precision=tiled(1),
    ),
    valid(
        "order",
        "uneven-tiles",
        "an online softmax, no two tiles alike",
        Tiled(tiles=uneven),
        precision=tiled(1),
    ),
    valid(
        "order",
        "blocked",
        "sums within tiles of 32 keys, then over the tiles, and says so",
        Tiled(tile=32),
        precision=lambda dtype: replace(standard(dtype), tile=32, blocked=True),
    ),
    valid(
        "order",
        "split-keys",
        "three parts of the keys, merged by logsumexp",
        split_keys,
        precision=tiled(1),
    ),
    valid(
        "precision",
        "float64-inside",
        "float64 whatever the inputs are",
        Plain(read=float64_inside),
        precision=lambda dtype: working(dtype, "float64"),
        dtypes=("float32", "bfloat16"),
    ),
    valid("precision", "half-only", "half types, float32 inside", right, dtypes=HALF),
    valid(
        "precision",
        "tf32-declared",
        "TF32 operands, and says so",
        Plain(
            scores=lambda q, k: scores(to_tf32(q), to_tf32(k)),
            product=lambda a, v: to_tf32(a) @ to_tf32(v),
        ),
        precision=tf32,
        dtypes=("float32",),
    ),
    valid(
        "precision",
        "exp-declared",
        "a coarser exp, and says so",
        with_softmax(exp=exp_by_squaring),
        precision=lambda dtype: replace(standard(dtype), exp_ulp=8.0),
        dtypes=("float32",),
    ),
    valid(
        "precision",
        "exp2",
        "scale and log2(e) folded into the queries, and says so",
        merged_scale,
        precision=lambda dtype: replace(standard(dtype), u_in=standard(dtype).u_softmax),
        dtypes=("float32",),
    ),
    valid("dropout", "other-random", "another random generator", Plain(drop=other_random)),
    valid(
        "capabilities",
        "fewest",
        "no capability at all, one dtype",
        right,
        lacks=NOTHING,
        dtypes=("float32",),
    ),
    valid(
        "capabilities",
        "no-weights",
        "a fused kernel's usual lack",
        lambda c: (right(c)[0], None),
        lacks={"weights": "fused"},
    ),
    valid("form", "strided-result", "V and the weights come with gaps", strided_result),
    valid(
        "form",
        "rows-zero",
        "fully hidden rows are 0 by nature",
        Tiled(empty_row=0.0),
        precision=tiled(1),
        masked_rows="zero",
    ),
    valid(
        "form",
        "by-the-letter",
        "takes the interface at its word, and is never sent a fully hidden row, as it declares",
        by_the_letter,
        masked_rows=None,
    ),
    valid(
        "determinism",
        "unordered-declared",
        "sums in any order, and says so",
        Plain(product=in_any_order),
        lacks={"determinism": "sums run in any order"},
    ),
    valid(
        "determinism",
        "batch-invariant",
        "entry by entry, and says so",
        entry_by_entry,
        batch_invariant=True,
    ),
)


class OwnArray(np.ndarray):
    """An array of a library that builds on NumPy's."""


class ReturnsOwnArrays(NumpyLayer):
    """Results are arrays of a subclass."""

    def returned(self, out: Array, a: Array | None) -> Any:
        out, a = super().returned(out, a)
        return out.view(OwnArray), None if a is None else a.view(OwnArray)


VALID_LAYERS = tuple(
    Specimen(name=layer.__name__, kind="layer", reason=reason, candidate=layer)
    for layer, reason in (
        (UpstreamLayer, "Time-Series-Library's own"),
        (NumpyLayer, "the same in NumPy"),
        (ReturnsOwnArrays, "its results are arrays of a subclass of NumPy's"),
    )
)

VALID = (*VALID_BACKENDS, *VALID_LAYERS)
