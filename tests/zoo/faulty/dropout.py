"""Faults in which weights are dropped."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from fullattention.backends.interface import Array
from tests.zoo.attending import (
    RANDOM,
    Call,
    Method,
    Plain,
    Result,
    drop,
    multiply,
    right,
    row_sum,
    softmax,
)
from tests.zoo.faulty.making import fault, then

wrong = functools.partial(fault, "dropout")


def kept_as(
    draw: Callable[[tuple[int, ...]], Array], *, grow: float | None = None, invert: bool = False
) -> Method:
    """Weights dropped by another draw of uniform numbers, or kept ones scaled otherwise."""

    def shared(a: Array, p: float) -> Array:
        if p in (0, 1):
            return drop(a, p)
        uniform = draw(a.shape)
        kept = uniform < p if invert else uniform >= p
        return np.where(kept, multiply(a, 1 / (1 - p) if grow is None else grow), a.dtype.type(0))

    return Plain(drop=shared)


def along(*axes: int) -> Callable[[tuple[int, ...]], Array]:
    """One draw shared along some axes."""

    def draw(shape: tuple[int, ...]) -> Array:
        own = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
        return np.broadcast_to(RANDOM.uniform(own), shape)

    return draw


def repeated(period: int) -> Callable[[tuple[int, ...]], Array]:
    """Draws that repeat along the keys, as from a generator restarted for every tile."""

    def draw(shape: tuple[int, ...]) -> Array:
        first = RANDOM.uniform((*shape[:-1], period))
        return np.tile(first, -(-shape[-1] // period))[..., : shape[-1]]

    return draw


def by_sum_of_indices(shape: tuple[int, ...]) -> Array:
    """One draw for each l + s: counters of the generator that overlap from row to row."""
    B, H, L, S = shape
    stream = RANDOM.uniform((B, H, L + S))
    return stream[:, :, np.add.outer(np.arange(L), np.arange(S))]


def spares_last_key(shape: tuple[int, ...]) -> Array:
    uniform = RANDOM.uniform(shape)
    uniform[..., -1] = 1.0
    return uniform


def dropped_in_eighths(a: Array, p: float) -> Array:
    rate = math.ceil(8 * p) / 8
    return multiply(drop(a, rate), (1 - rate) / (1 - p)) if p < 1 else drop(a, p)


def frozen(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(5).random(shape)


def drop_before_softmax(call: Call) -> Result:
    return Plain(
        softmax=lambda z: softmax(drop(z, call.dropout)) if call.dropout else softmax(z),
        drop=lambda a, p: a,
    )(call)


def drop_values(call: Call) -> Result:
    """V is dropped, not the weights."""
    out, a = right(call.but(dropout=0.0))
    return drop(out, call.dropout), a


def renormalised(a: Array, p: float) -> Array:
    dropped = drop(a, p)
    total = row_sum(dropped)
    return dropped if p == 0 else dropped / np.where(total == 0, 1, total).astype(a.dtype)


def weights_before_dropout(call: Call) -> Result:
    return right(call)[0], right(call.but(dropout=0.0))[1]


DROPOUT = (
    wrong(
        "dropout-of-positive-scale",
        "nothing is dropped where the scale is negative",
        "P2",
        then(lambda c: c if c.scale > 0 else c.but(dropout=0.0)),
    ),
    wrong("dropout-ignored", "nothing is dropped", "P1 P2", then(lambda c: c.but(dropout=0.0))),
    wrong("dropout-shared-by-heads", "every head drops the same", "P2", kept_as(along(1))),
    wrong("dropout-shared-by-batch", "every batch entry drops the same", "P2", kept_as(along(0))),
    wrong("dropout-of-columns", "a key is dropped for all queries", "P2", kept_as(along(2))),
    wrong("dropout-of-rows", "a query drops all keys or none", "P2", kept_as(along(3))),
    wrong("dropout-repeats", "every tile of 8 keys drops the same", "P2", kept_as(repeated(8))),
    wrong(
        "dropout-counters-overlap",
        "rows drop shifted copies of one pattern",
        "P2",
        kept_as(by_sum_of_indices),
    ),
    wrong(
        "dropout-spares-last-key", "the last key is never dropped", "P2", kept_as(spares_last_key)
    ),
    wrong(
        "dropout-in-eighths",
        "p is rounded up to a multiple of 1 / 8",
        "P2",
        Plain(drop=dropped_in_eighths),
    ),
    wrong(
        "dropout-before-softmax", "scores are dropped instead of weights", "P2", drop_before_softmax
    ),
    wrong(
        "dropout-of-output",
        "V is dropped instead of the weights",
        "P2",
        drop_values,
        lacks={"weights": "fused"},
    ),
    wrong(
        "dropout-inverted",
        "weights are kept with probability p",
        "P2",
        kept_as(RANDOM.uniform, invert=True),
    ),
    wrong(
        "dropout-not-rescaled",
        "kept weights are not divided by 1 - p",
        "P2",
        kept_as(RANDOM.uniform, grow=1.0),
    ),
    wrong(
        "dropout-renormalised",
        "kept weights are made to sum to 1 again",
        "P2",
        Plain(drop=renormalised),
    ),
    wrong(
        "dropout-half-rate",
        "only p / 2 of the weights are dropped",
        "P2",
        kept_as(lambda shape: (1 + RANDOM.uniform(shape)) / 2 * (RANDOM.uniform(shape) > 0.25)),
    ),
    wrong("dropout-frozen", "every call drops the same", "P3", kept_as(frozen)),
    wrong("dropout-unseeded", "the seed has no effect", "P3", right, seed=lambda value: None),
    wrong(
        "dropout-all-nan",
        "p = 1 divides 0 by 0",
        "P1",
        Plain(drop=lambda a, p: a * a.dtype.type(0) / a.dtype.type(0) if p == 1 else drop(a, p)),
    ),
    wrong(
        "weights-before-dropout",
        "returned weights are those before dropout",
        "P2 W1",
        weights_before_dropout,
    ),
)
