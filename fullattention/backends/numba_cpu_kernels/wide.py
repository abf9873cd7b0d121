"""Few keys of many features: the features of one query or key side by side in a vector.

Nothing is transposed. All heads of a batch element are read row by row, in the order in which they
lie in memory: processors fetch ahead what is read in order, and read it about twice as fast as one
head after the other. From then on they are in the second-level cache.

Scratch is one run of numbers, and every index into it counts numbers.
"""

from __future__ import annotations

import numpy as np

from fullattention.backends.numba_cpu_kernels.matmul import dots, matmul
from fullattention.backends.numba_cpu_kernels.memory import read_rows, write_rows
from fullattention.backends.numba_cpu_kernels.row import differentiate_row, weigh
from fullattention.backends.numba_cpu_kernels.spans import up
from fullattention.backends.numba_cpu_kernels.vector import (
    for_both,
    helper,
    inlined,
    lanes_at,
    splat,
    stay_apart,
)


@helper
def read_heads(p, at, width, address, row_step, h_step, step, rows, H, count, kind):
    """Read a matrix of each head: its rows `width` numbers apart, and a multiple of 4 of them."""
    stay_apart()
    apart = up(rows, 4) * width
    for i in range(rows):
        place = address + i * row_step
        read_rows(p, at + i * width, apart, place, h_step, step, H, count, kind)


@helper
def write_heads(p, at, width, address, rows, H, count, kind, size):
    """Write a matrix of each head, as `read_heads` reads it, to a contiguous (rows, H, count)."""
    stay_apart()
    apart = up(rows, 4) * width
    for i in range(rows):
        place = address + i * H * count * size
        write_rows(p, at + i * width, apart, place, count * size, H, count, kind)


@inlined
def read_inputs(p, q, k, v, features, columns, b, call):
    """Read all heads' queries, keys and values of a batch element."""
    H, kind = call.H, call.kind
    at = call.q + b * call.q_b
    read_heads(p, q, features, at, call.q_l, call.q_h, call.q_e, call.L, H, call.E, kind)
    at = call.k + b * call.k_b
    read_heads(p, k, features, at, call.k_s, call.k_h, call.k_e, call.S, H, call.E, kind)
    at = call.v + b * call.v_b
    read_heads(p, v, columns, at, call.v_s, call.v_h, call.v_d, call.S, H, call.D, kind)


@for_both
def forward_layout(H, L, S, E, D, lanes):
    """Where the parts of `forward`'s scratch begin, behind the queries; last, where it ends."""
    queries, keys = up(L, 4), up(S, 4)
    features, columns = up(E, 2 * lanes), up(D, 2 * lanes)
    k = H * queries * features
    v = k + H * keys * features
    out = v + H * keys * columns
    scores = out + H * queries * columns
    return k, v, out, scores, scores + queries * up(S, lanes)


@inlined
def forward(call, factors, p, start, stop):
    """Attend for the batch elements from `start` up to `stop`; scratch begins as zeros."""
    lanes = lanes_at(p)
    one = np.int64(1)  # a plain 1 is a type of its own
    whole = splat(p, 1.0)
    H, L, S, E, D, kind, size = call.H, call.L, call.S, call.E, call.D, call.kind, call.size
    queries, keys, row = up(L, 4), up(S, 4), up(S, lanes)
    features, columns = up(E, 2 * lanes), up(D, 2 * lanes)
    q = np.int64(0)
    k, v, out, scores, _ = forward_layout(H, L, S, E, D, lanes)
    for b in range(start, stop):
        read_inputs(p, q, k, v, features, columns, b, call)
        for h in range(H):
            its_q, its_k = q + h * queries * features, k + h * keys * features
            its_v, its_out = v + h * keys * columns, out + h * queries * columns
            dots(p, its_q, its_k, features, scores, row, queries, keys)
            for query in range(L):
                at = scores + query * row
                weigh(p, at, S, row, row, b * H + h, query, call, factors)
            matmul(
                *(p, scores, row, one, its_v, columns, lanes),
                *(its_out, columns, queries, S, columns, whole, False),
            )
        write_heads(p, out, columns, call.out + b * L * H * D * size, L, H, D, kind, size)


@for_both
def backward_layout(H, L, S, E, D, lanes):
    """Likewise for `backward`."""
    queries, keys, rows = up(L, 4), up(S, 4), up(L, 4) * up(S, lanes)
    features, columns = up(E, 2 * lanes), up(D, 2 * lanes)
    k = H * queries * features
    v = k + H * keys * features
    g = v + H * keys * columns
    d_q = g + H * queries * columns
    d_k = d_q + H * queries * features
    d_v = d_k + H * keys * features
    weights = d_v + H * keys * columns
    kept = weights + rows
    d_scores = kept + rows
    spare = d_scores + rows
    return k, v, g, d_q, d_k, d_v, weights, kept, d_scores, spare, spare + up(S, lanes)


@inlined
def backward(call, factors, p, start, stop):
    """Differentiate for the batch elements from `start` up to `stop`; scratch begins as zeros."""
    lanes = lanes_at(p)
    one = np.int64(1)  # a plain 1 is a type of its own
    whole, scale = splat(p, 1.0), splat(p, factors.scale)
    H, L, S, E, D, kind, size = call.H, call.L, call.S, call.E, call.D, call.kind, call.size
    queries, keys, row = up(L, 4), up(S, 4), up(S, lanes)
    features, columns = up(E, 2 * lanes), up(D, 2 * lanes)
    q = np.int64(0)
    k, v, g, d_q, d_k, d_v, weights, kept, d_scores, spare, _ = backward_layout(
        H, L, S, E, D, lanes
    )
    for b in range(start, stop):
        read_inputs(p, q, k, v, features, columns, b, call)
        at = call.g_out + b * L * H * D * size
        read_heads(p, g, columns, at, H * D * size, D * size, size, L, H, D, kind)
        for h in range(H):
            by_query, by_key = h * queries * features, h * keys * features
            its_g, of_value = g + h * queries * columns, h * keys * columns
            dots(p, q + by_query, k + by_key, features, weights, row, queries, keys)
            dots(p, its_g, v + of_value, columns, d_scores, row, queries, keys)
            for query in range(L):
                i = query * row
                at, change, used = weights + i, d_scores + i, kept + i
                pair = b * H + h
                differentiate_row(
                    p, at, change, used, spare, S, row, row, pair, query, call, factors
                )
            matmul(
                *(p, d_scores, row, one, k + by_key, features, lanes),
                *(d_q + by_query, features, queries, S, features, scale, False),
            )
            # Transposed by swapping the strides of rows and steps.
            matmul(
                *(p, d_scores, one, row, q + by_query, features, lanes),
                *(d_k + by_key, features, keys, L, features, scale, False),
            )
            matmul(
                *(p, kept, one, row, its_g, columns, lanes),
                *(d_v + of_value, columns, keys, L, columns, whole, False),
            )
        write_heads(p, d_q, features, call.d_q + b * L * H * E * size, L, H, E, kind, size)
        write_heads(p, d_k, features, call.d_k + b * S * H * E * size, S, H, E, kind, size)
        write_heads(p, d_v, columns, call.d_v + b * S * H * D * size, S, H, D, kind, size)
