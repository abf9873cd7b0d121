"""Faults in what is hidden."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from fullattention.backends.interface import Array
from tests.zoo.attending import Call, Method, Plain, Result, drop, hidden_keys, later, right
from tests.zoo.faulty.making import fault, filled, if_, then
from tests.zoo.memory import contiguous_from

wrong = functools.partial(fault, "mask")


def mask_after_softmax(call: Call) -> Result:
    def forget(a: Array, p: float) -> Array:
        hidden = hidden_keys(call)
        return drop(a if hidden is None else np.where(hidden, 0, a).astype(a.dtype), p)

    return Plain(hide=lambda z, hidden: z, drop=forget)(call)


def transposed(call: Call) -> Call:
    if call.hidden is None or call.hidden.shape[-1] != call.hidden.shape[-2]:
        return call
    return call.but(hidden=call.hidden.swapaxes(-1, -2))


def hidden_as(change: Callable[[Array], Array]) -> Method:
    """The mask array read in another way."""
    return then(lambda call: call if call.hidden is None else call.but(hidden=change(call.hidden)))


def causal_by_tile(call: Call) -> Array | None:
    """Hides whole tiles of 16 keys only, and forgets the one on the diagonal."""
    if not call.causal:
        return call.hidden
    rows, keys = np.indices((call.q.shape[1], call.k.shape[1])) // 16
    return keys > rows


def tile_skipped_by_first(call: Call) -> Array | None:
    """Takes a tile of 16 keys for hidden if its first key is."""
    hidden = hidden_keys(call)
    if hidden is None or hidden.shape[-1] == 1:
        return hidden
    first = np.repeat(hidden[..., ::16], 16, axis=-1)[..., : hidden.shape[-1]]
    return hidden | first


def short_mask_padded(hidden: Array) -> Array:
    """Reads a mask with one entry for all keys as if it had one for key 0."""
    return hidden & np.concatenate([[True], np.zeros(hidden.shape[-1] - 1 or 1, bool)])


def plus_minus_infinity(z: Array, hidden: Array | None) -> Array:
    return z if hidden is None else z + np.where(hidden, z.dtype.type(-np.inf), z.dtype.type(0))


def as_zero_rows(call: Call) -> Result:
    """Fully hidden rows are 0, whatever is declared."""
    out, a = right(call)
    hidden = hidden_keys(call)
    if hidden is None:
        return out, a
    empty = hidden.all(-1)[..., None]
    zero = out.dtype.type(0)
    return (
        np.where(empty.swapaxes(1, 2) if empty.ndim == 4 else empty, zero, out),
        None if a is None else np.where(empty, zero, a),
    )


def hidden_rows_hide_neighbours(call: Call) -> Result:
    """A fully hidden row spoils its block of 8 queries."""
    out, a = right(call)
    bad = np.isnan(out).any((0, 2, 3))
    block = np.repeat(np.add.reduceat(bad, np.arange(0, len(bad), 8)) > 0, 8)[: len(bad)]
    if call.hidden is not None:
        out[:, block] = np.nan
    return out, a


def floored(a: Array, p: float) -> Array:
    """Weights are kept from being 0."""
    return drop(np.maximum(a, a.dtype.type(1e-30)), p)


def without_hidden_values(call: Call) -> Result:
    """NaN in the value of a hidden key is not read."""

    def careful(a: Array, v: Array) -> Array:
        never = (a == 0).all((0, 1, 2))
        return a @ np.where(never[:, None], v.dtype.type(0), v)

    return Plain(product=careful)(call)


MASK = (
    wrong(
        "causal-strict",
        "a query does not see its own position",
        "M2",
        Plain(hidden=lambda c: later(c, 0) if c.causal else c.hidden),
    ),
    wrong(
        "causal-loose",
        "a query sees one position ahead",
        "M2",
        Plain(hidden=lambda c: later(c, 2) if c.causal else c.hidden),
    ),
    wrong("causal-ignored", "causal calls hide nothing", "M2", Plain(hidden=lambda c: c.hidden)),
    wrong(
        "causal-backwards",
        "the past is hidden instead of the future",
        "M2",
        Plain(hidden=lambda c: later(c, 1).T if c.causal else c.hidden),
    ),
    wrong(
        "causal-by-tile",
        "inside the diagonal's tiles nothing is hidden",
        "M2",
        Plain(hidden=causal_by_tile),
    ),
    wrong(
        "mask-ignored",
        "the mask array is not read",
        "M4",
        Plain(hidden=lambda c: later(c, 1) if c.causal else None),
    ),
    wrong("mask-inverted", "True shows instead of hides", "M3", hidden_as(np.logical_not)),
    wrong(
        "mask-after-softmax",
        "hidden weights are zeroed, the rest not renormalised",
        "M5",
        mask_after_softmax,
    ),
    wrong(
        "mask-finfo-min",
        "the lowest finite number stands for -infinity",
        "M6",
        filled(lambda z: np.finfo(z.dtype).min),
    ),
    wrong("mask-minus-1e9", "-1e9 stands for -infinity", "M7", filled(lambda z: -1e9)),
    wrong("mask-minus-1e4", "-1e4 stands for -infinity", "M7", filled(lambda z: -1e4)),
    wrong(
        "causal-minus-1e9",
        "-1e9 stands for -infinity in causal calls only",
        "M7",
        if_(lambda c: c.causal, filled(lambda z: -1e9)),
    ),
    wrong(
        "mask-added",
        "True is added to the scores as 1.0",
        "M4",
        Plain(hide=lambda z, hidden: z if hidden is None else z + hidden.astype(z.dtype)),
    ),
    wrong(
        "mask-of-head-0",
        "head 0's mask serves every head",
        "M4",
        hidden_as(lambda hidden: hidden[:, :1]),
    ),
    wrong(
        "mask-of-batch-0",
        "the first batch entry's mask serves every one",
        "M4",
        hidden_as(lambda hidden: hidden[:1]),
    ),
    wrong(
        "mask-of-row-0",
        "the first query's mask serves every query",
        "M4",
        hidden_as(lambda hidden: hidden[:, :, :1]),
    ),
    wrong("mask-transposed", "a square mask is read transposed", "M4", then(transposed)),
    wrong(
        "mask-strides-ignored",
        "the mask is read as if it were contiguous",
        "C4 M4",
        hidden_as(contiguous_from),
    ),
    wrong(
        "mask-one-key",
        "a mask of one entry for all keys is read for key 0 only",
        "M4 M6",
        hidden_as(lambda hidden: short_mask_padded(hidden) if hidden.shape[-1] == 1 else hidden),
    ),
    wrong(
        "mask-tile-skipped",
        "a tile whose first key is hidden is skipped",
        "M2 M4",
        Plain(hidden=tile_skipped_by_first),
    ),
    wrong(
        "mask-infinity-added",
        "-infinity is added: NaN in a hidden key leaks",
        "N4",
        Plain(hide=plus_minus_infinity),
    ),
    wrong(
        "hidden-value-unread",
        "NaN in a hidden value does not come through",
        "N4",
        without_hidden_values,
    ),
    wrong(
        "hidden-weights-not-zero",
        "hidden weights are 1e-30 instead of 0",
        "M5",
        Plain(drop=floored),
    ),
    wrong("hidden-rows-zero", "declares NaN for fully hidden rows and gives 0", "M6", as_zero_rows),
    wrong(
        "hidden-rows-spread",
        "a fully hidden row makes its block of queries NaN",
        "M6",
        hidden_rows_hide_neighbours,
    ),
)
