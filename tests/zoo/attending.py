"""A right implementation of attention, plain and tiled, as steps that a specimen can replace.

Between the steps arrays are heads first, (B, H, L, E), in the precision that sums are kept in.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fullattention.backends import Attend
from fullattention.backends.interface import Array, dtype_name
from fullattention.backends.precision import accumulator

Result = tuple[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Call:
    """The arguments of one `attend`."""

    q: Array
    k: Array
    v: Array
    hidden: Array | None
    causal: bool
    scale: float
    dropout: float
    weights: bool

    def but(self, **changes: Any) -> Call:
        return replace(self, **changes)


Method = Callable[[Call], Result]


def as_attend(method: Method) -> Attend:
    """A method as the backend interface wants it."""

    def attend(q: Array, k: Array, v: Array, **options: Any) -> Result:
        with np.errstate(all="ignore"):
            return method(Call(q=q, k=k, v=v, **options))

    return attend


class Random:
    """The generator that all specimens draw from; as in the frameworks, one for the process."""

    def __init__(self) -> None:
        self.seed(0)

    def seed(self, value: int) -> None:
        self.generator = np.random.default_rng(value)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        return self.generator.random(shape)


RANDOM = Random()


def read(x: Array) -> Array:
    """(B, L, H, E) in any dtype -> (B, H, L, E) in the precision that sums are kept in."""
    return x.transpose(0, 2, 1, 3).astype(accumulator(dtype_name(x)))


def write(x: Array, dtype: np.dtype) -> Array:
    return x.astype(dtype)


def hidden_keys(call: Call) -> Array | None:
    """What the call hides, causally or by its mask."""
    return later(call, first=1) if call.causal else call.hidden


def later(call: Call, first: int) -> Array:
    """Hides the keys from `first` after a query's own position on."""
    return np.triu(np.ones((call.q.shape[1], call.k.shape[1]), bool), first)


def scores(q: Array, k: Array) -> Array:
    return q @ k.swapaxes(-1, -2)


def hide(z: Array, hidden: Array | None) -> Array:
    return z if hidden is None else np.where(hidden, z.dtype.type(-np.inf), z)


def multiply(x: Array, factor: float) -> Array:
    return x * x.dtype.type(factor)


def row_max(z: Array) -> Array:
    return z.max(-1, keepdims=True)


def row_sum(w: Array) -> Array:
    return w.sum(-1, keepdims=True)


def softmax(
    z: Array,
    *,
    maximum: Callable[[Array], Array] = row_max,
    exp: Callable[[Array], Array] = np.exp,
    total: Callable[[Array], Array] = row_sum,
) -> Array:
    w = exp(z - maximum(z))
    return w / total(w)


def drop(a: Array, p: float) -> Array:
    """Keep a weight with probability 1 - p, and make up for the others."""
    if p in (0, 1):
        return a * a.dtype.type(1 - p)
    return np.where(RANDOM.uniform(a.shape) >= p, multiply(a, 1 / (1 - p)), a.dtype.type(0))


def product(a: Array, v: Array) -> Array:
    return a @ v


@dataclass(frozen=True, kw_only=True)
class Plain:
    """All scores at once."""

    read: Callable[[Array], Array] = read
    read_values: Callable[[Array], Array] | None = None
    hidden: Callable[[Call], Array | None] = hidden_keys
    scores: Callable[[Array, Array], Array] = scores
    hide: Callable[[Array, Array | None], Array] = hide
    scale: Callable[[Array, float], Array] = multiply
    softmax: Callable[[Array], Array] = softmax
    drop: Callable[[Array, float], Array] = drop
    product: Callable[[Array, Array], Array] = product
    write: Callable[[Array, np.dtype], Array] = write

    def __call__(self, call: Call) -> Result:
        q, k = self.read(call.q), self.read(call.k)
        v = (self.read_values or self.read)(call.v)
        z = self.scale(self.hide(self.scores(q, k), self.hidden(call)), call.scale)
        a = self.drop(self.softmax(z), call.dropout)
        out = self.product(a, v).transpose(0, 2, 1, 3)
        dtype = call.q.dtype
        return self.write(out, dtype), self.write(a, dtype) if call.weights else None


right = Plain()


def tiles(S: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, S)) for start in range(0, S, size)]


def shifted(z: Array, top: Array) -> Array:
    """exp(z - top), 0 where no key has been seen yet."""
    return np.exp(z - np.where(np.isneginf(top), top.dtype.type(0), top))


@dataclass(frozen=True, kw_only=True)
class Tiled:
    """Online softmax: keys a tile at a time, with a running maximum, sum and output."""

    tile: int = 16
    tiles: Callable[[int, int], list[slice]] = tiles
    lowest: float = -math.inf
    """What the running maximum starts at."""
    raise_max: Callable[[Array, Array], Array] = np.maximum
    rescale_sum: Callable[[Array, Array], Array] = np.multiply
    rescale_out: Callable[[Array, Array], Array] = np.multiply
    pad: Callable[[Array], Array] = np.asarray
    """What becomes of the scores of a tile."""
    empty_row: float = math.nan
    """What a row holds whose keys are all hidden."""
    read: Callable[[Array], Array] = read

    def __call__(self, call: Call) -> Result:
        q, k, v = (self.read(x) for x in (call.q, call.k, call.v))
        z = multiply(hide(scores(q, k), hidden_keys(call)), call.scale)
        kept = drop(np.ones_like(z), call.dropout)
        top = np.full((*z.shape[:-1], 1), self.lowest, z.dtype)
        total = np.zeros_like(top)
        out = np.zeros((*z.shape[:-1], v.shape[-1]), z.dtype)
        for tile in self.tiles(z.shape[-1], self.tile):
            part = self.pad(z[..., tile])
            raised = self.raise_max(top, row_max(part))
            correction = shifted(top, raised)
            w = shifted(part, raised)
            size = tile.stop - tile.start
            total = self.rescale_sum(total, correction) + row_sum(w)
            out = (
                self.rescale_out(out, correction)
                + (w[..., :size] * kept[..., tile]) @ v[:, :, tile]
            )
            top = raised
        empty = total == 0
        total = np.where(empty, total.dtype.type(1), total)
        fill = z.dtype.type(self.empty_row)
        out = np.where(empty, fill, out / total).transpose(0, 2, 1, 3)
        a = np.where(empty, fill, kept * shifted(z, top) / total)
        dtype = call.q.dtype
        return write(out, dtype), write(a, dtype) if call.weights else None


def with_softmax(**steps: Any) -> Plain:
    """The plain method with other steps inside its softmax."""
    return Plain(softmax=functools.partial(softmax, **steps))
