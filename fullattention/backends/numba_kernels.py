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
from numba.core import config, types

Kernel = Callable[..., None]

SIMULATED = bool(config.ENABLE_CUDASIM)
"""Whether Numba's simulator runs the kernels, which has no compiler to instruct."""

SHOWN, CAUSAL, MASKED = 0, 1, 2
"""What hides keys: nothing, the query's own position, a boolean array."""

CHUNK = 8
"""Keys between two rescalings where one thread owns a query."""

LOW = 0xFFFFFFFF
"""The low half of a 64-bit number."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What a kernel is compiled for."""

    dtype: str
    E: int
    D: int
    threads: int = 0
    queries: int = 0
    """Queries of a tile."""
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
def mixed(x: Any) -> Any:
    """A bijection of 32-bit numbers in which every bit of the result depends on all of `x`."""
    x = (x ^ (x >> 16)) * 0x7FEB352D & LOW
    x = (x ^ (x >> 15)) * 0x846CA68B & LOW
    return x ^ (x >> 16)


@device
def is_kept(place: Any, threshold: Any, seed_low: Any, seed_high: Any) -> Any:
    """Whether dropout keeps the weight at a place, its index among all weights of the call.

    It depends on the seed and the place alone, so every pass over a weight agrees.
    """
    bits = mixed((place & LOW) ^ seed_low)
    bits = mixed((bits + (place >> 32)) & LOW ^ seed_high)
    return mixed(bits) >= threshold


@device
def load(tile: Any, source: Any, b: Any, first: Any, h: Any, size: Any, width: Any) -> None:
    """Copy rows `first`... of a head into a tile; zeros stand beyond the last."""
    for i in range(cuda.threadIdx.x, size * width, cuda.blockDim.x):
        row, column = i // width, i % width
        if first + row < source.shape[1]:
            tile[row, column] = source[b, first + row, h, column]
        else:
            tile[row, column] = 0


@device
def fill(tile: Any, size: Any, width: Any) -> None:
    """Set a tile to zero."""
    for i in range(cuda.threadIdx.x, size * width, cuda.blockDim.x):
        tile[i // width, i % width] = 0


@device
def store(target: Any, tile: Any, factor: Any, b: Any, first: Any, h: Any, size: Any, width: Any) -> None:  # fmt: skip # noqa: E501
    """Copy a tile times a factor to a head's rows `first`..., as far as there are any."""
    for i in range(cuda.threadIdx.x, size * width, cuda.blockDim.x):
        row, column = i // width, i % width
        if first + row < target.shape[1]:
            target[b, first + row, h, column] = tile[row, column] * factor


@device
def score(scores: Any, queries: Any, keys: Any, hidden: Any, b: Any, h: Any, first_l: Any, first_s: Any, L: Any, S: Any, TL: Any, TS: Any, E: Any, mask: Any, scale: Any, lowest: Any, mb: Any, mh: Any, ml: Any, ms: Any) -> None:  # fmt: skip # noqa: E501
    """Scaled products of a tile of queries and one of keys; `lowest` where a key is hidden."""
    for i in range(cuda.threadIdx.x, TL * TS, cuda.blockDim.x):
        row, column = i // TS, i % TS
        l, s = first_l + row, first_s + column
        total = queries[row, 0] * keys[column, 0]
        for e in range(1, E):
            total += queries[row, e] * keys[column, e]
        total *= scale
        if s >= S or (mask == CAUSAL and s > l):
            total = lowest
        elif mask == MASKED and l < L and hidden[b * mb, h * mh, l * ml, s * ms]:
            total = lowest
        scores[row, column] = total


@device
def log_of_sum(top: Any, mass: Any, zero: Any) -> Any:
    """Logarithm of a row's sum of exponentials; minus infinity where all keys are hidden."""
    if mass == zero:
        return top
    return top + math.log(mass)


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
    and results go out; see `numba_launch.rows_memory`.
    """
    E, D, HEADS, OWN, STEP = c.E, c.D, c.heads, c.queries, CHUNK
    MASK, WEIGHTS, LOGSUMEXP, DROPOUT = c.mask, c.weights, c.logsumexp, c.dropout
    real, KEY, VALUE, SLOT, RUN = c.real, *rows_layout(c)
    zero, lowest = numpy_real(c)(0), numpy_real(c)(-math.inf)

    def kernel(q, k, v, hidden, out, weights, logsumexp, scale, keep, threshold, seed_low, seed_high, mb, mh, ml, ms, batches):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202, C901, E501  # fmt: skip
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
        column0, columns = cuda.threadIdx.x, cuda.blockDim.x
        row0, rows_at_once = cuda.threadIdx.y, cuda.blockDim.y
        thread = row0 * columns + column0
        for block in range(cuda.blockIdx.x, (B + batches - 1) // batches * groups, cuda.gridDim.x):
            b0, h0 = block // groups * batches, block % groups * HEADS
            taken = min(HEADS, H - h0)
            cuda.syncthreads()  # the block before is stored
            for n in range(min(batches, B - b0)):
                for s in range(row0, S, rows_at_once):
                    for i in range(column0, taken * E, columns):
                        at = ((n * S + s) * HEADS + i // E) * KEY + i % E
                        shared[at] = k[b0 + n, s, h0 + i // E, i % E]
                    for i in range(column0, taken * D, columns):
                        at = value0 + ((n * S + s) * HEADS + i // D) * VALUE + i % D
                        shared[at] = v[b0 + n, s, h0 + i // D, i % D]
                for l in range(row0, L, rows_at_once):
                    for i in range(column0, taken * E, columns):
                        at = slot0 + (n * L + l) * RUN + i // E * SLOT + i % E
                        shared[at] = q[b0 + n, l, h0 + i // E, i % E]
            cuda.syncthreads()  # everything is loaded
            for item in range(thread, batches * HEADS * parts, columns * rows_at_once):
                l0 = item % parts * OWN
                j = item // parts % HEADS
                n = item // parts // HEADS
                b, h = b0 + n, h0 + j
                if b < B and j < taken:
                    keys = (n * S * HEADS + j) * KEY
                    values = value0 + (n * S * HEADS + j) * VALUE
                    slots = slot0 + n * L * RUN + j * SLOT
                    for r in range(OWN):
                        # A query beyond the last repeats it, and is not stored.
                        l = min(l0 + r, L - 1)
                        for e in range(E):
                            x[r, e] = shared[slots + l * RUN + e]
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
                                    l = min(l0 + r, L - 1)
                                    if MASK == CAUSAL and s > l:
                                        p[r, t] = lowest
                                    elif MASK == MASKED and hidden[b * mb, h * mh, l * ml, s * ms]:
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
                                l = min(l0 + r, L - 1)
                                for t in range(STEP):
                                    place = ((b * H + h) * L + l) * S + s0 + t
                                    if is_kept(place, threshold, seed_low, seed_high):
                                        p[r, t] *= keep
                                    else:
                                        p[r, t] *= zero
                        for t in range(STEP):
                            if s0 + t < S:
                                at = values + (s0 + t) * HEADS * VALUE
                                for d in range(D):
                                    y = shared[at + d]
                                    for r in range(OWN):
                                        total[r, d] += p[r, t] * y
                    for r in range(OWN):
                        l = l0 + r
                        if l < L:
                            if WEIGHTS:
                                shift = zero if top[r] == lowest else top[r]
                                for s in range(S):
                                    at = keys + s * HEADS * KEY
                                    z = x[r, 0] * shared[at]
                                    for e in range(1, E):
                                        z += x[r, e] * shared[at + e]
                                    z *= scale
                                    if MASK == CAUSAL and s > l:
                                        z = lowest
                                    elif MASK == MASKED and hidden[b * mb, h * mh, l * ml, s * ms]:
                                        z = lowest
                                    a = math.exp(z - shift) / mass[r]
                                    if DROPOUT:
                                        place = ((b * H + h) * L + l) * S + s
                                        if is_kept(place, threshold, seed_low, seed_high):
                                            a *= keep
                                        else:
                                            a *= zero
                                    weights[b, h, l, s] = a
                            if LOGSUMEXP:
                                logsumexp[b, h, l, 0] = log_of_sum(top[r], mass[r], zero)
                            for d in range(D):
                                shared[slots + l * RUN + d] = total[r, d] / mass[r]
            cuda.syncthreads()  # every result is in its slot
            for n in range(min(batches, B - b0)):
                for l in range(row0, L, rows_at_once):
                    for i in range(column0, taken * D, columns):
                        at = slot0 + (n * L + l) * RUN + i // D * SLOT + i % D
                        out[b0 + n, l, h0 + i // D, i % D] = shared[at]

    return kernel


@device
def attend_tile(p: Any, top: Any, mass: Any, fade: Any, TL: Any, TS: Any, zero: Any, lowest: Any) -> None:  # fmt: skip # noqa: E501
    """Turn a tile of scores into exponentials, with each row's largest score and sum so far.

    What was summed before is to be multiplied by `fade`.
    """
    for l in range(cuda.threadIdx.x, TL, cuda.blockDim.x):
        before = top[l]
        largest = before
        for s in range(TS):
            if p[l, s] > largest:
                largest = p[l, s]
        top[l] = largest
        fade[l] = math.exp(before - (zero if largest == lowest else largest))
    cuda.syncthreads()  # the largest are known
    for i in range(cuda.threadIdx.x, TL * TS, cuda.blockDim.x):
        l, s = i // TS, i % TS
        p[l, s] = math.exp(p[l, s] - (zero if top[l] == lowest else top[l]))
    cuda.syncthreads()  # the exponentials are known
    for l in range(cuda.threadIdx.x, TL, cuda.blockDim.x):
        total = mass[l] * fade[l]
        for s in range(TS):
            total += p[l, s]
        mass[l] = total


@device
def drop(p: Any, first: Any, L: Any, S: Any, l0: Any, s0: Any, TL: Any, TS: Any, zero: Any, keep: Any, threshold: Any, seed_low: Any, seed_high: Any) -> None:  # fmt: skip # noqa: E501
    """Drop weights of a tile; `first` is the place of the head's first weight."""
    for i in range(cuda.threadIdx.x, TL * TS, cuda.blockDim.x):
        l, s = i // TS, i % TS
        if is_kept(first + (l0 + l) * S + s0 + s, threshold, seed_low, seed_high):
            p[l, s] *= keep
        else:
            p[l, s] *= zero  # which leaves NaN


@device
def add_products(total: Any, left: Any, right: Any, rows: Any, columns: Any, inner: Any) -> None:
    """total[r, c] += sum over i of left[r, i] * right[i, c]."""
    for i in range(cuda.threadIdx.x, rows * columns, cuda.blockDim.x):
        r, c = i // columns, i % columns
        x = total[r, c]
        for j in range(inner):
            x += left[r, j] * right[j, c]
        total[r, c] = x


@device
def add_transposed(total: Any, left: Any, right: Any, rows: Any, columns: Any, inner: Any) -> None:
    """total[r, c] += sum over i of left[i, r] * right[i, c]."""
    for i in range(cuda.threadIdx.x, rows * columns, cuda.blockDim.x):
        r, c = i // columns, i % columns
        x = total[r, c]
        for j in range(inner):
            x += left[j, r] * right[j, c]
        total[r, c] = x


def tiles(c: Constants) -> Kernel:
    """Forward for long heads and wide ones: a block owns a tile of queries of one head.

    It walks over tiles of keys with an online softmax. Tiles that are hidden causally are not
    computed; their values are only looked through for NaN and infinity, which a weight of 0 keeps.
    """
    E, D, TL, TS = c.E, c.D, c.queries, c.keys
    MASK, WEIGHTS, LOGSUMEXP, DROPOUT = c.mask, c.weights, c.logsumexp, c.dropout
    real, WIDE = c.real, max(c.E, c.D) + 1
    zero, lowest = numpy_real(c)(0), numpy_real(c)(-math.inf)

    def kernel(q, k, v, hidden, out, weights, logsumexp, scale, keep, threshold, seed_low, seed_high, mb, mh, ml, ms):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202, C901, E501  # fmt: skip
        queries = cuda.shared.array((TL, E + 1), real)
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
            cuda.syncthreads()  # the block before is stored
            load(queries, q, b, l0, h, TL, E)
            fill(total, TL, D)
            for l in range(thread, TL, threads):
                top[l] = lowest
                mass[l] = zero
            seen = min(S, l0 + TL) if MASK == CAUSAL else S
            for s0 in range(0, seen, TS):
                cuda.syncthreads()  # the values before are used
                load(other, k, b, s0, h, TS, E)
                cuda.syncthreads()  # queries and keys are loaded
                score(p, queries, other, hidden, b, h, l0, s0, L, S, TL, TS, E, MASK, scale, lowest, mb, mh, ml, ms)  # fmt: skip # noqa: E501
                cuda.syncthreads()  # the keys are used
                load(other, v, b, s0, h, TS, D)
                attend_tile(p, top, mass, fade, TL, TS, zero, lowest)
                if DROPOUT:
                    cuda.syncthreads()  # the sums are taken
                    drop(p, first, L, S, l0, s0, TL, TS, zero, keep, threshold, seed_low, seed_high)
                    cuda.syncthreads()  # the weights are dropped
                for i in range(thread, TL * D, threads):
                    l, d = i // D, i % D
                    x = total[l, d] * fade[l]
                    for s in range(TS):
                        x += p[l, s] * other[s, d]
                    total[l, d] = x
            cuda.syncthreads()  # the sums over the keys that are seen are complete
            for d in range(thread, D if MASK == CAUSAL else 0, threads):
                x = zero
                for s in range((seen + TS - 1) // TS * TS, S):
                    other[0, d] = v[b, s, h, d]
                    x += zero * other[0, d]
                for l in range(TL):
                    total[l, d] += x
            cuda.syncthreads()  # and those over the rest
            for i in range(thread, TL * D, threads):
                l, d = i // D, i % D
                if l0 + l < L:
                    out[b, l0 + l, h, d] = total[l, d] / mass[l]
            for l in range(thread, TL if LOGSUMEXP else 0, threads):
                if l0 + l < L:
                    logsumexp[b, h, l0 + l, 0] = log_of_sum(top[l], mass[l], zero)
            for s0 in range(0, S if WEIGHTS else 0, TS):
                cuda.syncthreads()  # the weights before are stored
                if s0 < seen:
                    load(other, k, b, s0, h, TS, E)
                    cuda.syncthreads()  # the keys are loaded
                    score(p, queries, other, hidden, b, h, l0, s0, L, S, TL, TS, E, MASK, scale, lowest, mb, mh, ml, ms)  # fmt: skip # noqa: E501
                    cuda.syncthreads()  # the scores are known
                    for i in range(thread, TL * TS, threads):
                        l, s = i // TS, i % TS
                        shift = zero if top[l] == lowest else top[l]
                        p[l, s] = math.exp(p[l, s] - shift) / mass[l]
                else:
                    for i in range(thread, TL * TS, threads):
                        p[i // TS, i % TS] = zero / mass[i // TS]
                cuda.syncthreads()  # the weights are known
                if DROPOUT:
                    drop(p, first, L, S, l0, s0, TL, TS, zero, keep, threshold, seed_low, seed_high)
                    cuda.syncthreads()  # and dropped
                for i in range(thread, TL * TS, threads):
                    l, s = i // TS, i % TS
                    if l0 + l < L and s0 + s < S:
                        weights[b, h, l0 + l, s0 + s] = p[l, s]

    return kernel


@device
def weight_gradients(dp: Any, grads: Any, values: Any, g_weights: Any, first: Any, b: Any, h: Any, l0: Any, s0: Any, L: Any, S: Any, TL: Any, TS: Any, D: Any, given: Any, dropout: Any, zero: Any, keep: Any, threshold: Any, seed_low: Any, seed_high: Any) -> None:  # fmt: skip # noqa: E501
    """Gradients of the weights before dropout: a tile of `grads` times one of values, and more.

    `g_weights` is added where it is `given`.
    """
    for i in range(cuda.threadIdx.x, TL * TS, cuda.blockDim.x):
        l, s = i // TS, i % TS
        x = zero
        for d in range(D):
            x += grads[l, d] * values[s, d]
        if given and l0 + l < L and s0 + s < S:
            x += g_weights[b, h, l0 + l, s0 + s]
        if dropout:
            if is_kept(first + (l0 + l) * S + s0 + s, threshold, seed_low, seed_high):
                x *= keep
            else:
                x *= zero
        dp[l, s] = x


def query_gradients(c: Constants) -> Kernel:
    """Backward by queries: a block owns a tile of queries and walks over tiles of keys, twice.

    The first walk sums weights times their gradients for each row (`rowsum`, which `key_gradients`
    reads), the second sums the gradients. Nothing is added by two threads, so the result is the
    same each time.
    """
    E, D, TL, TS = c.E, c.D, c.queries, c.keys
    MASK, WEIGHTS, DROPOUT = c.mask, c.weights, c.dropout
    real, WIDE = c.real, max(c.E, c.D) + 1
    zero, lowest = numpy_real(c)(0), numpy_real(c)(-math.inf)

    def kernel(q, k, v, hidden, g_out, g_weights, logsumexp, rowsum, g_q, scale, keep, threshold, seed_low, seed_high, mb, mh, ml, ms):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202, C901, E501  # fmt: skip
        queries = cuda.shared.array((TL, E + 1), real)
        grads = cuda.shared.array((TL, D + 1), real)
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
            cuda.syncthreads()  # the block before is stored
            load(queries, q, b, l0, h, TL, E)
            load(grads, g_out, b, l0, h, TL, D)
            fill(total, TL, E)
            for l in range(thread, TL, threads):
                level[l] = logsumexp[b, h, min(l0 + l, L - 1), 0]
                mean[l] = zero
            for walk in range(2):
                # What is hidden adds nothing in the second walk, in the first 0 times its gradient.
                seen = min(S, l0 + TL) if MASK == CAUSAL and walk == 1 else S
                for s0 in range(0, seen, TS):
                    cuda.syncthreads()  # the tile before is used
                    load(other, v, b, s0, h, TS, D)
                    cuda.syncthreads()  # everything is loaded
                    weight_gradients(dp, grads, other, g_weights, first, b, h, l0, s0, L, S, TL, TS, D, WEIGHTS, DROPOUT, zero, keep, threshold, seed_low, seed_high)  # fmt: skip # noqa: E501
                    cuda.syncthreads()  # the values are used
                    load(other, k, b, s0, h, TS, E)
                    cuda.syncthreads()  # the keys are loaded
                    score(p, queries, other, hidden, b, h, l0, s0, L, S, TL, TS, E, MASK, scale, lowest, mb, mh, ml, ms)  # fmt: skip # noqa: E501
                    cuda.syncthreads()  # the scores are known
                    if walk == 0:
                        for l in range(thread, TL, threads):
                            x = mean[l]
                            for s in range(min(TS, S - s0)):
                                x += math.exp(p[l, s] - level[l]) * dp[l, s]
                            mean[l] = x
                    else:
                        for i in range(thread, TL * TS, threads):
                            l, s = i // TS, i % TS
                            if p[l, s] == lowest:
                                p[l, s] = zero
                            else:
                                p[l, s] = math.exp(p[l, s] - level[l]) * (dp[l, s] - mean[l])
                        cuda.syncthreads()  # the gradients of the scores are known
                        add_products(total, p, other, TL, E, TS)
            cuda.syncthreads()  # the sums are complete
            store(g_q, total, scale, b, l0, h, TL, E)
            for l in range(thread, TL, threads):
                if l0 + l < L:
                    rowsum[b, h, l0 + l, 0] = mean[l]

    return kernel


def key_gradients(c: Constants) -> Kernel:
    """Backward by keys and values: a block owns a tile of keys and walks over tiles of queries.

    Tiles that are hidden causally are skipped, unless a row's weights are NaN: such a row makes
    NaN of every value's gradient.
    """
    E, D, TL, TS = c.E, c.D, c.queries, c.keys
    MASK, WEIGHTS, DROPOUT = c.mask, c.weights, c.dropout
    real, WIDE = c.real, max(c.E, c.D) + 1
    zero, one, lowest = (numpy_real(c)(x) for x in (0, 1, -math.inf))

    def kernel(q, k, v, hidden, g_out, g_weights, logsumexp, rowsum, g_k, g_v, scale, keep, threshold, seed_low, seed_high, mb, mh, ml, ms):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202, C901, E501  # fmt: skip
        keys = cuda.shared.array((TS, E + 1), real)
        values = cuda.shared.array((TS, D + 1), real)
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
            cuda.syncthreads()  # the block before is stored
            load(keys, k, b, s0, h, TS, E)
            load(values, v, b, s0, h, TS, D)
            fill(total_k, TS, E)
            fill(total_v, TS, D)
            for l0 in range(0, L, TL):
                cuda.syncthreads()  # the tile before is used
                for l in range(thread, TL, threads):
                    level[l] = logsumexp[b, h, min(l0 + l, L - 1), 0]
                    mean[l] = rowsum[b, h, min(l0 + l, L - 1), 0]
                cuda.syncthreads()  # the rows' figures are loaded
                skipped = MASK == CAUSAL and l0 + TL <= s0
                for l in range(TL if skipped else 0):
                    skipped = skipped and math.isfinite(level[l])
                if not skipped:  # the same for all threads: they read the same
                    load(other, g_out, b, l0, h, TL, D)
                    cuda.syncthreads()  # the gradients are loaded
                    weight_gradients(dp, other, values, g_weights, first, b, h, l0, s0, L, S, TL, TS, D, WEIGHTS, DROPOUT, zero, keep, threshold, seed_low, seed_high)  # fmt: skip # noqa: E501
                    cuda.syncthreads()  # the gradients are used
                    load(other, q, b, l0, h, TL, E)
                    cuda.syncthreads()  # the queries are loaded
                    score(p, other, keys, hidden, b, h, l0, s0, L, S, TL, TS, E, MASK, scale, lowest, mb, mh, ml, ms)  # fmt: skip # noqa: E501
                    cuda.syncthreads()  # the scores are known
                    for i in range(thread, TL * TS, threads):
                        l, s = i // TS, i % TS
                        weight = math.exp(p[l, s] - level[l])
                        if p[l, s] == lowest or l0 + l >= L:
                            dp[l, s] = zero
                        else:
                            dp[l, s] = weight * (dp[l, s] - mean[l])
                        p[l, s] = zero if l0 + l >= L else weight
                    cuda.syncthreads()  # the gradients of the scores are known
                    add_transposed(total_k, dp, other, TS, E, TL)
                    if DROPOUT:
                        drop(p, first, L, S, l0, s0, TL, TS, zero, keep, threshold, seed_low, seed_high)  # fmt: skip # noqa: E501
                    cuda.syncthreads()  # the queries are used
                    load(other, g_out, b, l0, h, TL, D)
                    cuda.syncthreads()  # the gradients are loaded again
                    add_transposed(total_v, p, other, TS, D, TL)
            cuda.syncthreads()  # the sums are complete
            store(g_k, total_k, scale, b, s0, h, TS, E)
            store(g_v, total_v, one, b, s0, h, TS, D)

    return kernel
