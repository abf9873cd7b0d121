"""Attention kernels in Numba's CUDA Python: for many short heads, for long ones, and backward.

Each function of `Constants` gives one kernel, a closure whose free variables the compiler sees as
constants. Nothing here is compiled with fastmath: it would assume that there are no infinities.
What all threads of a block do together lies between barriers; a comment says where one guards what.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import cuda
from numba.core import types

from fullattention.backends.numba_cuda_kernels.simulator import SIMULATED

Kernel = Callable[..., None]

SHOWN, CAUSAL, MASKED = 0, 1, 2
"""What hides keys: nothing, the query's own position, a boolean array."""

CHUNK = 8
"""Keys between two rescalings where one thread owns a query."""

AHEAD = 8
"""Loads that a thread has under way at once. A compiler does not put a load before the store of the
one before, since for all it knows they meet."""

ROWS = 4
"""Rows of a product that one thread computes, where there are as many: each number of the right
factor is then read once for all of them."""

LOW = 0xFFFFFFFF
"""The low half of a 64-bit number."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What a kernel is compiled for."""

    dtype: str
    E: int
    D: int
    queries: int = 0
    """Queries of a tile, or of a thread."""
    keys: int = 0
    """Keys of a tile."""
    heads: int = 0
    """Neighbouring heads that a block takes, where it takes several."""
    mask: int = SHOWN
    weights: bool = False
    """Forward: whether they are stored. Backward: whether they have a gradient."""
    logsumexp: bool = False
    dropout: bool = False

    @property
    def storage(self) -> Any:
        """Numba's type of the arrays."""
        return getattr(types, self.dtype)

    @property
    def real(self) -> Any:
        """Numba's type of the arithmetic: float32 for half types."""
        return types.float64 if self.dtype == "float64" else types.float32


def device(function: Callable[..., Any]) -> Any:
    """Compile what kernels call; it becomes part of them, so that their constants reach it."""
    return cuda.jit(device=True, **({} if SIMULATED else {"forceinline": True}))(function)


@device
def mixed(x):
    """A bijection of 32-bit numbers in which every bit of the result depends on all of `x`."""
    x = (x ^ (x >> 16)) * 0x7FEB352D & LOW
    x = (x ^ (x >> 15)) * 0x846CA68B & LOW
    return x ^ (x >> 16)


@device
def is_kept(place, dropping):
    """Whether dropout keeps the weight at a place, its index among all weights of the call.

    It depends on the seed and the place alone, so every pass over a weight agrees.
    """
    _, threshold, seed_low, seed_high = dropping
    bits = mixed((place & LOW) ^ seed_low)
    bits = mixed((bits + (place >> 32)) & LOW ^ seed_high)
    return mixed(bits) >= threshold


@device
def is_hidden(hidden, kind, b, h, query, key, strides):
    """Whether a key is hidden from a query."""
    if kind == CAUSAL:
        return key > query
    if kind == MASKED:
        mb, mh, ml, ms = strides
        return hidden[b * mb, h * mh, query * ml, key * ms]
    return False


@device
def log_of_sum(top, mass, zero):
    """Logarithm of a row's sum of exponentials; minus infinity where all keys are hidden."""
    if mass == zero:
        return top
    return top + math.log(mass)


@device
def load(tile, source, b, h, first, size, width):
    """Copy a head's rows from `first` on into a tile; zeros stand beyond the last."""
    held = cuda.local.array(AHEAD, tile.dtype)
    threads = cuda.blockDim.x
    for start in range(cuda.threadIdx.x, size * width, threads * AHEAD):
        for a in range(AHEAD):
            i = start + a * threads
            held[a] = 0
            if i < size * width and first + i // width < source.shape[1]:
                held[a] = source[b, first + i // width, h, i % width]
        for a in range(AHEAD):
            i = start + a * threads
            if i < size * width:
                tile[i // width, i % width] = held[a]


@device
def store(target, tile, factor, b, h, first, size, width):
    """Copy a tile times a factor to a head's rows from `first` on, as far as there are any."""
    for i in range(cuda.threadIdx.x, size * width, cuda.blockDim.x):
        row, column = i // width, i % width
        if first + row < target.shape[1]:
            target[b, first + row, h, column] = tile[row, column] * factor


@device
def load_heads(shared, start, run, step, source, b, h0, heads, width):
    """Copy rows of neighbouring heads into shared memory.

    Between rows lie `run` numbers there, and `step` between heads.
    """
    held = cuda.local.array(AHEAD, shared.dtype)
    lines = cuda.blockDim.y
    for i in range(cuda.threadIdx.x, heads * width, cuda.blockDim.x):
        head, column = i // width, i % width
        for first in range(cuda.threadIdx.y, source.shape[1], lines * AHEAD):
            for a in range(AHEAD):
                if first + a * lines < source.shape[1]:
                    held[a] = source[b, first + a * lines, h0 + head, column]
            for a in range(AHEAD):
                if first + a * lines < source.shape[1]:
                    shared[start + (first + a * lines) * run + head * step + column] = held[a]


@device
def store_heads(target, shared, start, run, step, b, h0, heads, width):
    """Copy rows of neighbouring heads from shared memory, where they lie as `load_heads` says."""
    lines = cuda.blockDim.y
    for i in range(cuda.threadIdx.x, heads * width, cuda.blockDim.x):
        head, column = i // width, i % width
        for row in range(cuda.threadIdx.y, target.shape[1], lines):
            target[b, row, h0 + head, column] = shared[start + row * run + head * step + column]


@device
def fill(tile, size, width):
    """Set a tile to zero."""
    for i in range(cuda.threadIdx.x, size * width, cuda.blockDim.x):
        tile[i // width, i % width] = 0


@device
def score(scores, queries, keys, hidden, kind, strides, at, sizes, scale, lowest):
    """Scaled products of a tile of queries and one of keys; `lowest` where a key is hidden."""
    b, h, l0, s0, L, S = at
    TL, TS, E = sizes
    together = min(ROWS, TL)
    apart = TL // together
    sums = cuda.local.array(ROWS, scores.dtype)
    for i in range(cuda.threadIdx.x, apart * TS, cuda.blockDim.x):
        row0, column = i // TS, i % TS
        for r in range(together):
            sums[r] = 0
        for e in range(E):
            y = keys[column, e]
            for r in range(together):
                sums[r] += queries[row0 + r * apart, e] * y
        for r in range(together):
            row = row0 + r * apart
            query, key = l0 + row, s0 + column
            scores[row, column] = sums[r] * scale
            if key >= S or (query < L and is_hidden(hidden, kind, b, h, query, key, strides)):
                scores[row, column] = lowest


@device
def exponentiate(p, top, mass, fade, TL, TS, zero, lowest):
    """Turn a tile of scores into exponentials, with each row's largest score and sum so far.

    What was summed before is to be multiplied by `fade`.
    """
    for row in range(cuda.threadIdx.x, TL, cuda.blockDim.x):
        before = top[row]
        largest = before
        for s in range(TS):
            if p[row, s] > largest:
                largest = p[row, s]
        top[row] = largest
        fade[row] = math.exp(before - (zero if largest == lowest else largest))
    cuda.syncthreads()  # the largest are known
    for i in range(cuda.threadIdx.x, TL * TS, cuda.blockDim.x):
        row, s = i // TS, i % TS
        p[row, s] = math.exp(p[row, s] - (zero if top[row] == lowest else top[row]))
    cuda.syncthreads()  # the exponentials are known
    for row in range(cuda.threadIdx.x, TL, cuda.blockDim.x):
        total = mass[row] * fade[row]
        for s in range(TS):
            total += p[row, s]
        mass[row] = total


@device
def drop(p, first, at, TL, TS, dropping, zero):
    """Drop weights of a tile; `first` is the place of the head's first weight."""
    _, _, l0, s0, _, S = at
    for i in range(cuda.threadIdx.x, TL * TS, cuda.blockDim.x):
        row, s = i // TS, i % TS
        if is_kept(first + (l0 + row) * S + s0 + s, dropping):
            p[row, s] *= dropping[0]
        else:
            p[row, s] *= zero  # which leaves NaN


@device
def add_products(total, left, right, rows, columns, inner):
    """total[r, c] += sum over i of left[r, i] * right[i, c]."""
    together = min(ROWS, rows)
    apart = rows // together
    sums = cuda.local.array(ROWS, total.dtype)
    for i in range(cuda.threadIdx.x, apart * columns, cuda.blockDim.x):
        row0, c = i // columns, i % columns
        for r in range(together):
            sums[r] = total[row0 + r * apart, c]
        for j in range(inner):
            y = right[j, c]
            for r in range(together):
                sums[r] += left[row0 + r * apart, j] * y
        for r in range(together):
            total[row0 + r * apart, c] = sums[r]


@device
def add_transposed(total, left, right, rows, columns, inner):
    """total[r, c] += sum over i of left[i, r] * right[i, c]."""
    together = min(ROWS, rows)
    apart = rows // together
    sums = cuda.local.array(ROWS, total.dtype)
    for i in range(cuda.threadIdx.x, apart * columns, cuda.blockDim.x):
        row0, c = i // columns, i % columns
        for r in range(together):
            sums[r] = total[row0 + r * apart, c]
        for j in range(inner):
            y = right[j, c]
            for r in range(together):
                sums[r] += left[j, row0 + r * apart] * y
        for r in range(together):
            total[row0 + r * apart, c] = sums[r]


@device
def weight_gradients(dp, grads, values, more, given, first, at, sizes, dropout, dropping, zero):
    """Gradients of the weights before dropout: a tile of `grads` times one of values.

    `more` is added where it is `given`.
    """
    b, h, l0, s0, L, S = at
    TL, TS, D = sizes
    together = min(ROWS, TL)
    apart = TL // together
    sums = cuda.local.array(ROWS, dp.dtype)
    for i in range(cuda.threadIdx.x, apart * TS, cuda.blockDim.x):
        row0, s = i // TS, i % TS
        for r in range(together):
            sums[r] = 0
        for d in range(D):
            y = values[s, d]
            for r in range(together):
                sums[r] += grads[row0 + r * apart, d] * y
        for r in range(together):
            row = row0 + r * apart
            x = sums[r]
            if given and l0 + row < L and s0 + s < S:
                x += more[b, h, l0 + row, s0 + s]
            if dropout:
                if is_kept(first + (l0 + row) * S + s0 + s, dropping):
                    x *= dropping[0]
                else:
                    x *= zero
            dp[row, s] = x


def numpy_real(c: Constants) -> Any:
    """NumPy's type of the arithmetic."""
    return np.float64 if c.dtype == "float64" else np.float32


def padded(width: int) -> int:
    """Distance of rows in shared memory, such that a column's entries lie in different banks."""
    return width + 1 if width % 16 == 0 else width


class RowsLayout(NamedTuple):
    """Distances in the shared memory of `rows`, in elements."""

    key: int
    """From a head's key to the next head's, at one place."""
    value: int
    slot: int
    """From a query of one head to the next head's."""
    run: int
    """From the queries at one place to those at the next."""


def rows_layout(c: Constants) -> RowsLayout:
    """Where `rows` keeps what it loads."""
    slot = max(c.E, c.D)
    return RowsLayout(padded(c.E), padded(c.D), slot, padded(c.heads * slot))


def rows(c: Constants) -> Kernel:
    """Forward for many short heads: one thread owns a few queries, keys lie in shared memory once.

    A block takes some batch entries and some neighbouring heads of each, so that what it loads and
    stores are runs of `heads` rows, one beside the other in memory. Its dynamic shared memory holds
    all keys and values of those heads, and one slot for each query, through which queries come in
    and results go out; see `rows_layout`.
    """
    E, D, HEADS, OWN, STEP = c.E, c.D, c.heads, c.queries, CHUNK
    HIDES, WEIGHTS, LOGSUMEXP, DROPOUT = c.mask, c.weights, c.logsumexp, c.dropout
    real, KEY, VALUE, SLOT, RUN = c.real, *rows_layout(c)
    zero, lowest = numpy_real(c)(0), numpy_real(c)(-math.inf)

    def kernel(q, k, v, hidden, out, weights, logsumexp, scale, dropping, strides, batches):
        shared = cuda.shared.array(0, real)
        x = cuda.local.array((OWN, E), real)
        total = cuda.local.array((OWN, D), real)
        p = cuda.local.array((OWN, STEP), real)
        top = cuda.local.array(OWN, real)
        mass = cuda.local.array(OWN, real)
        B, L, H, S = q.shape[0], q.shape[1], q.shape[2], k.shape[1]
        groups = (H + HEADS - 1) // HEADS
        parts = (L + OWN - 1) // OWN
        value0 = batches * S * HEADS * KEY
        slot0 = value0 + batches * S * HEADS * VALUE
        thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        threads = cuda.blockDim.x * cuda.blockDim.y
        for block in range(cuda.blockIdx.x, (B + batches - 1) // batches * groups, cuda.gridDim.x):
            b0, h0 = block // groups * batches, block % groups * HEADS
            taken = min(HEADS, H - h0)
            cuda.syncthreads()  # the results of the block before are stored
            for n in range(min(batches, B - b0)):
                at = n * S * HEADS
                load_heads(shared, at * KEY, HEADS * KEY, KEY, k, b0 + n, h0, taken, E)
                at = value0 + at * VALUE
                load_heads(shared, at, HEADS * VALUE, VALUE, v, b0 + n, h0, taken, D)
                load_heads(shared, slot0 + n * L * RUN, RUN, SLOT, q, b0 + n, h0, taken, E)
            cuda.syncthreads()  # everything is loaded
            for item in range(thread, batches * HEADS * parts, threads):
                l0, j, n = item % parts * OWN, item // parts % HEADS, item // parts // HEADS
                b, h = b0 + n, h0 + j
                if b < B and j < taken:
                    keys = (n * S * HEADS + j) * KEY
                    values = value0 + (n * S * HEADS + j) * VALUE
                    slots = slot0 + n * L * RUN + j * SLOT
                    first = (b * H + h) * L * S
                    for r in range(OWN):
                        # A query beyond the last repeats it, and is not stored.
                        query = min(l0 + r, L - 1)
                        for e in range(E):
                            x[r, e] = shared[slots + query * RUN + e]
                        for d in range(D):
                            total[r, d] = zero
                        top[r] = lowest
                        mass[r] = zero
                    for s0 in range(0, S, STEP):
                        for t in range(STEP):
                            s = s0 + t
                            for r in range(OWN):
                                p[r, t] = lowest
                            if s < S:
                                at = keys + s * HEADS * KEY
                                for r in range(OWN):
                                    p[r, t] = x[r, 0] * shared[at]
                                for e in range(1, E):
                                    y = shared[at + e]
                                    for r in range(OWN):
                                        p[r, t] += x[r, e] * y
                                for r in range(OWN):
                                    p[r, t] *= scale
                                    query = min(l0 + r, L - 1)
                                    if is_hidden(hidden, HIDES, b, h, query, s, strides):
                                        p[r, t] = lowest
                        for r in range(OWN):
                            before = top[r]
                            for t in range(STEP):
                                if p[r, t] > top[r]:
                                    top[r] = p[r, t]
                            shift = zero if top[r] == lowest else top[r]
                            fade = math.exp(before - shift)
                            mass[r] *= fade
                            for d in range(D):
                                total[r, d] *= fade
                            for t in range(STEP):
                                p[r, t] = math.exp(p[r, t] - shift)
                                mass[r] += p[r, t]
                            if DROPOUT:
                                place = first + min(l0 + r, L - 1) * S + s0
                                for t in range(STEP):
                                    kept = is_kept(place + t, dropping)
                                    p[r, t] *= dropping[0] if kept else zero
                        for t in range(STEP):
                            if s0 + t < S:
                                at = values + (s0 + t) * HEADS * VALUE
                                for d in range(D):
                                    y = shared[at + d]
                                    for r in range(OWN):
                                        total[r, d] += p[r, t] * y
                    for r in range(OWN):
                        query = l0 + r
                        if query < L:
                            for s in range(S if WEIGHTS else 0):
                                at = keys + s * HEADS * KEY
                                z = x[r, 0] * shared[at]
                                for e in range(1, E):
                                    z += x[r, e] * shared[at + e]
                                z *= scale
                                if is_hidden(hidden, HIDES, b, h, query, s, strides):
                                    z = lowest
                                a = math.exp(z - (zero if top[r] == lowest else top[r])) / mass[r]
                                if DROPOUT:
                                    kept = is_kept(first + query * S + s, dropping)
                                    a *= dropping[0] if kept else zero
                                weights[b, h, query, s] = a
                            if LOGSUMEXP:
                                logsumexp[b, h, query, 0] = log_of_sum(top[r], mass[r], zero)
                            for d in range(D):
                                shared[slots + query * RUN + d] = total[r, d] / mass[r]
            cuda.syncthreads()  # every result is in its slot
            for n in range(min(batches, B - b0)):
                store_heads(out, shared, slot0 + n * L * RUN, RUN, SLOT, b0 + n, h0, taken, D)

    return kernel


def tiles(c: Constants) -> Kernel:
    """Forward for long heads and wide ones: a block owns a tile of queries of one head.

    It walks over tiles of keys with an online softmax. Tiles that are hidden causally are not
    computed; their values are only looked through for NaN and infinity, which a weight of 0 keeps.
    """
    E, D, TL, TS = c.E, c.D, c.queries, c.keys
    HIDES, WEIGHTS, LOGSUMEXP, DROPOUT = c.mask, c.weights, c.logsumexp, c.dropout
    real, E1, WIDE = c.real, c.E + 1, max(c.E, c.D) + 1  # one more: a column is on many banks
    BY_E = (TL, TS, E)
    zero, lowest = numpy_real(c)(0), numpy_real(c)(-math.inf)

    def kernel(q, k, v, hidden, out, weights, logsumexp, scale, dropping, strides):
        queries = cuda.shared.array((TL, E1), real)
        other = cuda.shared.array((TS, WIDE), real)
        total = cuda.shared.array((TL, D), real)
        p = cuda.shared.array((TL, TS), real)
        top = cuda.shared.array(TL, real)
        mass = cuda.shared.array(TL, real)
        fade = cuda.shared.array(TL, real)
        B, L, H, S = q.shape[0], q.shape[1], q.shape[2], k.shape[1]
        steps = (L + TL - 1) // TL
        thread, threads = cuda.threadIdx.x, cuda.blockDim.x
        for block in range(cuda.blockIdx.x, B * H * steps, cuda.gridDim.x):
            l0, h, b = block % steps * TL, block // steps % H, block // steps // H
            first = (b * H + h) * L * S
            cuda.syncthreads()  # the results of the block before are stored
            load(queries, q, b, h, l0, TL, E)
            fill(total, TL, D)
            for row in range(thread, TL, threads):
                top[row] = lowest
                mass[row] = zero
            seen = min(S, l0 + TL) if HIDES == CAUSAL else S
            for s0 in range(0, seen, TS):
                at = (b, h, l0, s0, L, S)
                cuda.syncthreads()  # the values before are used
                load(other, k, b, h, s0, TS, E)
                cuda.syncthreads()  # queries and keys are loaded
                score(p, queries, other, hidden, HIDES, strides, at, BY_E, scale, lowest)
                cuda.syncthreads()  # the keys are used
                load(other, v, b, h, s0, TS, D)
                exponentiate(p, top, mass, fade, TL, TS, zero, lowest)
                for i in range(thread, TL * D, threads):
                    total[i // D, i % D] *= fade[i // D]
                cuda.syncthreads()  # old sums are on the scale of the new ones
                if DROPOUT:
                    drop(p, first, at, TL, TS, dropping, zero)
                    cuda.syncthreads()  # the weights are dropped
                add_products(total, p, other, TL, D, TS)
            cuda.syncthreads()  # the sums over the keys that are seen are complete
            for d in range(thread, D if HIDES == CAUSAL else 0, threads):
                x = zero
                for s in range((seen + TS - 1) // TS * TS, S):
                    other[0, d] = v[b, s, h, d]
                    x += zero * other[0, d]
                for row in range(TL):
                    total[row, d] += x
            cuda.syncthreads()  # and those over the rest
            for i in range(thread, TL * D, threads):
                row, d = i // D, i % D
                if l0 + row < L:
                    out[b, l0 + row, h, d] = total[row, d] / mass[row]
            for row in range(thread, TL if LOGSUMEXP else 0, threads):
                if l0 + row < L:
                    logsumexp[b, h, l0 + row, 0] = log_of_sum(top[row], mass[row], zero)
            for s0 in range(0, S if WEIGHTS else 0, TS):
                at = (b, h, l0, s0, L, S)
                cuda.syncthreads()  # the weights before are stored
                load(other, k, b, h, s0, TS, E)
                cuda.syncthreads()  # the keys are loaded
                score(p, queries, other, hidden, HIDES, strides, at, BY_E, scale, lowest)
                cuda.syncthreads()  # the scores are known
                for i in range(thread, TL * TS, threads):
                    row, s = i // TS, i % TS
                    shift = zero if top[row] == lowest else top[row]
                    p[row, s] = math.exp(p[row, s] - shift) / mass[row]
                cuda.syncthreads()  # the weights are known
                if DROPOUT:
                    drop(p, first, at, TL, TS, dropping, zero)
                    cuda.syncthreads()  # and dropped
                for i in range(thread, TL * TS, threads):
                    row, s = i // TS, i % TS
                    if l0 + row < L and s0 + s < S:
                        weights[b, h, l0 + row, s0 + s] = p[row, s]

    return kernel


def query_gradients(c: Constants) -> Kernel:
    """Backward by queries: a block owns a tile of queries and walks over tiles of keys, twice.

    The first walk sums weights times their gradients for each row (`rowsum`, which `key_gradients`
    reads), the second sums the gradients. Nothing is added by two threads, so the result is the
    same each time.
    """
    E, D, TL, TS = c.E, c.D, c.queries, c.keys
    HIDES, WEIGHTS, DROPOUT = c.mask, c.weights, c.dropout
    real, E1, D1, WIDE = c.real, c.E + 1, c.D + 1, max(c.E, c.D) + 1
    BY_E, BY_D = (TL, TS, E), (TL, TS, D)
    zero, lowest = numpy_real(c)(0), numpy_real(c)(-math.inf)

    def kernel(q, k, v, hidden, g_out, g_weights, lse, rowsum, g_q, scale, dropping, strides):
        queries = cuda.shared.array((TL, E1), real)
        grads = cuda.shared.array((TL, D1), real)
        other = cuda.shared.array((TS, WIDE), real)
        total = cuda.shared.array((TL, E), real)
        p = cuda.shared.array((TL, TS), real)
        dp = cuda.shared.array((TL, TS), real)
        level = cuda.shared.array(TL, real)
        mean = cuda.shared.array(TL, real)
        B, L, H, S = q.shape[0], q.shape[1], q.shape[2], k.shape[1]
        steps = (L + TL - 1) // TL
        thread, threads = cuda.threadIdx.x, cuda.blockDim.x
        for block in range(cuda.blockIdx.x, B * H * steps, cuda.gridDim.x):
            l0, h, b = block % steps * TL, block // steps % H, block // steps // H
            first = (b * H + h) * L * S
            cuda.syncthreads()  # the results of the block before are stored
            load(queries, q, b, h, l0, TL, E)
            load(grads, g_out, b, h, l0, TL, D)
            fill(total, TL, E)
            for row in range(thread, TL, threads):
                level[row] = lse[b, h, min(l0 + row, L - 1), 0]
                mean[row] = zero
            for walk in range(2):
                # What is hidden adds nothing in the second walk, in the first 0 times its gradient.
                seen = min(S, l0 + TL) if HIDES == CAUSAL and walk == 1 else S
                for s0 in range(0, seen, TS):
                    at = (b, h, l0, s0, L, S)
                    cuda.syncthreads()  # the tile before is used
                    load(other, v, b, h, s0, TS, D)
                    cuda.syncthreads()  # everything is loaded
                    weight_gradients(
                        dp,
                        grads,
                        other,
                        g_weights,
                        WEIGHTS,
                        first,
                        at,
                        BY_D,
                        DROPOUT,
                        dropping,
                        zero,
                    )
                    cuda.syncthreads()  # the values are used
                    load(other, k, b, h, s0, TS, E)
                    cuda.syncthreads()  # the keys are loaded
                    score(p, queries, other, hidden, HIDES, strides, at, BY_E, scale, lowest)
                    cuda.syncthreads()  # the scores are known
                    if walk == 0:
                        for row in range(thread, TL, threads):
                            x = mean[row]
                            for s in range(min(TS, S - s0)):
                                x += math.exp(p[row, s] - level[row]) * dp[row, s]
                            mean[row] = x
                    else:
                        for i in range(thread, TL * TS, threads):
                            row, s = i // TS, i % TS
                            if p[row, s] == lowest:
                                p[row, s] = zero
                            else:
                                weight = math.exp(p[row, s] - level[row])
                                p[row, s] = weight * (dp[row, s] - mean[row])
                        cuda.syncthreads()  # the gradients of the scores are known
                        add_products(total, p, other, TL, E, TS)
            cuda.syncthreads()  # the sums are complete
            store(g_q, total, scale, b, h, l0, TL, E)
            for row in range(thread, TL, threads):
                if l0 + row < L:
                    rowsum[b, h, l0 + row, 0] = mean[row]

    return kernel


def key_gradients(c: Constants) -> Kernel:
    """Backward by keys and values: a block owns a tile of keys and walks over tiles of queries.

    Tiles that are hidden causally are skipped, unless a row's weights are NaN: such a row makes
    NaN of every value's gradient.
    """
    E, D, TL, TS = c.E, c.D, c.queries, c.keys
    HIDES, WEIGHTS, DROPOUT = c.mask, c.weights, c.dropout
    real, E1, D1, WIDE = c.real, c.E + 1, c.D + 1, max(c.E, c.D) + 1
    BY_E, BY_D = (TL, TS, E), (TL, TS, D)
    zero, one, lowest = (numpy_real(c)(x) for x in (0, 1, -math.inf))

    def kernel(q, k, v, hidden, g_out, g_weights, lse, rowsum, g_k, g_v, scale, dropping, strides):
        keys = cuda.shared.array((TS, E1), real)
        values = cuda.shared.array((TS, D1), real)
        other = cuda.shared.array((TL, WIDE), real)
        total_k = cuda.shared.array((TS, E), real)
        total_v = cuda.shared.array((TS, D), real)
        p = cuda.shared.array((TL, TS), real)
        dp = cuda.shared.array((TL, TS), real)
        level = cuda.shared.array(TL, real)
        mean = cuda.shared.array(TL, real)
        B, L, H, S = q.shape[0], q.shape[1], q.shape[2], k.shape[1]
        steps = (S + TS - 1) // TS
        thread, threads = cuda.threadIdx.x, cuda.blockDim.x
        for block in range(cuda.blockIdx.x, B * H * steps, cuda.gridDim.x):
            s0, h, b = block % steps * TS, block // steps % H, block // steps // H
            first = (b * H + h) * L * S
            cuda.syncthreads()  # the results of the block before are stored
            load(keys, k, b, h, s0, TS, E)
            load(values, v, b, h, s0, TS, D)
            fill(total_k, TS, E)
            fill(total_v, TS, D)
            for l0 in range(0, L, TL):
                at = (b, h, l0, s0, L, S)
                cuda.syncthreads()  # the tile before is used
                for row in range(thread, TL, threads):
                    level[row] = lse[b, h, min(l0 + row, L - 1), 0]
                    mean[row] = rowsum[b, h, min(l0 + row, L - 1), 0]
                cuda.syncthreads()  # the rows' figures are loaded
                skipped = HIDES == CAUSAL and l0 + TL <= s0
                for row in range(TL if skipped else 0):
                    skipped = skipped and math.isfinite(level[row])
                if not skipped:  # the same for all threads: they read the same
                    load(other, g_out, b, h, l0, TL, D)
                    cuda.syncthreads()  # the gradients are loaded
                    weight_gradients(
                        dp,
                        other,
                        values,
                        g_weights,
                        WEIGHTS,
                        first,
                        at,
                        BY_D,
                        DROPOUT,
                        dropping,
                        zero,
                    )
                    cuda.syncthreads()  # the gradients are used
                    load(other, q, b, h, l0, TL, E)
                    cuda.syncthreads()  # the queries are loaded
                    score(p, other, keys, hidden, HIDES, strides, at, BY_E, scale, lowest)
                    cuda.syncthreads()  # the scores are known
                    for i in range(thread, TL * TS, threads):
                        row, s = i // TS, i % TS
                        weight = zero
                        gradient = zero
                        if l0 + row < L:
                            weight = math.exp(p[row, s] - level[row])
                            if p[row, s] != lowest:
                                gradient = weight * (dp[row, s] - mean[row])
                        p[row, s] = weight
                        dp[row, s] = gradient
                    cuda.syncthreads()  # the gradients of the scores are known
                    add_transposed(total_k, dp, other, TS, E, TL)
                    if DROPOUT:
                        drop(p, first, at, TL, TS, dropping, zero)
                    cuda.syncthreads()  # the queries are used
                    load(other, g_out, b, h, l0, TL, D)
                    cuda.syncthreads()  # the gradients are loaded again
                    add_transposed(total_v, p, other, TS, D, TL)
            cuda.syncthreads()  # the sums are complete
            store(g_k, total_k, scale, b, h, s0, TS, E)
            store(g_v, total_v, one, b, h, s0, TS, D)

    return kernel
