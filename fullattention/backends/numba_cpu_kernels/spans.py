"""Loops over the vectors of scratch that all regimes share."""

from __future__ import annotations

from fullattention.backends.numba_cpu_kernels.vector import (
    fma,
    for_both,
    helper,
    lanes_at,
    load,
    splat,
    stay_apart,
    store,
    total,
)


@for_both
def up(count, block):
    """The next multiple of `block`."""
    return (count + block - 1) // block * block


@helper
def fill(p, at, stop, value):
    """Put a number into the vectors from p[at] up to p[stop]."""
    other = splat(p, value)
    for i in range(at, stop, lanes_at(p)):
        store(p, i, other)


@helper
def multiply(p, at, stop, factor):
    """Multiply the vectors from p[at] up to p[stop] by one."""
    for i in range(at, stop, lanes_at(p)):
        store(p, i, load(p, i) * factor)


@helper
def add(p, at, stop, other):
    """Add the vectors from p[other] on to those from p[at] up to p[stop]."""
    for i in range(0, stop - at, lanes_at(p)):
        store(p, at + i, load(p, at + i) + load(p, other + i))


@helper
def copy(p, at, stop, to):
    """Copy the vectors from p[at] up to p[stop]."""
    for i in range(0, stop - at, lanes_at(p)):
        store(p, to + i, load(p, at + i))


@helper
def all_finite(p, at, stop):
    """Whether no number from p[at] up to p[stop] is infinite or NaN."""
    stay_apart()
    lanes = lanes_at(p)
    zero = splat(p, 0.0)
    w = x = y = z = zero  # a sum waits four cycles for the one before
    fours = stop - (stop - at) % (4 * lanes)
    for i in range(at, fours, 4 * lanes):
        w, x = fma(load(p, i), zero, w), fma(load(p, i + lanes), zero, x)
        y, z = fma(load(p, i + 2 * lanes), zero, y), fma(load(p, i + 3 * lanes), zero, z)
    for i in range(fours, stop, lanes):
        w = fma(load(p, i), zero, w)
    return total((w + x) + (y + z)) == 0.0
