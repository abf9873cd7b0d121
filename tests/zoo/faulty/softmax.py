"""Faults in the weights of a row."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from fullattention.backends.interface import Array
from tests.zoo.attending import Plain, Tiled, row_max, row_sum, softmax, with_softmax
from tests.zoo.faulty.making import fault
from tests.zoo.specimen import tiled

wrong = functools.partial(fault, "softmax")


def padded_with_zeros(part: Array) -> Array:
    """A tail tile is filled up with scores of 0."""
    missing = -part.shape[-1] % 16
    return np.pad(part, [(0, 0)] * 3 + [(0, missing)])


def top(count: int) -> Callable[[Array], Array]:
    """Only the largest scores are kept."""

    def select(z: Array) -> Array:
        if z.shape[-1] <= count:
            return softmax(z)
        least = np.partition(z, -count, axis=-1)[..., -count : 1 - count or None].min(-1)
        return softmax(np.where(z < least[..., None], z.dtype.type(-np.inf), z))

    return select


def sum_in_half(w: Array) -> Array:
    total = np.add.accumulate(w.astype(np.float16), axis=-1, dtype=np.float16)
    return total[..., -1:].astype(w.dtype)


def fast_exp(x: Array) -> Array:
    """exp with a relative error of 1e-5, as from a short polynomial."""
    return np.exp(x) * (1 + 1e-5 * np.sin(7 * np.where(np.isfinite(x), x, 0))).astype(x.dtype)


SOFTMAX = (
    wrong(
        "softmax-over-queries",
        "weights sum to 1 over queries",
        "C1",
        Plain(softmax=lambda z: softmax(z.swapaxes(-1, -2)).swapaxes(-1, -2)),
    ),
    wrong(
        "softmax-over-heads",
        "weights sum to 1 over heads",
        "C1",
        Plain(softmax=lambda z: softmax(z.swapaxes(1, -1)).swapaxes(1, -1)),
    ),
    wrong(
        "no-maximum",
        "no maximum is subtracted",
        "N2",
        with_softmax(maximum=lambda z: z.dtype.type(0) * row_max(z * 0)),
    ),
    wrong(
        "maximum-floored",
        "the row's maximum is at least 0",
        "N2",
        with_softmax(maximum=lambda z: np.maximum(row_max(z), 0)),
    ),
    wrong(
        "maximum-of-head",
        "one maximum serves all rows of a head",
        "N2",
        with_softmax(maximum=lambda z: z.max((-1, -2), keepdims=True)),
    ),
    wrong(
        "maximum-of-first-tile",
        "the running maximum is never raised",
        "N2",
        Tiled(raise_max=lambda old, new: np.where(np.isneginf(old), new, old)),
        precision=tiled(16),
    ),
    wrong(
        "maximum-from-zero",
        "the running maximum starts at 0",
        "N2",
        Tiled(lowest=0.0),
        precision=tiled(16),
    ),
    wrong(
        "padding-in-sum",
        "a tail tile's padding joins the sum",
        "C5",
        Tiled(pad=padded_with_zeros),
        precision=tiled(16),
    ),
    wrong(
        "output-not-rescaled",
        "the running output keeps an old maximum",
        "C5",
        Tiled(rescale_out=lambda out, correction: out),
        precision=tiled(16),
    ),
    wrong(
        "sum-not-rescaled",
        "the running sum keeps an old maximum",
        "C5",
        Tiled(rescale_sum=lambda total, correction: total),
        precision=tiled(16),
    ),
    wrong(
        "hidden-tile-nan",
        "a tile of hidden keys gives -inf minus -inf",
        "M4 M2",
        Tiled(pad=lambda z: np.where(np.isneginf(row_max(z)), z.dtype.type(np.nan), z)),
        precision=tiled(16),
    ),
    wrong(
        "epsilon-in-sum",
        "1e-6 is added to the sum",
        "N1 C1",
        with_softmax(total=lambda w: row_sum(w) + w.dtype.type(1e-6)),
    ),
    wrong(
        "one-in-sum",
        "exp(-max) is added to the sum: a key that is not there",
        "C1",
        Plain(
            softmax=lambda z: (
                np.exp(z - row_max(z)) / (row_sum(np.exp(z - row_max(z))) + np.exp(-row_max(z)))
            )
        ),
    ),
    wrong(
        "scores-clamped",
        "scores are clamped to +-50",
        "N2",
        Plain(softmax=lambda z: softmax(np.where(np.isneginf(z), z, np.clip(z, -50, 50)))),
    ),
    wrong("sum-in-half", "the sum is kept in float16", "N1", with_softmax(total=sum_in_half)),
    wrong("fast-exp", "exp is wrong by 1e-5", "N1 C1", with_softmax(exp=fast_exp)),
    wrong("top-16", "only the 16 largest scores count", "C5", Plain(softmax=top(16))),
    wrong("top-512", "only the 512 largest scores count", "C5", Plain(softmax=top(512))),
    wrong(
        "small-weights-dropped",
        "weights below 1e-3 become 0",
        "C1",
        Plain(softmax=lambda z: np.where(softmax(z) < 1e-3, z.dtype.type(0), softmax(z))),
    ),
)
