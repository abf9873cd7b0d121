"""Long sequences or wide heads: the keys of one (batch, head) pair side by side in a vector.

Keys are packed once as [block of keys][feature][key], so that the scores of sixteen queries are a
small matrix product, as are their weighted sums of values. The whole row of scores stays in
scratch, even of a few thousand keys: it fits the second-level cache, so that no running maximum has
to be corrected tile by tile, and the backward pass works from the same rows.

Scratch is one run of numbers, and every index into it counts numbers.
"""

from __future__ import annotations

import numpy as np

from fullattention.backends.numba_cpu_kernels.dropout import random_bits, row_key
from fullattention.backends.numba_cpu_kernels.exponential import exp2
from fullattention.backends.numba_cpu_kernels.memory import (
    gather,
    read_byte,
    read_rows,
    write_rows,
)
from fullattention.backends.numba_cpu_kernels.spans import (
    add,
    all_finite,
    copy,
    fill,
    multiply,
    up,
)
from fullattention.backends.numba_cpu_kernels.vector import (
    below,
    constant,
    fma,
    for_both,
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

ROWS = 16
"""Queries whose scores are in scratch at a time; a multiple of 4."""

STEPS = 256
"""Keys that are summed up in registers before the sum goes to memory."""


@helper
def matmul(p, a, a_row, a_step, b, b_step, b_block, c, c_row, rows, steps, columns):
    """Add a matrix product: c[r][j] += sum over s < steps of a[r][s] b[s][j].

    a[r][s] is p[a + r * a_row + s * a_step]; the vector j / lanes of b's row s lies at
    p[b + s * b_step + (j / lanes) * b_block]; rows of c are c_row numbers apart. `rows` is a
    multiple of 4, `columns` of two vectors.
    """
    stay_apart()
    lanes = lanes_at(p)
    zero = splat(p, 0.0)
    for j in range(0, columns, 2 * lanes):
        block = b + j // lanes * b_block
        for r in range(0, rows, 4):
            x0 = y0 = x1 = y1 = x2 = y2 = x3 = y3 = zero
            from_a, from_b = a + r * a_row, block
            for _ in range(steps):
                x, y = load(p, from_b), load(p, from_b + b_block)
                a0, a1 = splat(p, p[from_a]), splat(p, p[from_a + a_row])
                a2, a3 = splat(p, p[from_a + 2 * a_row]), splat(p, p[from_a + 3 * a_row])
                x0, y0 = fma(a0, x, x0), fma(a0, y, y0)
                x1, y1 = fma(a1, x, x1), fma(a1, y, y1)
                x2, y2 = fma(a2, x, x2), fma(a2, y, y2)
                x3, y3 = fma(a3, x, x3), fma(a3, y, y3)
                from_a += a_step
                from_b += b_step
            i = c + r * c_row + j
            add_2(p, i, x0, y0)
            add_2(p, i + c_row, x1, y1)
            add_2(p, i + 2 * c_row, x2, y2)
            add_2(p, i + 3 * c_row, x3, y3)


@helper
def add_2(p, at, x, y):
    """Add two vectors to those side by side at p[at]."""
    lanes = lanes_at(p)
    store(p, at, load(p, at) + x)
    store(p, at + lanes, load(p, at + lanes) + y)


@helper
def pack(p, at, table, address, row_step, step, rows, count, kind):
    """Read a matrix transposed: [block of rows][number of a row][row]; the last row fills up."""
    stay_apart()
    lanes = lanes_at(p)
    nothing = np.int64(0)
    for first in range(0, up(rows, 2 * lanes), lanes):
        for lane in range(lanes):
            table[lane] = address + min(first + lane, rows - 1) * row_step
        i = at + first * count
        gather(p, i, nothing, table, nothing, nothing, step, nothing + 1, count, kind)


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
def matmul_long(p, a, a_row, b, b_step, c, c_row, rows, steps, columns):
    """`matmul` over many keys, a few at a time: sums stay accurate, and values stay in cache."""
    lanes = lanes_at(p)
    one = np.int64(1)
    for start in range(0, steps, STEPS):
        count = min(STEPS, steps - start)
        at = b + start * b_step
        matmul(p, a + start, a_row, one, at, b_step, lanes, c, c_row, rows, count, columns)


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
def mask_of(call, b, h, query):
    """The address of a row of the mask; 0 if there is none."""
    offset = b * call.hidden_b + h * call.hidden_h + query * call.hidden_l
    return call.hidden + offset if call.hidden else call.hidden


@inlined
def row_of_weights(p, at, count, end, query, mask, call, factors):
    """Turn a row of scores into unnormalised weights; returns one over their sum."""
    if factors.sign != 1.0:
        multiply(p, at, at + end, splat(p, factors.sign))
    if call.causal:
        hide(p, at, query + 1, count, -np.inf)
    if mask:
        hide_by(p, at, count, mask, call.hidden_s, -np.inf)
    hide(p, at, count, end, -np.inf)
    return softmax(p, at, at + end, factors.binary)


@for_both
def forward_layout(S, E, D, lanes, chunk):
    """Where the parts of `forward`'s scratch begin, behind the keys; last, where it ends.

    Unlike in the other regime, `chunk` makes no difference.
    """
    row, columns = up(S, 2 * lanes), up(D, 2 * lanes)
    v = row * E
    q = v + S * columns
    scores = q + ROWS * E
    out = scores + ROWS * row
    return v, q, scores, out, out + ROWS * columns


@inlined
def forward(call, factors, p, table, start, stop):
    """Attend for the chunks of queries from `start` up to `stop`; scratch begins as zeros."""
    lanes = lanes_at(p)
    nothing, one = np.int64(0), np.int64(1)  # plain 0 and 1 are types of their own
    L, S, H, E, D, kind, size = call.L, call.S, call.H, call.E, call.D, call.kind, call.size
    row, columns = up(S, 2 * lanes), up(D, 2 * lanes)
    k = nothing
    v, q, scores, out, _ = forward_layout(S, E, D, lanes, call.chunk)
    chunks = (L + call.chunk - 1) // call.chunk
    packed = -one
    skip = False
    for unit in range(start, stop):
        pair, chunk = unit // chunks, unit % chunks
        b, h = pair // H, pair % H
        if pair != packed:
            at = call.k + b * call.k_b + h * call.k_h
            pack(p, k, table, at, call.k_s, call.k_e, S, E, kind)
            at = call.v + b * call.v_b + h * call.v_h
            read_rows(p, v, columns, at, call.v_s, call.v_d, S, D, kind)
            skip = call.causal != 0 and all_finite(p, v, v + S * columns)
            packed = pair
        last = min(L, (chunk + 1) * call.chunk)
        for first in range(chunk * call.chunk, last, ROWS):
            rows = min(ROWS, last - first)
            padded = up(rows, 4)
            at = call.q + b * call.q_b + h * call.q_h + first * call.q_l
            read_rows(p, q, E, at, call.q_l, call.q_e, rows, E, kind)
            count = min(S, first + rows) if skip else S
            end = up(count, 2 * lanes)
            fill(p, scores, scores + padded * row, 0.0)
            fill(p, out, out + padded * columns, 0.0)
            matmul(p, q, E, one, k, lanes, E * lanes, scores, row, padded, E, end)
            for r in range(rows):
                query, at = first + r, scores + r * row
                mask = mask_of(call, b, h, query)
                share = row_of_weights(p, at, count, end, query, mask, call, factors)
                if call.threshold:
                    share *= factors.keep
                    drop(p, at, at, at + end, row_key(call.seed, pair, query), call.threshold)
                multiply(p, at, at + end, splat(p, share))
                if call.weights:
                    fill(p, at + end, at + row, 0.0 * share)  # NaN where the row is
                    place = call.weights + (pair * L + query) * S * size
                    write_rows(p, at, row, place, nothing, one, S, kind)
            matmul_long(p, scores, row, v, columns, out, columns, padded, count, columns)
            place = call.out + ((b * L + first) * H + h) * D * size
            write_rows(p, out, columns, place, H * D * size, rows, D, kind)


@for_both
def backward_layout(S, E, D, lanes, chunk):
    """Likewise for `backward`, where values are packed as well."""
    row, features, columns = up(S, 2 * lanes), up(E, 2 * lanes), up(D, 2 * lanes)
    v = row * E
    rows_of_k = v + row * D
    d_k = rows_of_k + row * features
    d_v = d_k + row * features
    q = d_v + row * columns
    d_q = q + ROWS * features
    g = d_q + ROWS * features
    weights = g + ROWS * columns
    kept = weights + ROWS * row
    d_scores = kept + ROWS * row
    spare = d_scores + ROWS * row
    return v, rows_of_k, d_k, d_v, q, d_q, g, weights, kept, d_scores, spare, spare + row


@inlined
def backward(call, factors, p, table, start, stop):
    """Differentiate for the pairs from `start` up to `stop`; scratch begins as zeros."""
    lanes = lanes_at(p)
    nothing, one = np.int64(0), np.int64(1)  # plain 0 and 1 are types of their own
    L, S, H, E, D, kind, size = call.L, call.S, call.H, call.E, call.D, call.kind, call.size
    row, features, columns = up(S, 2 * lanes), up(E, 2 * lanes), up(D, 2 * lanes)
    k = nothing
    v, rows_of_k, d_k, d_v, q, d_q, g, weights, kept, d_scores, spare, _ = backward_layout(
        S, E, D, lanes, call.chunk
    )
    for pair in range(start, stop):
        b, h = pair // H, pair % H
        at = call.k + b * call.k_b + h * call.k_h
        pack(p, k, table, at, call.k_s, call.k_e, S, E, kind)
        read_rows(p, rows_of_k, features, at, call.k_s, call.k_e, S, E, kind)
        at = call.v + b * call.v_b + h * call.v_h
        pack(p, v, table, at, call.v_s, call.v_d, S, D, kind)
        fill(p, d_k, q, 0.0)
        skip = call.causal != 0 and all_finite(p, v, v + row * D)
        for first in range(0, L, ROWS):
            rows = min(ROWS, L - first)
            padded = up(rows, 4)
            at = call.q + b * call.q_b + h * call.q_h + first * call.q_l
            read_rows(p, q, features, at, call.q_l, call.q_e, rows, E, kind)
            at = call.g_out + ((b * L + first) * H + h) * D * size
            read_rows(p, g, columns, at, H * D * size, size, rows, D, kind)
            skip = skip and all_finite(p, g, g + rows * columns)
            count = min(S, first + rows) if skip else S
            end = up(count, 2 * lanes)
            fill(p, weights, weights + padded * row, 0.0)
            fill(p, d_scores, d_scores + padded * row, 0.0)
            fill(p, d_q, d_q + padded * features, 0.0)
            matmul(p, q, features, one, k, lanes, E * lanes, weights, row, padded, E, end)
            matmul(p, g, columns, one, v, lanes, D * lanes, d_scores, row, padded, D, end)
            for r in range(rows):
                query = first + r
                at, change, used = weights + r * row, d_scores + r * row, kept + r * row
                mask = mask_of(call, b, h, query)
                share = row_of_weights(p, at, count, end, query, mask, call, factors)
                multiply(p, at, at + end, splat(p, share))
                copy(p, at, at + end, used)
                hide(p, change, count, end, 0.0)
                if call.g_weights:
                    place = call.g_weights + (pair * L + query) * S * size
                    read_rows(p, spare, row, place, nothing, size, one, count, kind)
                    hide(p, spare, count, end, 0.0)
                    add(p, change, change + end, spare)
                if call.threshold:
                    keep = splat(p, factors.keep)
                    multiply(p, change, change + end, keep)
                    multiply(p, used, used + end, keep)
                    key = row_key(call.seed, pair, query)
                    drop(p, change, used, change + end, key, call.threshold)
                differentiate(p, at, change, at + end)
                if call.causal:
                    hide(p, change, query + 1, count, 0.0)
                if mask:
                    hide_by(p, change, count, mask, call.hidden_s, 0.0)
            matmul_long(
                p, d_scores, row, rows_of_k, features, d_q, features, padded, count, features
            )
            # Transposed by swapping the strides of rows and steps.
            height = up(count, 4)
            matmul(p, d_scores, one, row, q, features, lanes, d_k, features, height, rows, features)
            matmul(p, kept, one, row, g, columns, lanes, d_v, columns, height, rows, columns)
            multiply(p, d_q, d_q + rows * features, splat(p, factors.scale))
            place = call.d_q + ((b * L + first) * H + h) * E * size
            write_rows(p, d_q, features, place, H * E * size, rows, E, kind)
        multiply(p, d_k, d_k + S * features, splat(p, factors.scale))
        place = call.d_k + (b * S * H + h) * E * size
        write_rows(p, d_k, features, place, H * E * size, S, E, kind)
        place = call.d_v + (b * S * H + h) * D * size
        write_rows(p, d_v, columns, place, H * D * size, S, D, kind)
