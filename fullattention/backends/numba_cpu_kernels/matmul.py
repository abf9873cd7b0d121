"""Products of matrices in scratch, whose rows lie along it.

Every index into scratch counts numbers.
"""

from __future__ import annotations

import numpy as np

from fullattention.backends.numba_cpu_kernels.vector import (
    fma,
    helper,
    lanes_at,
    load,
    splat,
    stay_apart,
    store,
    store_totals,
)

STEPS = 256
"""Keys that are summed up in registers before the sum goes to memory."""


@helper
def matmul(p, a, a_row, a_step, b, b_step, b_block, c, c_row, rows, steps, columns, factor, onto):
    """Write a matrix product: c[r][j] = factor times the sum over s < steps of a[r][s] b[s][j].

    a[r][s] is p[a + r * a_row + s * a_step]; the vector j / lanes of b's row s lies at
    p[b + s * b_step + (j / lanes) * b_block]; rows of c are c_row numbers apart. `rows` is a
    multiple of 4, `columns` of two vectors; `factor` is a vector. With `onto` it is added to c.
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
            put_2(p, i, x0 * factor, y0 * factor, onto)
            put_2(p, i + c_row, x1 * factor, y1 * factor, onto)
            put_2(p, i + 2 * c_row, x2 * factor, y2 * factor, onto)
            put_2(p, i + 3 * c_row, x3 * factor, y3 * factor, onto)


@helper
def put_2(p, at, x, y, onto):
    """Write two vectors side by side, or add them to what is there."""
    lanes = lanes_at(p)
    if onto:
        x, y = load(p, at) + x, load(p, at + lanes) + y
    store(p, at, x)
    store(p, at + lanes, y)


@helper
def matmul_long(p, a, a_row, b, b_step, c, c_row, rows, steps, columns, factor):
    """`matmul` over many keys, a few at a time: sums stay accurate, and values stay in cache."""
    lanes = lanes_at(p)
    one = np.int64(1)
    for start in range(0, steps, STEPS):
        count = min(STEPS, steps - start)
        at, onto = b + start * b_step, start > 0
        matmul(
            *(p, a + start, a_row, one, at, b_step, lanes, c, c_row),
            *(rows, count, columns, factor, onto),
        )


@helper
def dots(p, a, b, width, c, c_row, rows, count):
    """Write the products of rows: c[r][s] = sum over e < width of a[r][e] b[s][e].

    Rows of a and b are `width` numbers apart, a multiple of a vector; rows of c are c_row numbers
    apart. `rows` and `count` are multiples of 4.
    """
    stay_apart()
    lanes = lanes_at(p)
    zero = splat(p, 0.0)
    for r in range(0, rows, 4):
        for s in range(0, count, 4):
            i, j = a + r * width, b + s * width
            w0 = w1 = w2 = w3 = x0 = x1 = x2 = x3 = zero
            y0 = y1 = y2 = y3 = z0 = z1 = z2 = z3 = zero
            for _ in range(0, width, lanes):
                a0, a1 = load(p, i), load(p, i + width)
                a2, a3 = load(p, i + 2 * width), load(p, i + 3 * width)
                b0, b1 = load(p, j), load(p, j + width)
                b2, b3 = load(p, j + 2 * width), load(p, j + 3 * width)
                w0, w1, w2, w3 = fma(a0, b0, w0), fma(a0, b1, w1), fma(a0, b2, w2), fma(a0, b3, w3)
                x0, x1, x2, x3 = fma(a1, b0, x0), fma(a1, b1, x1), fma(a1, b2, x2), fma(a1, b3, x3)
                y0, y1, y2, y3 = fma(a2, b0, y0), fma(a2, b1, y1), fma(a2, b2, y2), fma(a2, b3, y3)
                z0, z1, z2, z3 = fma(a3, b0, z0), fma(a3, b1, z1), fma(a3, b2, z2), fma(a3, b3, z3)
                i += lanes
                j += lanes
            at = c + r * c_row + s
            store_totals(p, at, w0, w1, w2, w3)
            store_totals(p, at + c_row, x0, x1, x2, x3)
            store_totals(p, at + 2 * c_row, y0, y1, y2, y3)
            store_totals(p, at + 3 * c_row, z0, z1, z2, z3)
