"""Long sequences: the keys of one (batch, head) pair side by side in a vector.

Keys are packed once as [block of keys][feature][key], so that the scores of sixteen queries are a
small matrix product, as are their weighted sums of values. The whole row of scores stays in
scratch, even of a few thousand keys: it fits the second-level cache, so that no running maximum has
to be corrected tile by tile, and the backward pass works from the same rows.

Scratch is one run of numbers, and every index into it counts numbers.
"""

from __future__ import annotations

import numpy as np

from fullattention.backends.numba_cpu_kernels.matmul import matmul, matmul_long
from fullattention.backends.numba_cpu_kernels.memory import gather, read_rows, write_rows
from fullattention.backends.numba_cpu_kernels.row import differentiate_row, weigh
from fullattention.backends.numba_cpu_kernels.spans import all_finite, fill, up
from fullattention.backends.numba_cpu_kernels.vector import (
    for_both,
    helper,
    inlined,
    lanes_at,
    splat,
    stay_apart,
)

ROWS = 16
"""Queries whose scores are in scratch at a time; a multiple of 4."""


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


@for_both
def forward_layout(L, S, E, D, lanes, chunk):
    """Where the parts of `forward`'s scratch begin, behind the keys; last, where it ends."""
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
    v, q, scores, out, _ = forward_layout(L, S, E, D, lanes, call.chunk)
    chunks = (L + call.chunk - 1) // call.chunk
    packed = -one
    skip = False
    whole = splat(p, 1.0)
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
            matmul(p, q, E, one, k, lanes, E * lanes, scores, row, padded, E, end, whole, False)
            for r in range(rows):
                at = scores + r * row
                weigh(p, at, count, end, row, pair, first + r, call, factors)
            matmul_long(p, scores, row, v, columns, out, columns, padded, count, columns, whole)
            place = call.out + ((b * L + first) * H + h) * D * size
            write_rows(p, out, columns, place, H * D * size, rows, D, kind)


@for_both
def backward_layout(L, S, E, D, lanes, chunk):
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
        L, S, E, D, lanes, call.chunk
    )
    whole, scale = splat(p, 1.0), splat(p, factors.scale)
    for pair in range(start, stop):
        b, h = pair // H, pair % H
        at = call.k + b * call.k_b + h * call.k_h
        pack(p, k, table, at, call.k_s, call.k_e, S, E, kind)
        read_rows(p, rows_of_k, features, at, call.k_s, call.k_e, S, E, kind)
        at = call.v + b * call.v_b + h * call.v_h
        pack(p, v, table, at, call.v_s, call.v_d, S, D, kind)
        fill(p, d_k, q, 0.0)
        skip = call.causal != 0 and all_finite(p, k, v + row * D)
        for first in range(0, L, ROWS):
            rows = min(ROWS, L - first)
            padded = up(rows, 4)
            at = call.q + b * call.q_b + h * call.q_h + first * call.q_l
            read_rows(p, q, features, at, call.q_l, call.q_e, rows, E, kind)
            at = call.g_out + ((b * L + first) * H + h) * D * size
            read_rows(p, g, columns, at, H * D * size, size, rows, D, kind)
            skip = skip and all_finite(p, q, q + rows * features)
            skip = skip and all_finite(p, g, g + rows * columns)
            count = min(S, first + rows) if skip else S
            end = up(count, 2 * lanes)
            matmul(
                *(p, q, features, one, k, lanes, E * lanes),
                *(weights, row, padded, E, end, whole, False),
            )
            matmul(
                *(p, g, columns, one, v, lanes, D * lanes),
                *(d_scores, row, padded, D, end, whole, False),
            )
            for r in range(rows):
                at, change, used = weights + r * row, d_scores + r * row, kept + r * row
                query = first + r
                differentiate_row(
                    p, at, change, used, spare, count, end, row, pair, query, call, factors
                )
            matmul_long(
                *(p, d_scores, row, rows_of_k, features),
                *(d_q, features, padded, count, features, scale),
            )
            # Transposed by swapping the strides of rows and steps.
            height = up(count, 4)
            matmul(
                *(p, d_scores, one, row, q, features, lanes),
                *(d_k, features, height, rows, features, scale, True),
            )
            matmul(
                *(p, kept, one, row, g, columns, lanes),
                *(d_v, columns, height, rows, columns, whole, True),
            )
            place = call.d_q + ((b * L + first) * H + h) * E * size
            write_rows(p, d_q, features, place, H * E * size, rows, E, kind)
        place = call.d_k + (b * S * H + h) * E * size
        write_rows(p, d_k, features, place, H * E * size, S, E, kind)
        place = call.d_v + (b * S * H + h) * D * size
        write_rows(p, d_v, columns, place, H * D * size, S, D, kind)
