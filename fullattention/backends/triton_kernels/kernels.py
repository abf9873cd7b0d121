"""Attention kernels in Triton: forward, and the gradients by queries and by keys.

A program owns a tile of rows of one head, or all rows of several heads where they are short, and
goes over the other side tile by tile; tiles are (heads, rows, columns). All sums are kept in
float32, whose factors are never cut to TF32. Grids have one axis, along x, and offsets in memory
are counted in 64 bits.

An array (batch, time, heads, features) comes as a tuple of its memory and its four strides, and so
does a mask (batch, heads, queries, keys), whose strides are 0 where it is broadcast.
"""

from __future__ import annotations

import triton
import triton.language as tl

DRAWN = tl.constexpr(4)
"""Neighbouring keys whose drops come from one draw."""

ROUNDS = tl.constexpr(7)
"""Of Philox 4x32: the fewest that pass all of TestU01's batteries."""

VARYING = ("heads", "H", "L", "S", "scale", "seed", "threshold", "kept")
"""Arguments whose values are not compiled in."""


@triton.jit
def product(a, b, total):
    """The sum of `total` and a b, for each head."""
    if a.shape[0] == 1:  # Hopper's own instructions know no axis of heads
        sums = tl.dot(
            tl.reshape(a, (a.shape[1], a.shape[2])),
            tl.reshape(b, (b.shape[1], b.shape[2])),
            tl.reshape(total, (total.shape[1], total.shape[2])),
            input_precision="ieee",
        )
        total = tl.reshape(sums, total.shape)
    else:
        total = tl.dot(a, b, total, input_precision="ieee")
    return total


@triton.jit
def flipped(tile):
    """The tile with rows and columns exchanged."""
    return tl.permute(tile, (0, 2, 1))


@triton.jit
def places(array, head, H, rows, WIDTH: tl.constexpr):
    """Where rows of some heads lie: (heads, rows, WIDTH)."""
    data, batch_step, row_step, head_step, column_step = array
    starts = head // H * batch_step + head % H * head_step
    columns = tl.arange(0, WIDTH).to(tl.int64)
    within = rows.to(tl.int64)[:, None] * row_step + columns[None, :] * column_step
    return data + (starts[:, None, None] + within[None, :, :])


@triton.jit
def load_rows(array, head, H, rows, there, width: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of some heads, zero where there is none."""
    mask = there[:, :, None] & (tl.arange(0, WIDTH) < width)[None, None, :]
    return tl.load(places(array, head, H, rows, WIDTH), mask=mask, other=0.0)


@triton.jit
def store_rows(array, tile, head, H, rows, there, width: tl.constexpr):
    """Store rows of some heads, as far as there are any."""
    WIDTH: tl.constexpr = tile.shape[2]
    mask = there[:, :, None] & (tl.arange(0, WIDTH) < width)[None, None, :]
    place = places(array, head, H, rows, WIDTH)
    tl.store(place, tile.to(place.dtype.element_ty), mask=mask)


@triton.jit
def sum_times_zero(
    array,
    head,
    H,
    first,
    end,
    exists,
    width: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
):
    """The sum of rows times a weight of zero, (heads, 1, WIDTH): NaN where one is not finite [N4].

    It stands for tiles that are skipped because their weights are all zero.
    """
    total = tl.zeros((head.shape[0], 1, WIDTH), tl.float32)
    for at in range(first, end, STEP):
        rows = at + tl.arange(0, STEP)
        there = exists[:, None] & (rows < end)[None, :]
        tile = load_rows(array, head, H, rows, there, width, WIDTH)
        total += tl.sum(tile.to(tl.float32) * 0.0, axis=1, keep_dims=True)
    return total


@triton.jit
def weight_places(weights, head, queries, keys, L, S):
    """Where weights lie in a contiguous array (batch, heads, queries, keys)."""
    row = head[:, None] * L + queries[None, :]
    return weights + (row[:, :, None] * S + keys[None, None, :])


@triton.jit
def masked_scores(x, y, hidden, head, H, queries, keys, pairs, scale, CAUSAL: tl.constexpr):
    """Scaled products of queries and keys, minus infinity where none is shown; and what is shown.

    `pairs`, (heads, queries, keys), says which there are.
    """
    shown = pairs
    if CAUSAL:
        shown = shown & (keys[None, :] <= queries[:, None])[None, :, :]
    if hidden is not None:
        data, batch_step, head_step, query_step, key_step = hidden
        starts = head // H * batch_step + head % H * head_step
        within = queries.to(tl.int64)[:, None] * query_step
        within += keys.to(tl.int64)[None, :] * key_step
        place = data + (starts[:, None, None] + within[None, :, :])
        shown = shown & (tl.load(place, mask=pairs, other=1) == 0)
    scores = product(x, flipped(y), tl.zeros(pairs.shape, tl.float32)) * scale
    return tl.where(shown, scores, float("-inf")), shown


@triton.jit
def exponentials(scores, top):
    """The exponentials of scores below the largest; zero where all so far are hidden."""
    return tl.exp(scores - tl.where(top == float("-inf"), 0.0, top)[:, :, None])


@triton.jit
def kept_weights(head, queries, first, seed, threshold, kept, KEYS: tl.constexpr):
    """What dropout multiplies weights with, `kept` or zero; `first` is a multiple of `DRAWN`.

    It depends on the seed and a weight's place alone, so that every pass over it agrees.
    """
    shape: tl.constexpr = (head.shape[0], queries.shape[0], KEYS // DRAWN)
    group = first // DRAWN + tl.arange(0, KEYS // DRAWN)
    r0, r1, r2, r3 = tl.philox(
        seed,
        tl.broadcast_to(group.to(tl.uint32)[None, None, :], shape),
        tl.broadcast_to(queries.to(tl.uint32)[None, :, None], shape),
        tl.broadcast_to(head.to(tl.uint32)[:, None, None], shape),
        tl.broadcast_to((head >> 32).to(tl.uint32)[:, None, None], shape),
        n_rounds=ROUNDS,
    )
    bits = tl.join(tl.join(r0, r2), tl.join(r1, r3))  # of which the last axis turns fastest
    bits = tl.reshape(bits, (head.shape[0], queries.shape[0], KEYS))
    return tl.where(bits.to(tl.uint64) >= threshold.to(tl.uint64), kept, 0.0)


@triton.jit(do_not_specialize=VARYING)
def attend(
    q,
    k,
    v,
    hidden,
    out,
    weights,
    rows,
    heads,
    H,
    L,
    S,
    scale,
    seed,
    threshold,
    kept,
    E: tl.constexpr,
    D: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH_E: tl.constexpr,
    WIDTH_D: tl.constexpr,
):
    """V, the weights if they are wanted, and of each row the largest score and 1 / sum."""
    element = v[0].dtype.element_ty
    tiles, program = tl.cdiv(L, QUERIES), tl.program_id(0)
    head = (program // tiles).to(tl.int64) * HEADS + tl.arange(0, HEADS)
    exists = head < heads
    queries = program % tiles * QUERIES + tl.arange(0, QUERIES)
    asked = exists[:, None] & (queries < L)[None, :]
    x = load_rows(q, head, H, queries, asked, E, WIDTH_E)
    top = tl.full((HEADS, QUERIES), float("-inf"), tl.float32)
    mass = tl.zeros((HEADS, QUERIES), tl.float32)
    total = tl.zeros((HEADS, QUERIES, WIDTH_D), tl.float32)
    end = S
    if CAUSAL:  # no query of the tile sees the keys after its last one
        end = tl.minimum(S, (program % tiles + 1) * QUERIES)
    for first in range(0, end, KEYS):
        keys = first + tl.arange(0, KEYS)
        there = exists[:, None] & (keys < S)[None, :]
        pairs = asked[:, :, None] & there[:, None, :]
        y = load_rows(k, head, H, keys, there, E, WIDTH_E)
        values = load_rows(v, head, H, keys, there, D, WIDTH_D)
        scores, _ = masked_scores(x, y, hidden, head, H, queries, keys, pairs, scale, CAUSAL)
        highest = tl.maximum(top, tl.max(scores, axis=2))
        p = exponentials(scores, highest)
        fade = tl.exp(top - tl.where(highest == float("-inf"), 0.0, highest))
        mass = mass * fade + tl.sum(p, axis=2)
        top = highest
        if DROPOUT:
            p *= kept_weights(head, queries, first, seed, threshold, 1.0, KEYS)
        total = product(p.to(element), values, total * fade[:, :, None])
    if CAUSAL:
        begin = tl.cdiv(end, KEYS) * KEYS
        total += sum_times_zero(v, head, H, begin, S, exists, D, WIDTH_D, KEYS)

    inverse = tl.div_rn(1.0, mass)  # infinite where all keys are hidden, which makes the row NaN
    row = head[:, None] * L + queries[None, :]
    tl.store(rows + row, top, mask=asked)
    tl.store(rows + heads.to(tl.int64) * L + row, inverse, mask=asked)
    total *= inverse[:, :, None]
    if DROPOUT:
        total *= kept
    store_rows(out, total, head, H, queries, asked, D)
    if weights is not None:
        for first in range(0, S, KEYS):
            keys = first + tl.arange(0, KEYS)
            there = exists[:, None] & (keys < S)[None, :]
            pairs = asked[:, :, None] & there[:, None, :]
            y = load_rows(k, head, H, keys, there, E, WIDTH_E)
            scores, _ = masked_scores(x, y, hidden, head, H, queries, keys, pairs, scale, CAUSAL)
            p = exponentials(scores, top) * inverse[:, :, None]
            if DROPOUT:
                p *= kept_weights(head, queries, first, seed, threshold, kept, KEYS)
            place = weight_places(weights, head, queries, keys, L, S)
            tl.store(place, p.to(element), mask=pairs)


@triton.jit
def rebuilt(
    x,
    g,
    y,
    values,
    top,
    inverse,
    hidden,
    g_weights,
    head,
    H,
    L,
    S,
    queries,
    keys,
    first,
    pairs,
    scale,
    seed,
    threshold,
    kept,
    CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr,
):
    """A tile of the backward pass: weights before and after dropout, the gradient of the former.

    The last result says which keys are shown.
    """
    scores, shown = masked_scores(x, y, hidden, head, H, queries, keys, pairs, scale, CAUSAL)
    p = tl.where(pairs, exponentials(scores, top) * inverse[:, :, None], 0.0)
    d_weights = product(g, flipped(values), tl.zeros(pairs.shape, tl.float32))
    if g_weights is not None:
        place = weight_places(g_weights, head, queries, keys, L, S)
        d_weights += tl.load(place, mask=pairs, other=0.0).to(tl.float32)
    dropped = p
    if DROPOUT:
        keep = kept_weights(head, queries, first, seed, threshold, kept, pairs.shape[2])
        dropped = p * keep
        d_weights *= keep
    return p, dropped, d_weights, shown


@triton.jit(do_not_specialize=VARYING)
def query_gradients(
    g_out,
    g_weights,
    q,
    k,
    v,
    hidden,
    rows,
    slopes,
    g_q,
    heads,
    H,
    L,
    S,
    scale,
    seed,
    threshold,
    kept,
    E: tl.constexpr,
    D: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH_E: tl.constexpr,
    WIDTH_D: tl.constexpr,
):
    """The gradient by q, and of each row its slope: the mean gradient of its weights, by weight.

    All of the slope is needed before the first gradient of a score: two passes over the keys.
    """
    tiles, program = tl.cdiv(L, QUERIES), tl.program_id(0)
    head = (program // tiles).to(tl.int64) * HEADS + tl.arange(0, HEADS)
    exists = head < heads
    queries = program % tiles * QUERIES + tl.arange(0, QUERIES)
    asked = exists[:, None] & (queries < L)[None, :]
    x = load_rows(q, head, H, queries, asked, E, WIDTH_E)
    g = load_rows(g_out, head, H, queries, asked, D, WIDTH_D)
    row = head[:, None] * L + queries[None, :]
    top = tl.load(rows + row, mask=asked, other=0.0)
    inverse = tl.load(rows + heads.to(tl.int64) * L + row, mask=asked, other=0.0)
    slope = tl.zeros((HEADS, QUERIES), tl.float32)
    total = tl.zeros((HEADS, QUERIES, WIDTH_E), tl.float32)
    end = S
    if CAUSAL:
        end = tl.minimum(S, (program % tiles + 1) * QUERIES)
    for summed in tl.static_range(2):
        for first in range(0, end, KEYS):
            keys = first + tl.arange(0, KEYS)
            there = exists[:, None] & (keys < S)[None, :]
            pairs = asked[:, :, None] & there[:, None, :]
            y = load_rows(k, head, H, keys, there, E, WIDTH_E)
            values = load_rows(v, head, H, keys, there, D, WIDTH_D)
            p, _, d_weights, shown = rebuilt(
                *(x, g, y, values, top, inverse, hidden, g_weights),
                *(head, H, L, S, queries, keys, first, pairs),
                *(scale, seed, threshold, kept, CAUSAL, DROPOUT),
            )
            if summed == 0:
                slope += tl.sum(tl.where(pairs, p * d_weights, 0.0), axis=2)
            else:
                d_scores = tl.where(shown, p * (d_weights - slope[:, :, None]), 0.0)
                total = product(d_scores.to(y.dtype), y, total)
        if CAUSAL:
            begin = tl.cdiv(end, KEYS) * KEYS
            if summed == 0:
                none = sum_times_zero(v, head, H, begin, S, exists, D, WIDTH_D, KEYS)
                slope += tl.sum(g.to(tl.float32) * none, axis=2)
            else:
                total += sum_times_zero(k, head, H, begin, S, exists, E, WIDTH_E, KEYS)
    tl.store(slopes + row, slope, mask=asked)
    store_rows(g_q, total * scale, head, H, queries, asked, E)


@triton.jit(do_not_specialize=VARYING)
def key_gradients(
    g_out,
    g_weights,
    q,
    k,
    v,
    hidden,
    rows,
    slopes,
    g_k,
    g_v,
    heads,
    H,
    L,
    S,
    scale,
    seed,
    threshold,
    kept,
    E: tl.constexpr,
    D: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH_E: tl.constexpr,
    WIDTH_D: tl.constexpr,
):
    """The gradients by k and v, from the slopes that the gradient by q has stored."""
    tiles, program = tl.cdiv(S, KEYS), tl.program_id(0)
    head = (program // tiles).to(tl.int64) * HEADS + tl.arange(0, HEADS)
    exists = head < heads
    first = program % tiles * KEYS
    keys = first + tl.arange(0, KEYS)
    there = exists[:, None] & (keys < S)[None, :]
    y = load_rows(k, head, H, keys, there, E, WIDTH_E)
    values = load_rows(v, head, H, keys, there, D, WIDTH_D)
    by_keys = tl.zeros((HEADS, KEYS, WIDTH_E), tl.float32)
    by_values = tl.zeros((HEADS, KEYS, WIDTH_D), tl.float32)
    begin = 0
    if CAUSAL:  # the queries before the tile's first key see none of its keys
        begin = first // QUERIES * QUERIES
    for at in range(begin, L, QUERIES):
        queries = at + tl.arange(0, QUERIES)
        asked = exists[:, None] & (queries < L)[None, :]
        pairs = asked[:, :, None] & there[:, None, :]
        x = load_rows(q, head, H, queries, asked, E, WIDTH_E)
        g = load_rows(g_out, head, H, queries, asked, D, WIDTH_D)
        row = head[:, None] * L + queries[None, :]
        top = tl.load(rows + row, mask=asked, other=0.0)
        inverse = tl.load(rows + heads.to(tl.int64) * L + row, mask=asked, other=0.0)
        slope = tl.load(slopes + row, mask=asked, other=0.0)
        p, dropped, d_weights, shown = rebuilt(
            *(x, g, y, values, top, inverse, hidden, g_weights),
            *(head, H, L, S, queries, keys, first, pairs),
            *(scale, seed, threshold, kept, CAUSAL, DROPOUT),
        )
        d_scores = tl.where(shown, p * (d_weights - slope[:, :, None]), 0.0)
        by_values = product(flipped(dropped.to(g.dtype)), g, by_values)
        by_keys = product(flipped(d_scores.to(x.dtype)), x, by_keys)
    if CAUSAL:
        by_values += sum_times_zero(g_out, head, H, 0, begin, exists, D, WIDTH_D, QUERIES)
        by_keys += sum_times_zero(q, head, H, 0, begin, exists, E, WIDTH_E, QUERIES)
    store_rows(g_k, by_keys * scale, head, H, keys, there, E)
    store_rows(g_v, by_values, head, H, keys, there, D)
