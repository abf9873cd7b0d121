"""Faults in what is read and written where."""

from __future__ import annotations

import functools

import numpy as np

from fullattention.backends.interface import Array, dtype_name
from tests.zoo.attending import Call, Plain, Result, hidden_keys
from tests.zoo.faulty.making import HALF, fault, if_, keys_dropped_from, on_arrays, on_out, then
from tests.zoo.memory import contiguous_from, shifted_by, with_next_row

wrong = functools.partial(fault, "layout")


def cut(x: Array, axis: int, block: int) -> Array:
    """Zeros where the last, incomplete block of an axis is."""
    whole = x.shape[axis] // block * block
    keep = np.arange(x.shape[axis]) < (whole or x.shape[axis])
    return np.where(keep.reshape([-1 if a == axis % x.ndim else 1 for a in range(x.ndim)]), x, 0)


def beyond(x: Array, axis: int, limit: int) -> Array:
    """Zeros from an index on."""
    keep = np.arange(x.shape[axis]) < limit
    return np.where(keep.reshape([-1 if a == axis % x.ndim else 1 for a in range(x.ndim)]), x, 0)


def tail_keys_dropped(call: Call) -> Array | None:
    S = call.k.shape[1]
    tail = np.arange(S) >= (S // 16 * 16 or S)
    hidden = hidden_keys(call)
    return tail if hidden is None else hidden | tail


def is_half(call: Call) -> bool:
    return dtype_name(call.q) in HALF


def last_of_odd(call: Call) -> Array | None:
    """Hides the last key where their number is odd and not one."""
    S = call.k.shape[1]
    late = np.arange(S) >= (S - S % 2 or S)
    hidden = hidden_keys(call)
    return late if hidden is None else hidden | late


def as_heads_first(x: Array) -> Array:
    B, L, H, E = x.shape
    return np.ascontiguousarray(x).reshape(B, H, L, E).transpose(0, 2, 1, 3)


def queries_of_first_block(call: Call) -> Call:
    L = call.q.shape[1]
    return call.but(q=call.q[:, np.arange(L) % 128])


def keys_by_query_stride(call: Call) -> Call:
    """Steps from batch entry to batch entry of the keys by L instead of S rows."""
    B, S, H, E = call.k.shape
    flat = np.ascontiguousarray(call.k).reshape(B * S, H, E)
    rows = np.arange(B)[:, None] * call.q.shape[1] + np.arange(S)
    return call.but(k=flat[rows % (B * S)])


def past_the_end(call: Call) -> Result:
    """Reads one more row of values, with a weight of 0."""
    v = with_next_row(call.v)
    extra = v.shape[1] - call.v.shape[1]

    def longer(a: Array, values: Array) -> Array:
        return np.pad(a, [(0, 0)] * 3 + [(0, extra)]) @ values

    return Plain(product=longer)(call.but(v=v))


def kv_swapped(call: Call) -> Call:
    return call.but(v=call.k) if call.k.shape == call.v.shape else call


LAYOUT = (
    wrong(
        "keys-of-next-head",
        "keys of the neighbouring head",
        "C1",
        on_arrays(lambda k: np.roll(k, 1, axis=2), "k"),
    ),
    wrong(
        "values-of-next-batch",
        "values of the neighbouring batch entry",
        "C1",
        on_arrays(lambda v: np.roll(v, 1, axis=0), "v"),
    ),
    wrong("keys-as-values", "K serves as V where the shapes allow it", "C5 W1", then(kv_swapped)),
    wrong("heads-as-time", "(B, L, H, E) is read as (B, H, L, E)", "C1", on_arrays(as_heads_first)),
    wrong(
        "features-tail-dropped",
        "features after the last block of 8 are not read",
        "C1",
        on_arrays(lambda x: cut(x, -1, 8), "qk"),
    ),
    wrong(
        "columns-tail-dropped",
        "columns after the last block of 8 stay 0",
        "C1",
        on_arrays(lambda x: cut(x, -1, 8), "v"),
    ),
    wrong(
        "features-over-256",
        "features from 256 on are not read",
        "C5",
        on_arrays(lambda x: beyond(x, -1, 256), "qk"),
    ),
    wrong(
        "columns-over-e",
        "columns of V from E on stay 0",
        "C1",
        then(lambda c: c.but(v=beyond(c.v, -1, c.q.shape[-1]))),
    ),
    wrong(
        "keys-tail-dropped",
        "keys after the last block of 16 are not read",
        "C5",
        Plain(hidden=tail_keys_dropped),
    ),
    wrong("keys-over-1024", "keys from 1024 on are not read", "C5 N1", keys_dropped_from(1024)),
    wrong("keys-over-256", "keys from 256 on are not read", "C5", keys_dropped_from(256)),
    wrong(
        "queries-tail-dropped",
        "queries after the last block of 16 get 0",
        "C5",
        on_out(lambda out: cut(out, 1, 16)),
    ),
    wrong(
        "queries-over-1024",
        "queries from 1024 on get 0",
        "C5",
        on_out(lambda out: beyond(out, 1, 1024)),
    ),
    wrong(
        "query-block-offset",
        "queries after the first 128 use the first ones' rows",
        "C5",
        then(queries_of_first_block),
    ),
    wrong(
        "batches-over-256",
        "batch entries from 256 on get 0",
        "C5",
        on_out(lambda out: beyond(out, 0, 256)),
    ),
    wrong("heads-over-32", "heads from 32 on get 0", "C5", on_out(lambda out: beyond(out, 2, 32))),
    wrong(
        "batch-stride-of-queries",
        "keys step by L rows from entry to entry",
        "C1",
        then(keys_by_query_stride),
    ),
    wrong(
        "strides-ignored",
        "inputs are read as if they were contiguous",
        "C4",
        on_arrays(contiguous_from),
    ),
    wrong(
        "half-strides-ignored",
        "half inputs are read as if contiguous",
        "C4",
        if_(is_half, on_arrays(contiguous_from)),
    ),
    wrong(
        "half-tail-dropped",
        "half keys after the last pair are not read",
        "C5",
        if_(is_half, Plain(hidden=last_of_odd)),
    ),
    wrong(
        "long-batches-mixed",
        "beyond 64 keys entry 1 reads entry 0's",
        "C5",
        if_(lambda c: c.k.shape[1] > 64, on_arrays(lambda k: np.broadcast_to(k[:1], k.shape), "k")),
    ),
    wrong(
        "misaligned-loads",
        "loads of 4 elements start at an aligned address",
        "C4",
        on_arrays(lambda x: shifted_by(x, -(x.ctypes.data // x.itemsize % 4))),
    ),
    wrong("reads-past-end", "reads one row of values past the end", "C1 C4", past_the_end),
)
