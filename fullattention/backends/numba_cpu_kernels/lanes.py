"""Short sequences: one (batch, head) pair in each lane of a vector.

Heads of 4 to 64 keys are too small to fill a register by themselves. So the keys and values of as
many pairs as a register has lanes are transposed once, to [key][feature][lane], and from there on
all arithmetic is vector arithmetic: no lane ever needs another one, and no row has a tail.

Scratch is one run of numbers; every index into it counts numbers, so that vector i of a part is
`lanes` numbers after vector i - 1. Rows of scores are worked on in pairs, since a key that is
loaded then serves twice.
"""

from __future__ import annotations

import numpy as np

from fullattention.backends.numba_cpu_kernels.dropout import random_bits, row_key
from fullattention.backends.numba_cpu_kernels.exponential import exp2
from fullattention.backends.numba_cpu_kernels.memory import gather, read_byte, scatter
from fullattention.backends.numba_cpu_kernels.spans import (
    add,
    all_finite,
    copy,
    fill,
    multiply,
    up,
)
from fullattention.backends.numba_cpu_kernels.vector import (
    after,
    below,
    fma,
    for_both,
    helper,
    inlined,
    lanes_at,
    less,
    load,
    load_bits,
    maximum,
    select,
    splat,
    splat_bits,
    stay_apart,
    store,
)

BLOCK = 4
"""Keys, features or columns of a block: 2 rows by 4 running sums stay in registers."""

TABLE = 16
"""Addresses in a table: as many as any register has lanes."""


@helper
def locate(p, table, address, b_step, h_step, group, H, pairs):
    """Each lane's address of its pair's first number; lanes beyond the last pair repeat it."""
    stay_apart()
    lanes = lanes_at(p)
    for lane in range(lanes):
        pair = min(group * lanes + lane, pairs - 1)
        table[lane] = address + pair // H * b_step + pair % H * h_step


@inlined
def locate_inputs(p, tables, call, group):
    """`locate` q, k, v and the mask, in the first four tables."""
    H, pairs = call.H, call.pairs
    locate(p, tables, call.q, call.q_b, call.q_h, group, H, pairs)
    locate(p, after(tables, TABLE), call.k, call.k_b, call.k_h, group, H, pairs)
    locate(p, after(tables, 2 * TABLE), call.v, call.v_b, call.v_h, group, H, pairs)
    hidden_at = after(tables, 3 * TABLE)
    locate(p, hidden_at, call.hidden, call.hidden_b, call.hidden_h, group, H, pairs)


@helper
def gather_hidden(p, at, width, table, query, rows, S, l_step, s_step, shared):
    """1 where a key is hidden from a query of a lane's pair, else 0: vectors [row][key]."""
    stay_apart()
    lanes = lanes_at(p)
    for row in range(rows):
        for s in range(S):
            offset = (query + row) * l_step + s * s_step
            i = at + row * width + s * lanes
            if shared:
                store(p, i, splat(p, 1.0 if read_byte(table[0] + offset) != 0 else 0.0))
            else:
                for lane in range(lanes):
                    p[i + lane] = 1.0 if read_byte(table[lane] + offset) != 0 else 0.0


@helper
def hide(p, at, stop, hidden, value):
    """Put a number into the vectors from p[at] up to p[stop] where a key is hidden."""
    stay_apart()
    zero, other = splat(p, 0.0), splat(p, value)
    for i in range(0, stop - at, lanes_at(p)):
        flag = less(zero, load(p, hidden + i))
        store(p, at + i, select(flag, other, load(p, at + i)))


@helper
def store_4(p, at, x0, x1, x2, x3):
    """Write four vectors side by side."""
    lanes = lanes_at(p)
    store(p, at, x0)
    store(p, at + lanes, x1)
    store(p, at + 2 * lanes, x2)
    store(p, at + 3 * lanes, x3)


@helper
def products(p, a, b, out, count, width, row):
    """Two rows times a matrix of `count` rows: out[r][s] = sum over e of a[r][e] b[s][e].

    Rows of a and b are `width` numbers apart, rows of out `row`; count is a multiple of 4.
    """
    stay_apart()
    lanes = lanes_at(p)
    zero = splat(p, 0.0)
    for s in range(0, count, BLOCK):
        x0 = x1 = x2 = x3 = y0 = y1 = y2 = y3 = zero
        j = b + s * width
        for e in range(0, width, lanes):
            x, y = load(p, a + e), load(p, a + width + e)
            b0, b1 = load(p, j + e), load(p, j + width + e)
            b2, b3 = load(p, j + 2 * width + e), load(p, j + 3 * width + e)
            x0, x1, x2, x3 = fma(x, b0, x0), fma(x, b1, x1), fma(x, b2, x2), fma(x, b3, x3)
            y0, y1, y2, y3 = fma(y, b0, y0), fma(y, b1, y1), fma(y, b2, y2), fma(y, b3, y3)
        store_4(p, out + s * lanes, x0, x1, x2, x3)
        store_4(p, out + row + s * lanes, y0, y1, y2, y3)


@helper
def combine(p, a, b, out, count, width, row, shares):
    """Two rows' weighted sums: out[r][d] = shares[r] times the sum over s of a[r][s] b[s][d].

    Rows of a are `row` numbers apart, rows of b and out `width`, which is a multiple of 4 vectors.
    """
    stay_apart()
    lanes = lanes_at(p)
    zero = splat(p, 0.0)
    x_share, y_share = load(p, shares), load(p, shares + lanes)
    for d in range(0, width, BLOCK * lanes):
        x0 = x1 = x2 = x3 = y0 = y1 = y2 = y3 = zero
        j = b + d
        for s in range(a, a + count * lanes, lanes):
            x, y = load(p, s), load(p, row + s)
            b0, b1 = load(p, j), load(p, j + lanes)
            b2, b3 = load(p, j + 2 * lanes), load(p, j + 3 * lanes)
            x0, x1, x2, x3 = fma(x, b0, x0), fma(x, b1, x1), fma(x, b2, x2), fma(x, b3, x3)
            y0, y1, y2, y3 = fma(y, b0, y0), fma(y, b1, y1), fma(y, b2, y2), fma(y, b3, y3)
            j += width
        store_4(p, out + d, x0 * x_share, x1 * x_share, x2 * x_share, x3 * x_share)
        store_4(p, out + width + d, y0 * y_share, y1 * y_share, y2 * y_share, y3 * y_share)


@helper
def accumulate(p, a, b, out, count, width, row):
    """Add two rows' outer products: out[s][e] += a[0][s] b[0][e] + a[1][s] b[1][e].

    Rows of a are `row` numbers apart, rows of b and out `width`, which is a multiple of 4 vectors.
    """
    stay_apart()
    lanes = lanes_at(p)
    for e in range(0, width, BLOCK * lanes):
        i = b + e
        x0, x1 = load(p, i), load(p, i + lanes)
        x2, x3 = load(p, i + 2 * lanes), load(p, i + 3 * lanes)
        i += width
        y0, y1 = load(p, i), load(p, i + lanes)
        y2, y3 = load(p, i + 2 * lanes), load(p, i + 3 * lanes)
        j = out + e
        for s in range(a, a + count * lanes, lanes):
            x, y = load(p, s), load(p, row + s)
            z0 = fma(y, y0, fma(x, x0, load(p, j)))
            z1 = fma(y, y1, fma(x, x1, load(p, j + lanes)))
            z2 = fma(y, y2, fma(x, x2, load(p, j + 2 * lanes)))
            z3 = fma(y, y3, fma(x, x3, load(p, j + 3 * lanes)))
            store_4(p, j, z0, z1, z2, z3)
            j += width


@helper
def softmax(p, scores, count, row, binary, shares):
    """Replace two rows of scores by exp(score - maximum), and write one over each row's sum."""
    stay_apart()
    lanes = lanes_at(p)
    stop = scores + count * lanes
    x_max = y_max = splat(p, -np.inf)
    for s in range(scores, stop, lanes):
        x_max = maximum(load(p, s), x_max)
        y_max = maximum(load(p, row + s), y_max)
    factor = splat(p, binary)
    x_sum = y_sum = splat(p, 0.0)
    even = scores + count // 2 * 2 * lanes
    for s in range(scores, even, 2 * lanes):  # four chains of operations hide each other's wait
        x0, x1 = load(p, s) - x_max, load(p, s + lanes) - x_max
        y0, y1 = load(p, row + s) - y_max, load(p, row + s + lanes) - y_max
        x0, x1, y0, y1 = exp2(x0, factor), exp2(x1, factor), exp2(y0, factor), exp2(y1, factor)
        store(p, s, x0)
        store(p, s + lanes, x1)
        store(p, row + s, y0)
        store(p, row + s + lanes, y1)
        x_sum, y_sum = x_sum + (x0 + x1), y_sum + (y0 + y1)
    for s in range(even, stop, lanes):
        x, y = exp2(load(p, s) - x_max, factor), exp2(load(p, row + s) - y_max, factor)
        store(p, s, x)
        store(p, row + s, y)
        x_sum, y_sum = x_sum + x, y_sum + y
    one = splat(p, 1.0)
    store(p, shares, one / x_sum)
    store(p, shares + lanes, one / y_sum)


@helper
def drop(p, at, other, count, seed, threshold, group, query, pairs, bits):
    """Put 0 into two runs of vectors where dropout takes a weight of row query."""
    stay_apart()
    lanes = lanes_at(p)
    for lane in range(lanes):
        key = row_key(seed, min(group * lanes + lane, pairs - 1), query)
        bits[lane] = np.uint32(key)
        bits[lanes + lane] = np.uint32(key >> np.uint64(32))
    first, second = load_bits(p, bits, 0), load_bits(p, bits, lanes)
    limit, zero = splat_bits(p, threshold), splat(p, 0.0)
    for s in range(count):
        i = s * lanes
        taken = below(random_bits(splat_bits(p, s), first, second), limit)
        store(p, at + i, select(taken, zero, load(p, at + i)))
        store(p, other + i, select(taken, zero, load(p, other + i)))


@helper
def differentiate(p, weights, gradients, count):
    """Turn one row's gradients by its weights into those by its scores."""
    stay_apart()
    lanes = lanes_at(p)
    mean = splat(p, 0.0)
    for i in range(0, count * lanes, lanes):
        mean = fma(load(p, weights + i), load(p, gradients + i), mean)
    for i in range(0, count * lanes, lanes):
        store(p, gradients + i, load(p, weights + i) * (load(p, gradients + i) - mean))


@inlined
def weights_of(p, q, k, at, query, count, width, row, hidden, shares, call, factors):
    """Unnormalised weights of two rows of queries, and one over each row's sum at `shares`.

    `hidden` is where the mask of both lies, 0 if there is none.
    """
    lanes = lanes_at(p)
    end = count * lanes
    products(p, q, k, at, up(count, BLOCK), width, row)
    if factors.sign != 1.0:
        multiply(p, at, at + row + end, splat(p, factors.sign))
    if call.causal:
        fill(p, at + (query + 1) * lanes, at + end, -np.inf)
        fill(p, at + row + (query + 2) * lanes, at + row + end, -np.inf)
    if hidden:
        hide(p, at, at + end, hidden, -np.inf)
        hide(p, at + row, at + row + end, hidden + row, -np.inf)
    softmax(p, at, count, row, factors.binary, shares)


@for_both
def forward_layout(L, S, E, D, lanes, chunk):
    """Where the parts of `forward`'s scratch begin, behind the shares; last, where it ends."""
    keys = up(S, BLOCK)
    row, width, columns = keys * lanes, E * lanes, up(D, BLOCK) * lanes
    k = 2 * lanes
    v = k + keys * width
    q = v + S * columns
    out = q + chunk * width
    hidden = out + chunk * columns
    scores = hidden + chunk * row
    return k, v, q, out, hidden, scores, scores + 2 * row


@inlined
def forward(call, factors, p, bits, tables, start, stop):
    """Attend for the groups of pairs from `start` up to `stop`; scratch begins as zeros."""
    lanes = lanes_at(p)
    nothing = np.int64(0)  # a plain 0 is a type of its own, for which all would be compiled again
    L, S, H, E, D, kind, size = call.L, call.S, call.H, call.E, call.D, call.kind, call.size
    pairs, chunk = call.pairs, call.chunk
    row, width, columns = up(S, BLOCK) * lanes, E * lanes, up(D, BLOCK) * lanes
    shares = nothing
    k, v, q, out, hidden, scores, _ = forward_layout(L, S, E, D, lanes, chunk)
    q_at, k_at, v_at = tables, after(tables, TABLE), after(tables, 2 * TABLE)
    hidden_at, out_at = after(tables, 3 * TABLE), after(tables, 4 * TABLE)
    weights_at = after(tables, 5 * TABLE)
    shared = call.hidden_b == 0 and call.hidden_h == 0
    for group in range(start, stop):
        locate_inputs(p, tables, call, group)
        locate(p, out_at, call.out, L * H * D * size, D * size, group, H, pairs)
        locate(p, weights_at, call.weights, H * L * S * size, L * S * size, group, H, pairs)
        gather(p, k, width, k_at, nothing, call.k_s, call.k_e, S, E, kind)
        gather(p, v, columns, v_at, nothing, call.v_s, call.v_d, S, D, kind)
        # A hidden value that is no number makes V NaN, so only then hidden keys matter.
        skip = call.causal != 0 and all_finite(p, v, v + S * columns)
        for first in range(0, L, chunk):
            rows = min(chunk, L - first)
            gather(p, q, width, q_at, first * call.q_l, call.q_l, call.q_e, rows, E, kind)
            if call.hidden:
                steps = call.hidden_l, call.hidden_s
                gather_hidden(p, hidden, row, hidden_at, first, rows, S, *steps, shared)
            for r in range(0, rows, 2):
                query = first + r
                count = min(S, query + 2) if skip else S
                mask = hidden + r * row if call.hidden else nothing
                at = q + r * width
                weights_of(p, at, k, scores, query, count, width, row, mask, shares, call, factors)
                if call.threshold:
                    multiply(p, shares, shares + 2 * lanes, splat(p, factors.keep))
                    for i in range(2):
                        at = scores + i * row
                        whose = group, query + i, pairs
                        drop(p, at, at, count, call.seed, call.threshold, *whose, bits)
                combine(p, scores, v, out + r * columns, count, columns, row, shares)
                for i in range(2):
                    share = load(p, shares + i * lanes)
                    if call.weights and r + i < rows:
                        at = scores + i * row
                        fill(p, at + count * lanes, at + S * lanes, 0.0)
                        multiply(p, at, at + S * lanes, share)  # NaN where the row is
                        place = (query + i) * S * size
                        scatter(p, at, row, weights_at, place, nothing, nothing + 1, S, kind)
            scatter(p, out, columns, out_at, first * H * D * size, H * D * size, rows, D, kind)


@for_both
def backward_layout(L, S, E, D, lanes, chunk):
    """Likewise for `backward`."""
    keys = up(S, BLOCK)
    row, width, columns = keys * lanes, up(E, BLOCK) * lanes, up(D, BLOCK) * lanes
    k = 2 * lanes
    v = k + keys * width
    d_k = v + keys * columns
    d_v = d_k + keys * width
    q = d_v + keys * columns
    d_q = q + chunk * width
    g = d_q + chunk * width
    hidden = g + chunk * columns
    weights = hidden + chunk * row
    kept = weights + 2 * row
    d_scores = kept + 2 * row
    spare = d_scores + 2 * row
    return k, v, d_k, d_v, q, d_q, g, hidden, weights, kept, d_scores, spare, spare + row


@inlined
def backward(call, factors, p, bits, tables, start, stop):
    """Differentiate for the groups of pairs from `start` up to `stop`; scratch begins as zeros."""
    lanes = lanes_at(p)
    nothing = np.int64(0)  # a plain 0 is a type of its own, for which all would be compiled again
    L, S, H, E, D, kind, size = call.L, call.S, call.H, call.E, call.D, call.kind, call.size
    pairs, chunk = call.pairs, call.chunk
    row, width, columns = up(S, BLOCK) * lanes, up(E, BLOCK) * lanes, up(D, BLOCK) * lanes
    shares = nothing
    k, v, d_k, d_v, q, d_q, g, hidden, weights, kept, d_scores, spare, _ = backward_layout(
        L, S, E, D, lanes, chunk
    )
    q_at, k_at, v_at = tables, after(tables, TABLE), after(tables, 2 * TABLE)
    hidden_at, g_at = after(tables, 3 * TABLE), after(tables, 4 * TABLE)
    g_weights_at, d_q_at = after(tables, 5 * TABLE), after(tables, 6 * TABLE)
    d_k_at, d_v_at = after(tables, 7 * TABLE), after(tables, 8 * TABLE)
    shared = call.hidden_b == 0 and call.hidden_h == 0
    for group in range(start, stop):
        locate_inputs(p, tables, call, group)
        locate(p, g_at, call.g_out, L * H * D * size, D * size, group, H, pairs)
        locate(p, g_weights_at, call.g_weights, H * L * S * size, L * S * size, group, H, pairs)
        locate(p, d_q_at, call.d_q, L * H * E * size, E * size, group, H, pairs)
        locate(p, d_k_at, call.d_k, S * H * E * size, E * size, group, H, pairs)
        locate(p, d_v_at, call.d_v, S * H * D * size, D * size, group, H, pairs)
        gather(p, k, width, k_at, nothing, call.k_s, call.k_e, S, E, kind)
        gather(p, v, columns, v_at, nothing, call.v_s, call.v_d, S, D, kind)
        fill(p, d_k, q, 0.0)
        skip = call.causal != 0 and all_finite(p, k, v + S * columns)
        for first in range(0, L, chunk):
            rows = min(chunk, L - first)
            gather(p, q, width, q_at, first * call.q_l, call.q_l, call.q_e, rows, E, kind)
            place, step = first * H * D * size, H * D * size
            gather(p, g, columns, g_at, place, step, size, rows, D, kind)
            skip = skip and all_finite(p, q, q + rows * width)
            skip = skip and all_finite(p, g, g + rows * columns)
            if rows % 2:  # the odd row's partner adds nothing to d_k and d_v
                fill(p, q + rows * width, q + (rows + 1) * width, 0.0)
                fill(p, g + rows * columns, g + (rows + 1) * columns, 0.0)
            if call.hidden:
                steps = call.hidden_l, call.hidden_s
                gather_hidden(p, hidden, row, hidden_at, first, rows, S, *steps, shared)
            for r in range(0, rows, 2):
                query = first + r
                count = min(S, query + 2) if skip else S
                end = count * lanes
                mask = hidden + r * row if call.hidden else nothing
                at = q + r * width
                weights_of(p, at, k, weights, query, count, width, row, mask, shares, call, factors)
                products(p, g + r * columns, v, d_scores, up(count, BLOCK), columns, row)
                for i in range(2):
                    at, change, used = weights + i * row, d_scores + i * row, kept + i * row
                    multiply(p, at, at + end, load(p, shares + i * lanes))
                    copy(p, at, at + end, used)
                    if r + i == rows:
                        fill(p, used, used + end, 0.0)
                        fill(p, change, change + end, 0.0)
                        continue
                    if call.g_weights:
                        place = (query + i) * S * size
                        steps = nothing, size
                        gather(p, spare, row, g_weights_at, place, *steps, nothing + 1, count, kind)
                        add(p, change, change + end, spare)
                    if call.threshold:
                        keep = splat(p, factors.keep)
                        multiply(p, change, change + end, keep)
                        multiply(p, used, used + end, keep)
                        whose = group, query + i, pairs
                        drop(p, change, used, count, call.seed, call.threshold, *whose, bits)
                    differentiate(p, at, change, count)
                    if call.causal:
                        fill(p, change + (query + i + 1) * lanes, change + end, 0.0)
                    if call.hidden:
                        hide(p, change, change + end, mask + i * row, 0.0)
                fill(p, shares, shares + 2 * lanes, factors.scale)
                combine(p, d_scores, k, d_q + r * width, count, width, row, shares)
                accumulate(p, d_scores, q + r * width, d_k, count, width, row)
                accumulate(p, kept, g + r * columns, d_v, count, columns, row)
            scatter(p, d_q, width, d_q_at, first * H * E * size, H * E * size, rows, E, kind)
        multiply(p, d_k, d_k + S * width, splat(p, factors.scale))
        scatter(p, d_k, width, d_k_at, nothing, H * E * size, S, E, kind)
        scatter(p, d_v, columns, d_v_at, nothing, H * D * size, S, D, kind)
