"""Few keys of many features: the features of one query or key side by side in a vector.

Nothing is transposed. The heads of a batch element are read row by row, in the order in which they
lie in memory: processors fetch ahead what is read in order. From then on they are in the
second-level cache.

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
def read_heads(p, at, width, address, row_step, h_step, step, rows, heads, count, kind):
    """Read a matrix of each head: its rows `width` numbers apart, and a multiple of 4 of them."""
    stay_apart()
    apart = up(rows, 4) * width
    for i in range(rows):
        place = address + i * row_step
        read_rows(p, at + i * width, apart, place, h_step, step, heads, count, kind)


@helper
def write_heads(p, at, width, address, row_step, rows, heads, count, kind, size):
    """Write a matrix of each head, as `read_heads` reads it; heads lie side by side."""
    stay_apart()
    apart = up(rows, 4) * width
    for i in range(rows):
        place = address + i * row_step
        write_rows(p, at + i * width, apart, place, count * size, heads, count, kind)


@inlined
def read_inputs(p, q, k, v, features, columns, b, first, heads, call):
    """Read the queries, keys and values of some heads of a batch element."""
    kind = call.kind
    at = call.q + b * call.q_b + first * call.q_h
    read_heads(p, q, features, at, call.q_l, call.q_h, call.q_e, call.L, heads, call.E, kind)
    at = call.k + b * call.k_b + first * call.k_h
    read_heads(p, k, features, at, call.k_s, call.k_h, call.k_e, call.S, heads, call.E, kind)
    at = call.v + b * call.v_b + first * call.v_h
    read_heads(p, v, columns, at, call.v_s, call.v_h, call.v_d, call.S, heads, call.D, kind)


@for_both
def row_of(S, lanes):
    """Numbers of a row of scores: whole vectors, and whole fours of keys, which `dots` writes."""
    return up(up(S, 4), lanes)


@for_both
def forward_layout(L, S, E, D, lanes, chunk):
    """Where the parts of `forward`'s scratch begin, behind the queries; last, where it ends."""
    queries, keys = up(L, 4), up(S, 4)
    features, columns = up(E, 2 * lanes), up(D, 2 * lanes)
    k = chunk * queries * features
    v = k + chunk * keys * features
    out = v + chunk * keys * columns
    scores = out + chunk * queries * columns
    return k, v, out, scores, scores + queries * row_of(S, lanes)


@inlined
def forward(call, factors, p, start, stop):
    """Attend for the chunks of heads from `start` up to `stop`; scratch begins as zeros."""
    lanes = lanes_at(p)
    one = np.int64(1)  # a plain 1 is a type of its own
    whole = splat(p, 1.0)
    H, L, S, E, D, kind, size = call.H, call.L, call.S, call.E, call.D, call.kind, call.size
    queries, keys, row = up(L, 4), up(S, 4), row_of(S, lanes)
    features, columns = up(E, 2 * lanes), up(D, 2 * lanes)
    q = np.int64(0)
    k, v, out, scores, _ = forward_layout(L, S, E, D, lanes, call.chunk)
    chunks = (H + call.chunk - 1) // call.chunk
    for unit in range(start, stop):
        b, first = unit // chunks, unit % chunks * call.chunk
        heads = min(H - first, call.chunk)
        read_inputs(p, q, k, v, features, columns, b, first, heads, call)
        for h in range(heads):
            its_q, its_k = q + h * queries * features, k + h * keys * features
            its_v, its_out = v + h * keys * columns, out + h * queries * columns
            dots(p, its_q, its_k, features, scores, row, queries, keys)
            for query in range(L):
                at, pair = scores + query * row, b * H + first + h
                weigh(p, at, S, row, row, pair, query, call, factors)
            matmul(
                *(p, scores, row, one, its_v, columns, lanes),
                *(its_out, columns, queries, S, columns, whole, False),
            )
        step = H * D * size
        at = call.out + b * L * step + first * D * size
        write_heads(p, out, columns, at, step, L, heads, D, kind, size)


@for_both
def backward_layout(L, S, E, D, lanes, chunk):
    """Likewise for `backward`."""
    queries, keys, row = up(L, 4), up(S, 4), row_of(S, lanes)
    features, columns = up(E, 2 * lanes), up(D, 2 * lanes)
    k = chunk * queries * features
    v = k + chunk * keys * features
    g = v + chunk * keys * columns
    d_q = g + chunk * queries * columns
    d_k = d_q + chunk * queries * features
    d_v = d_k + chunk * keys * features
    weights = d_v + chunk * keys * columns
    kept = weights + queries * row
    d_scores = kept + queries * row
    spare = d_scores + queries * row
    return k, v, g, d_q, d_k, d_v, weights, kept, d_scores, spare, spare + row


@inlined
def backward(call, factors, p, start, stop):
    """Differentiate for the chunks of heads from `start` up to `stop`; scratch begins as zeros."""
    lanes = lanes_at(p)
    one = np.int64(1)  # a plain 1 is a type of its own
    whole, scale = splat(p, 1.0), splat(p, factors.scale)
    H, L, S, E, D, kind, size = call.H, call.L, call.S, call.E, call.D, call.kind, call.size
    queries, keys, row = up(L, 4), up(S, 4), row_of(S, lanes)
    features, columns = up(E, 2 * lanes), up(D, 2 * lanes)
    q = np.int64(0)
    k, v, g, d_q, d_k, d_v, weights, kept, d_scores, spare, _ = backward_layout(
        L, S, E, D, lanes, call.chunk
    )
    chunks = (H + call.chunk - 1) // call.chunk
    for unit in range(start, stop):
        b, first = unit // chunks, unit % chunks * call.chunk
        heads = min(H - first, call.chunk)
        read_inputs(p, q, k, v, features, columns, b, first, heads, call)
        e_step, d_step = H * E * size, H * D * size
        its_e, its_d = first * E * size, first * D * size
        at = call.g_out + b * L * d_step + its_d
        read_heads(p, g, columns, at, d_step, D * size, size, L, heads, D, kind)
        for h in range(heads):
            by_query, by_key = h * queries * features, h * keys * features
            its_g, of_value = g + h * queries * columns, h * keys * columns
            dots(p, q + by_query, k + by_key, features, weights, row, queries, keys)
            dots(p, its_g, v + of_value, columns, d_scores, row, queries, keys)
            for query in range(L):
                i = query * row
                at, change, used = weights + i, d_scores + i, kept + i
                pair = b * H + first + h
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
        at = call.d_q + b * L * e_step + its_e
        write_heads(p, d_q, features, at, e_step, L, heads, E, kind, size)
        at = call.d_k + b * S * e_step + its_e
        write_heads(p, d_k, features, at, e_step, S, heads, E, kind, size)
        at = call.d_v + b * S * d_step + its_d
        write_heads(p, d_v, columns, at, d_step, S, heads, D, kind, size)
