"""FullAttention in float64 as steps, each of which an implementation can get wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fullattention.backends.interface import MaskedRows, Sizes
from fullattention.conformance.call import Call

Array = np.ndarray
Operands = tuple[Array, Array, Array]


class Refusal(Exception):
    """An implementation refuses the call."""


class Contradiction(Exception):
    """An implementation would not have left what the candidate left."""


@dataclass(frozen=True)
class Prediction:
    """What an implementation answers, in float64."""

    out: Array
    """(B, L, H, D)"""
    weights: Array | None
    """(B, H, L, S)"""


def _refuse_lengths(L: int, S: int) -> Array:
    raise Refusal(f"causal attention with L = {L} and S = {S}")


def _refuse_sizes(call: Call) -> Call:
    B, _, S, H, E, D = call.shape
    if call.k.shape != (B, S, H, E) or call.v.shape != (B, S, H, D):
        raise Refusal("sizes differ")
    return call


def softmax_of(z: Array, hidden: Array | None, call: Call) -> Array:
    """Weights over keys, NaN where there is none to see."""
    return normalised(np.exp(z - z.max(-1, keepdims=True)))


def normalised(w: Array, axis: int = -1) -> Array:
    """Divided by the sum over an axis, in float64."""
    shares: Array = w / w.sum(axis, keepdims=True)
    return shares.astype(np.float64)


def settled(a: Array, empty: Array, profile: MaskedRows) -> Array:
    """Weights with the fully hidden rows of a profile."""
    return np.where(empty, 0.0, a) if profile == "zero" else a


def dropped(a: Array, p: float, kept: Array | None) -> Array:
    """Weights after dropout."""
    return kept_of(a / (1 - p), 1 - p, kept)


def kept_of(a: Array, rate: float, kept: Array | None) -> Array:
    """What was kept, as V shows it.

    Raises:
        Contradiction: that is not the right share of the weights.
    """
    if kept is None or abs(kept.mean() - rate) > 0.08:
        raise Contradiction("another share of the weights is kept")
    return np.where(kept, a, 0.0)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """FullAttention, step by step. Arrays are float64 and, after `read`, heads first."""

    sizes: Callable[[Call], Call] = _refuse_sizes
    """Refuses sizes that do not fit together."""
    read: Callable[[Operands, Call], Operands] = lambda operands, call: operands
    """How q, k, v (B, T, H, X) are taken from memory."""
    default_scale: Callable[[Sizes], float] = lambda sizes: 1 / math.sqrt(sizes.E)
    zero_scale: Callable[[float], float] = lambda default: default
    """The factor for a scale of 0."""
    given_scale: Callable[[float, float], float] = lambda scale, default: scale
    scale: Callable[[float, Call], float] = lambda factor, call: factor
    """The factor that is used at last."""
    given_mask: Callable[[Array], Array] = lambda hidden: hidden
    """How a mask array, four axes that broadcast to (B, H, L, S), is read."""
    mask_when_off: bool = False
    causal_when_off: bool = False
    square: Callable[[int], Array | None] = lambda n: np.triu(np.ones((n, n), bool), 1)
    """What is hidden without a mask, L = S > 1."""
    single: Callable[[int], Array | None] = lambda S: None
    """The same for L = 1."""
    oblong: Callable[[int, int], Array | None] = _refuse_lengths
    """The same for other L and S."""
    score: Callable[[Array, Array, Array | None, float], Array] = lambda q, k, hidden, c: (
        c * hide(q @ k.swapaxes(-1, -2), hidden)
    )
    """Takes q, k, what is hidden, and the factor."""
    softmax: Callable[[Array, Array | None, Call], Array] = softmax_of
    settle: Callable[[Array, Array, MaskedRows], Array] = settled
    """What rows (B, H, L, 1) hold from which every key is hidden."""
    drop_in_eval: bool = False
    drop: Callable[[Array, float, Array | None], Array] = dropped
    """Takes the weights, p, and which weights the candidate kept (None: V does not show)."""
    product: Callable[[Array, Array], Array] = np.matmul
    write: Callable[[Array, Call], Array] = lambda out, call: out
    """V (B, L, H, D) as it is returned."""
    returned: Callable[[Array, Array, Call], Array] = lambda before, after, call: after
    """The weights that are returned, of those before and after dropout."""

    def __call__(self, call: Call, kept: Array | None = None) -> Prediction:
        """What an implementation with these steps answers.

        Raises:
            Refusal: it refuses, or cannot.
            Contradiction: it would not have kept those weights.
        """
        try:
            with np.errstate(all="ignore"):
                return self._answer(self.sizes(call), kept)
        except ValueError as error:  # NumPy's: the shapes that these steps make do not fit
            raise Refusal(str(error)) from error

    def _answer(self, call: Call, kept: Array | None) -> Prediction:
        operands = (call.q.astype(float), call.k.astype(float), call.v.astype(float))
        q, k, v = (heads_first(x) for x in self.read(operands, call))
        hidden = self._hidden(call)
        z = self.score(q, k, hidden, self.factor(call))
        a = self.softmax(z, hidden, call)
        if hidden is not None:
            empty: Array = np.logical_and.reduce(hidden, -1, keepdims=True)
            a = self.settle(a, empty, call.masked_rows)
        p = call.dropout if call.training or self.drop_in_eval else 0.0
        after = self.drop(a, p, kept) if p else a
        out = self.write(heads_first(self.product(after, v)), call)
        return Prediction(out, self.returned(a, after, call) if call.weights else None)

    def factor(self, call: Call) -> float:
        """The number that scores are multiplied with."""
        default = self.default_scale(call.shape)
        if call.scale is None:
            factor = default
        elif call.scale == 0:
            factor = self.zero_scale(default)
        else:
            factor = self.given_scale(call.scale, default)
        return self.scale(factor, call)

    def _hidden(self, call: Call) -> Array | None:
        if call.mask is not None:
            applies = call.mask_flag or self.mask_when_off
            mask = call.mask.reshape((1,) * (4 - call.mask.ndim) + call.mask.shape)
            return self.given_mask(mask) if applies else None
        if not (call.mask_flag or self.causal_when_off):
            return None
        _, L, S, *_ = call.shape
        if L == 1:
            hidden = self.single(S)
        elif L == S:
            hidden = self.square(L)
        else:
            hidden = self.oblong(L, S)
        return None if hidden is None else hidden[None, None]


def heads_first(x: Array) -> Array:
    """Exchange of the second and third axis."""
    return x.swapaxes(1, 2)


def hide(z: Array, hidden: Array | None, value: float = -math.inf) -> Array:
    """Scores with the hidden ones replaced."""
    return z if hidden is None else np.where(hidden, value, z)


RIGHT = Steps()
"""What the contract says."""
