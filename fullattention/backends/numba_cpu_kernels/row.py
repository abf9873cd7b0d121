"""One row of scores in scratch: the keys of one query side by side.

Every index into scratch counts numbers.
"""

from __future__ import annotations

import numpy as np

from fullattention.backends.numba_cpu_kernels.dropout import random_bits, row_key
from fullattention.backends.numba_cpu_kernels.exponential import exp2
from fullattention.backends.numba_cpu_kernels.memory import read_byte, read_rows, write_rows
from fullattention.backends.numba_cpu_kernels.spans import add, copy, fill, multiply
from fullattention.backends.numba_cpu_kernels.vector import (
    below,
    constant,
    fma,
    helper,
    inlined,
    lane_numbers,
    lanes_at,
    largest,
    load,
    maximum,
    select,
    splat,
    splat_bits,
    stay_apart,
    store,
    total,
)


@helper
def hide(p, at, start, stop, value):
    """Put a number into p[at + start] up to p[at + stop]."""
    for i in range(at + start, at + stop):
        p[i] = value


@helper
def hide_by(p, at, count, address, step, value):
    """Put a number where a row of the mask hides a key."""
    stay_apart()
    for s in range(count):
        if read_byte(address + s * step) != 0:
            p[at + s] = value


@helper
def softmax(p, at, stop, binary):
    """Replace a row of scores by exp(score - maximum); returns one over the row's sum."""
    stay_apart()
    lanes = lanes_at(p)
    top = splat(p, -np.inf)
    for i in range(at, stop, lanes):
        top = maximum(load(p, i), top)
    top = splat(p, largest(top))
    factor = splat(p, binary)
    mass = splat(p, 0.0)
    for i in range(at, stop, lanes):
        x = exp2(load(p, i) - top, factor)
        store(p, i, x)
        mass = mass + x
    return 1.0 / total(mass)


@helper
def drop(p, at, other, stop, key, threshold):
    """Put 0 into two rows, from p[at] up to p[stop], where dropout takes a weight."""
    stay_apart()
    lanes = lanes_at(p)
    first = splat_bits(p, np.uint32(key))
    second = splat_bits(p, np.uint32(key >> np.uint64(32)))
    limit, zero = splat_bits(p, threshold), splat(p, 0.0)
    keys = lane_numbers(p)
    for i in range(0, stop - at, lanes):
        taken = below(random_bits(keys, first, second), limit)
        store(p, at + i, select(taken, zero, load(p, at + i)))
        store(p, other + i, select(taken, zero, load(p, other + i)))
        keys = keys + constant(keys, lanes)


@helper
def differentiate(p, weights, gradients, stop):
    """Turn one row's gradients by its weights into those by its scores."""
    stay_apart()
    lanes = lanes_at(p)
    sums = splat(p, 0.0)
    for i in range(0, stop - weights, lanes):
        sums = fma(load(p, weights + i), load(p, gradients + i), sums)
    mean = splat(p, total(sums))
    for i in range(0, stop - weights, lanes):
        store(p, gradients + i, load(p, weights + i) * (load(p, gradients + i) - mean))


@inlined
def hidden_row(call, pair, query):
    """The address of a row of the mask; 0 if there is none."""
    offset = pair // call.H * call.hidden_b + pair % call.H * call.hidden_h + query * call.hidden_l
    return call.hidden + offset if call.hidden else call.hidden


@inlined
def unnormalised(p, at, count, end, mask, query, call, factors):
    """Turn a row of scores into unnormalised weights; returns one over their sum."""
    if factors.sign != 1.0:
        multiply(p, at, at + end, splat(p, factors.sign))
    if call.causal:
        hide(p, at, query + 1, count, -np.inf)
    if mask:
        hide_by(p, at, count, mask, call.hidden_s, -np.inf)
    hide(p, at, count, end, -np.inf)
    return softmax(p, at, at + end, factors.binary)


@inlined
def weigh(p, at, count, end, row, pair, query, call, factors):
    """Turn a row of scores into the weights of values, and write them where the caller asks.

    Scores are of the first `count` keys, and fill vectors up to `end`; rows are `row` numbers long.
    """
    mask = hidden_row(call, pair, query)
    share = unnormalised(p, at, count, end, mask, query, call, factors)
    if call.threshold:
        share *= factors.keep
        drop(p, at, at, at + end, row_key(call.seed, pair, query), call.threshold)
    multiply(p, at, at + end, splat(p, share))
    if call.weights:
        nothing, one = np.int64(0), np.int64(1)  # plain 0 and 1 are types of their own
        fill(p, at + end, at + row, 0.0 * share)  # NaN where the row is
        place = call.weights + (pair * call.L + query) * call.S * call.size
        write_rows(p, at, row, place, nothing, one, call.S, call.kind)


@inlined
def differentiate_row(p, at, change, used, spare, count, end, row, pair, query, call, factors):
    """Turn a row of scores and the gradients by its dropped weights into three rows.

    Gradients by the scores at `change`, dropped weights at `used`, weights at `at`; `spare` has
    room for one more row, and the rest is as for `weigh`.
    """
    mask = hidden_row(call, pair, query)
    share = unnormalised(p, at, count, end, mask, query, call, factors)
    multiply(p, at, at + end, splat(p, share))
    copy(p, at, at + end, used)
    hide(p, change, count, end, 0.0)
    if call.g_weights:
        nothing, one = np.int64(0), np.int64(1)
        place = call.g_weights + (pair * call.L + query) * call.S * call.size
        read_rows(p, spare, row, place, nothing, call.size, one, count, call.kind)
        hide(p, spare, count, end, 0.0)
        add(p, change, change + end, spare)
    if call.threshold:
        keep = splat(p, factors.keep)
        multiply(p, change, change + end, keep)
        multiply(p, used, used + end, keep)
        drop(p, change, used, change + end, row_key(call.seed, pair, query), call.threshold)
    differentiate(p, at, change, at + end)
    if call.causal:
        hide(p, change, query + 1, count, 0.0)
    if mask:
        hide_by(p, change, count, mask, call.hidden_s, 0.0)
