"""Wrong ways to walk through an array's memory, kept inside the memory that the array owns."""

from __future__ import annotations

import numpy as np

from fullattention.backends.interface import Array


def owner(x: Array) -> Array:
    """The array at the bottom of a chain of views."""
    base = x.base
    while base is not None:
        if isinstance(base, np.ndarray):
            x, base = base, base.base
        else:  # the holder that as_strided puts between
            base = getattr(base, "base", None)
    return x


def walk(x: Array, shape: tuple[int, ...], strides: tuple[int, ...], start: int) -> Array | None:
    """A view from `start` bytes after x's first element; None if it leaves x's memory."""
    memory = owner(x)
    reach = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    first = x.ctypes.data - memory.ctypes.data + start
    low, high = first + sum(min(r, 0) for r in reach), first + sum(max(r, 0) for r in reach)
    if low < 0 or high + x.itemsize > memory.nbytes or first % x.itemsize:
        return None
    flat = memory.reshape(-1).view(x.dtype)
    return np.lib.stride_tricks.as_strided(flat[first // x.itemsize :], shape, strides)


def contiguous_from(x: Array) -> Array:
    """What lies at x's address if its strides are ignored."""
    strides = tuple(np.empty(x.shape, x.dtype).strides)
    found = walk(x, x.shape, strides, 0)
    return x if found is None else found


def shifted_by(x: Array, elements: int) -> Array:
    """x's elements read some places further on."""
    found = walk(x, x.shape, x.strides, elements * x.itemsize)
    return x if found is None else found


def with_next_row(x: Array) -> Array:
    """x (B, S, H, D) with one more row along S."""
    B, S, H, D = x.shape
    found = walk(x, (B, S + 1, H, D), x.strides, 0)
    return x if found is None else found
