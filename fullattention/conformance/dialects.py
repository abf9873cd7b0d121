"""Mistakes that implementations make, by name: each is FullAttention with some steps replaced."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fullattention.backends.precision import UNIT_ROUNDOFF, accumulator
from fullattention.conformance import layouts
from fullattention.conformance.call import Call
from fullattention.conformance.steps import (
    RIGHT,
    Array,
    Operands,
    Steps,
    heads_first,
    hide,
    kept_of,
    normalised,
    settled,
    softmax_of,
)


@dataclass(frozen=True)
class Dialect:
    """A mistake: its name after "FullAttention with", and the steps that make it."""

    text: str
    steps: Mapping[str, Any]
    rounds: bool = False
    """Whether rounding is the mistake: then its own errors decide which way a tie goes."""

    def within(self, steps: Steps) -> Steps | None:
        """These steps with the mistake in them; None if one of them is wrong already."""
        if any(getattr(steps, name) is not getattr(RIGHT, name) for name in self.steps):
            return None
        return dataclasses.replace(steps, **self.steps)


def _wrong(text: str, **steps: Any) -> Dialect:
    return Dialect(text, steps)


# Masks.


def _added(z: Array, hidden: Array | None) -> Array:
    return z if hidden is None else np.add(z, hidden)


def _zeroed(z: Array, hidden: Array | None, call: Call) -> Array:
    a = softmax_of(z, None, call)
    return a if hidden is None else np.where(hidden, 0.0, a)


def _without_hiding(q: Array, k: Array, hidden: Array | None, c: float) -> Array:
    z: Array = c * (q @ k.swapaxes(-1, -2))
    return z


def _filled_with(value: float) -> Dialect:
    return _wrong(
        f"a finite number such as {value:.0e} in place of -infinity".replace("e+0", "e"),
        score=lambda q, k, hidden, c: c * hide(q @ k.swapaxes(-1, -2), hidden, value),
    )


def _entries_in_turn(hidden: Array | None, heads: int) -> Array | None:
    """One mask for each entry as `repeat` spreads it over pairs of an entry and a head."""
    if hidden is None or hidden.shape[1] > 1:
        return hidden
    entries = len(hidden)
    return np.tile(hidden, (heads, 1, 1, 1)).reshape(entries, heads, *hidden.shape[2:])


def _causal(L: int, S: int, first: int = 1) -> Array:
    return np.triu(np.ones((L, S), bool), first)


MASKS = (
    _wrong("the mask inverted: True shows instead of hides", given_mask=np.logical_not),
    _wrong("the mask ignored", given_mask=np.zeros_like),
    _wrong(
        "a square mask transposed",
        given_mask=lambda m: m.swapaxes(-1, -2) if m.shape[-1] == m.shape[-2] else m,
    ),
    _wrong("head 0's mask for every head", given_mask=lambda m: m[:, :1]),
    _wrong("batch entry 0's mask for every entry", given_mask=lambda m: m[:1]),
    _wrong(
        "the masks of the batch entries repeated in turn, not each for the heads of its entry",
        score=lambda q, k, hidden, c: (
            c * hide(q @ k.swapaxes(-1, -2), _entries_in_turn(hidden, q.shape[1]))
        ),
    ),
    _wrong("query 0's mask for every query", given_mask=lambda m: m[:, :, :1]),
    _wrong(
        "a boolean mask added to the scores as 1.0",
        score=lambda q, k, hidden, c: c * _added(q @ k.swapaxes(-1, -2), hidden),
    ),
    _wrong(
        "a boolean mask added to the scaled scores as 1.0",
        score=lambda q, k, hidden, c: _added(c * (q @ k.swapaxes(-1, -2)), hidden),
    ),
    _wrong(
        "the mask after the softmax, without renormalising",
        score=_without_hiding,
        softmax=_zeroed,
        settle=lambda a, empty, profile: np.where(empty, 0.0, a),
    ),
    _filled_with(-1e4),
    _filled_with(-1e9),
    _wrong(
        "fully hidden rows 0 instead of NaN",
        settle=lambda a, empty, profile: np.where(empty, 0.0, a),
    ),
    _wrong(
        "fully hidden rows the mean of V, as a finite number in place of -infinity makes them",
        settle=lambda a, empty, profile: settled(
            np.where(empty, 1 / a.shape[-1], a), empty, profile
        ),
    ),
    _wrong("fully hidden rows NaN instead of 0", settle=lambda a, empty, profile: a),
    _wrong("the mask applied although mask_flag is off", mask_when_off=True),
    _wrong("a causal mask although mask_flag is off", causal_when_off=True),
    _wrong("nothing hidden when no mask is given: no causal mask", square=lambda n: None),
    _wrong(
        "the causal diagonal hidden: a query does not see its own position",
        square=lambda n: _causal(n, n, 0),
    ),
    _wrong("one position of the future visible", square=lambda n: _causal(n, n, 2)),
    _wrong("the causal mask backwards: it hides the past", square=lambda n: _causal(n, n).T),
    _wrong("key 0 only visible where L = 1", single=lambda S: _causal(1, S)),
    _wrong("L != S answered without a mask, causal from the top left", oblong=_causal),
    _wrong(
        "L != S answered without a mask, causal from the bottom right",
        oblong=lambda L, S: _causal(L, S, 1 + S - L),
    ),
    _wrong("L != S answered without a mask, nothing hidden", oblong=lambda L, S: None),
)

# Scale.

SCALES = (
    _wrong("scale = 0 taken literally", zero_scale=lambda default: 0.0),
    _wrong("scale ignored", given_scale=lambda scale, default: default),
    _wrong("the sign of a negative scale lost", given_scale=lambda scale, default: abs(scale)),
    _wrong("1 / E for 1 / sqrt(E)", default_scale=lambda sizes: 1 / sizes.E),
    _wrong("1 / sqrt(D) for 1 / sqrt(E)", default_scale=lambda sizes: 1 / math.sqrt(sizes.D)),
    _wrong(
        "1 / sqrt(H E) for 1 / sqrt(E)",
        default_scale=lambda sizes: 1 / math.sqrt(sizes.H * sizes.E),
    ),
    _wrong(
        "the scale divided by sqrt(H)",
        scale=lambda factor, call: factor / math.sqrt(call.shape.H),
    ),
    _wrong("no scale", scale=lambda factor, call: 1.0),
    _wrong("no scale unless one is given", default_scale=lambda sizes: 1.0),
    _wrong("the scale applied twice", scale=lambda factor, call: factor * factor),
    _wrong(
        "the square root of the scale",
        scale=lambda factor, call: math.copysign(math.sqrt(abs(factor)), factor),
    ),
    _wrong(
        "the scale applied before the mask: a negative one gives no NaN",
        score=lambda q, k, hidden, c: hide(c * (q @ k.swapaxes(-1, -2)), hidden),
    ),
    _wrong(
        "`tau` multiplied with the scores",
        scale=lambda factor, call: factor * _first(call.options.get("tau"), 1.0),
    ),
)


def _first(array: Array | None, otherwise: float) -> float:
    return otherwise if array is None else float(array.flat[0])


# Softmax.


def _over(axis: int) -> Callable[[Array, Array | None, Call], Array]:
    def softmax(z: Array, hidden: Array | None, call: Call) -> Array:
        return normalised(np.exp(z - z.max(axis, keepdims=True)), axis)

    return softmax


def _without_maximum(z: Array, hidden: Array | None, call: Call) -> Array:
    return normalised(np.exp(_as_inside(z, call)))


def _floored(z: Array, hidden: Array | None, call: Call) -> Array:
    return normalised(np.exp(_as_inside(z - np.maximum(z.max(-1, keepdims=True), 0), call)))


def _as_inside(x: Array, call: Call) -> Array:
    """In the precision that sums are kept in: where exp overflows and underflows is its range."""
    return x.astype(accumulator(call.dtype))


def _with_more_in_sum(count: Callable[[int], int]) -> Callable[[Array, Array | None, Call], Array]:
    """Some keys more, with scores and values of 0."""

    def softmax(z: Array, hidden: Array | None, call: Call) -> Array:
        more = np.zeros((*z.shape[:-1], count(z.shape[-1])))
        all_keys = softmax_of(np.concatenate([z, more], -1), None, call)
        return all_keys[..., : z.shape[-1]]

    return softmax


def _clamped(z: Array, hidden: Array | None, call: Call) -> Array:
    return softmax_of(np.where(np.isneginf(z), z, np.clip(z, -50, 50)), hidden, call)


def _largest(z: Array, hidden: Array | None, call: Call) -> Array:
    return np.where(z == z.max(-1, keepdims=True), 1.0, 0.0)


def _mean(z: Array, hidden: Array | None, call: Call) -> Array:
    return np.full_like(z, 1 / z.shape[-1])


SOFTMAXES = (
    _wrong("the softmax over queries instead of keys", softmax=_over(-2)),
    _wrong("the softmax over heads instead of keys", softmax=_over(1)),
    _wrong("no maximum subtracted before exp: large scores overflow", softmax=_without_maximum),
    _wrong("the maximum of a row taken to be at least 0", softmax=_floored),
    _wrong("scores clamped to +-50", softmax=_clamped),
    _wrong("one more key, of score 0 and value 0", softmax=_with_more_in_sum(lambda S: 1)),
    *(
        _wrong(
            f"the last tile of {tile} keys filled up with keys of score 0",
            softmax=_with_more_in_sum(lambda S, tile=tile: -S % tile),  # type: ignore[misc]
        )
        for tile in (4, 8, 16, 32, 64, 128)
    ),
    _wrong("the value of the best key alone", softmax=_largest),
    _wrong(
        "query 0's weights for every query",
        softmax=lambda z, hidden, call: np.repeat(
            softmax_of(z, hidden, call)[:, :, :1], z.shape[2], 2
        ),
    ),
    _wrong(
        "head 0's weights for every head",
        softmax=lambda z, hidden, call: np.repeat(
            softmax_of(z, hidden, call)[:, :1], z.shape[1], 1
        ),
    ),
    _wrong(
        "the mean of V returned, whatever q and k are",
        softmax=_mean,
    ),
    _wrong("zeros returned", write=lambda out, call: np.zeros_like(out)),
)

# Layout.


def _buffer_as_heads_first(x: Array) -> Array:
    B, T, H, X = x.shape
    return heads_first(np.ascontiguousarray(x).reshape(B, H, T, X))


def _all(change: Callable[[Array], Array]) -> Callable[[Operands, Call], Operands]:
    return lambda operands, call: (change(operands[0]), change(operands[1]), change(operands[2]))


def _keys(change: Callable[[Array], Array]) -> Callable[[Operands, Call], Operands]:
    return lambda operands, call: (operands[0], change(operands[1]), operands[2])


def _values(change: Callable[[Array], Array]) -> Callable[[Operands, Call], Operands]:
    return lambda operands, call: (operands[0], operands[1], change(operands[2]))


def _exchanged(operands: Operands, call: Call) -> Operands:
    q, k, v = operands
    return (k, q, v) if q.shape == k.shape else operands


def _keys_as_values(operands: Operands, call: Call) -> Operands:
    q, k, v = operands
    return (q, k, k) if k.shape == v.shape else operands


def _values_as_keys(operands: Operands, call: Call) -> Operands:
    q, k, v = operands
    return (q, v, v) if k.shape == v.shape else operands


def _ignoring_strides(operands: Operands, call: Call) -> Operands:
    """Reads on from the first element as if arrays were contiguous."""
    q, k, v = (_read_on(x, call.layout) for x in operands)
    return q, k, v


def _read_on(x: Array, layout: str) -> Array:
    strides, offset, size = layouts.LAYOUTS[layout](x.shape)
    memory = np.full(size + x.size, np.nan)
    steps = tuple(stride * memory.itemsize for stride in strides)
    np.lib.stride_tricks.as_strided(memory[offset:], x.shape, steps)[...] = x
    return memory[offset : offset + x.size].reshape(x.shape)


def _broadcast(call: Call) -> Call:
    """Sizes of 1 stand for all."""
    B, _, H, E = call.q.shape
    S, D = max(call.k.shape[1], call.v.shape[1]), call.v.shape[3]
    return call.but(
        k=np.broadcast_to(call.k, (B, S, H, E)), v=np.broadcast_to(call.v, (B, S, H, D))
    )


def _summed(call: Call) -> Call:
    """One key for several values: einsum gives each the weight 1, and their sum."""
    if call.k.shape[1] == 1 < call.v.shape[1]:
        return _broadcast(call.but(v=call.v.sum(1, keepdims=True)))
    return _broadcast(call)


LAYOUTS = (
    _wrong(
        "heads and time swapped: (B, L, H, E) read as (B, H, L, E)",
        read=_all(heads_first),
        write=lambda out, call: heads_first(out),
    ),
    _wrong(
        "heads and time swapped: the memory of (B, L, H, E) read as (B, H, L, E)",
        read=_all(_buffer_as_heads_first),
    ),
    _wrong(
        "heads and time swapped: memory read and V written as (B, H, L, E)",
        read=_all(_buffer_as_heads_first),
        write=lambda out, call: heads_first(out).reshape(out.shape),
    ),
    _wrong(
        "V's heads and time swapped",
        write=lambda out, call: np.ascontiguousarray(heads_first(out)).reshape(out.shape),
    ),
    _wrong("K used as V", read=_keys_as_values),
    _wrong("V used as K", read=_values_as_keys),
    _wrong("q and k exchanged", read=_exchanged),
    *(
        _wrong(f"{what} of the {which} {entry}", read=read(functools.partial(np.roll, **by)))
        for what, read in (("keys", _keys), ("values", _values))
        for entry, axis in (("head", 2), ("batch entry", 0))
        for which, by in (
            ("previous", {"shift": 1, "axis": axis}),
            ("next", {"shift": -1, "axis": axis}),
        )
    ),
    _wrong("strides ignored: inputs read as if they were contiguous", read=_ignoring_strides),
    _wrong(
        "columns of V from E on never read",
        read=lambda o, call: (
            o[0],
            o[1],
            np.where(np.arange(call.shape.D) < call.shape.E, o[2], 0.0),
        ),
    ),
    _wrong("axes of size 1 broadcast silently", sizes=_summed),
)

# Dropout and weights.


def _renormalised(a: Array, p: float, kept: Array | None) -> Array:
    return normalised(kept_of(a, 1 - p, kept))


DROPOUTS = (
    _wrong("dropout ignored in training", drop=lambda a, p, kept: a),
    _wrong("dropout active in eval", drop_in_eval=True),
    _wrong(
        "dropped weights not made up for by 1 / (1 - p)",
        drop=lambda a, p, kept: kept_of(a, 1 - p, kept),
    ),
    _wrong(
        "weights kept with probability p instead of 1 - p",
        drop=lambda a, p, kept: kept_of(a / (1 - p), p, kept),
    ),
    _wrong(
        "weights kept with probability p instead of 1 - p, and divided by p",
        drop=lambda a, p, kept: kept_of(a / p, p, kept),
    ),
    _wrong("dropped weights made to sum to 1 again", drop=_renormalised),
    _wrong("the weights before dropout returned", returned=lambda before, after, call: before),
)


# Precision.


def rounded(x: Array, bits: int) -> Array:
    """Rounded to so many significant bits, ties to even."""
    fraction, exponent = np.frexp(x)
    whole = np.rint(np.ldexp(fraction, bits))
    result: Array = np.ldexp(whole, exponent - bits)
    return result


def _to_float16(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float64)


def _roundings(to: Callable[[Array], Array], u: float, text: str) -> tuple[Dialect, ...]:
    """Every place to round at, to a format of unit roundoff `u`."""

    def score(q: Array, k: Array, hidden: Array | None, c: float) -> Array:
        return c * hide(to(q @ k.swapaxes(-1, -2)), hidden)

    def stored(x: Array, call: Call) -> Array:
        """Results have few bits where their dtype has, and that is no mistake."""
        return to(x) if UNIT_ROUNDOFF[call.dtype] < u else x

    mistakes: Mapping[str, Mapping[str, Any]] = {
        "q, k, v": {"read": _all(to)},
        "q, k, v and weights": {"read": _all(to), "product": lambda a, v: to(a) @ v},
        "q and k": {"read": lambda o, call: (to(o[0]), to(o[1]), o[2])},
        "weights and v": {"product": lambda a, v: to(a) @ to(v)},
        "v": {"product": lambda a, v: a @ to(v)},
        "weights": {"product": lambda a, v: to(a) @ v},
        "returned weights": {"returned": lambda before, after, call: stored(after, call)},
        "scores": {"score": score},
        "the scale": {"scale": lambda factor, call: float(to(np.asarray(factor)))},
        "the scale times log2(e)": {
            "scale": lambda factor, call: float(to(np.asarray(factor / math.log(2)))) * math.log(2)
        },
        "V": {"write": stored},
    }
    return tuple(
        Dialect(f"{what} rounded to {text}", steps, rounds=True) for what, steps in mistakes.items()
    )


PRECISIONS = (
    *_roundings(functools.partial(rounded, bits=11), 2.0**-11, "11 bits (TF32 has as many)"),
    *_roundings(functools.partial(rounded, bits=8), 2.0**-8, "8 bits (bfloat16 has as many)"),
    *_roundings(_to_float16, 2.0**-11, "float16, its range included"),
)

DIALECTS = (*MASKS, *SCALES, *SOFTMAXES, *LAYOUTS, *DROPOUTS, *PRECISIONS)
"""Every mistake that is known by name."""
