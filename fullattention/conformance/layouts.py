"""Memory layouts: the same values under other strides, with NaN wherever no value lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from fullattention.backends.interface import Array, Arrays

GUARD = 64
"""Elements of NaN before and after every buffer: a read past an end shows. They fill whole lines of
64 bytes in every dtype, so that what follows them is aligned as the buffer is."""

Strides = tuple[int, int, int, int]
Layout = Callable[[tuple[int, ...]], tuple[Strides, int, int]]
"""Shape -> strides, offset of the first element, and size of the buffer, in elements."""


def place(arrays: Arrays, values: np.ndarray, layout: str, device: str) -> Array:
    """`values` (B, L, H, E) as an array of the library, in a layout.

    Raises:
        ValueError: the library cannot express the layout.
    """
    strides, offset, size = LAYOUTS[layout](values.shape)
    buffer = np.full(size + 2 * GUARD, np.nan).astype(values.dtype)
    itemsize = buffer.itemsize
    view = np.lib.stride_tricks.as_strided(
        buffer[GUARD + offset :], values.shape, tuple(stride * itemsize for stride in strides)
    )
    view[...] = values
    return arrays.strided(arrays.put(buffer, device), values.shape, strides, GUARD + offset)


def _dense(shape: tuple[int, ...], order: tuple[int, ...] = (0, 1, 2, 3)) -> Strides:
    """Strides of a dense array whose axes lie in memory in `order`, slowest first."""
    strides = [0, 0, 0, 0]
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return (strides[0], strides[1], strides[2], strides[3])


def _contiguous(shape: tuple[int, ...]) -> tuple[Strides, int, int]:
    return _dense(shape), 0, int(np.prod(shape))


def _heads_first(shape: tuple[int, ...]) -> tuple[Strides, int, int]:
    """Stored (B, H, L, E), as a projection that splits heads first leaves it."""
    return _dense(shape, (0, 2, 1, 3)), 0, int(np.prod(shape))


def _time_first(shape: tuple[int, ...]) -> tuple[Strides, int, int]:
    """Stored (L, B, H, E)."""
    return _dense(shape, (1, 0, 2, 3)), 0, int(np.prod(shape))


def _features_slow(shape: tuple[int, ...]) -> tuple[Strides, int, int]:
    """Stored (B, E, L, H): the innermost stride is not 1."""
    return _dense(shape, (0, 3, 1, 2)), 0, int(np.prod(shape))


def _packed(shape: tuple[int, ...]) -> tuple[Strides, int, int]:
    """The middle one of three arrays packed along the last axis, as in a fused qkv projection."""
    B, L, H, E = shape
    return (L * H * 3 * E, H * 3 * E, 3 * E, 1), E, B * L * H * 3 * E


def _every_other(shape: tuple[int, ...]) -> tuple[Strides, int, int]:
    """Every other element of the innermost axis."""
    b, length, h, e = _dense(shape)
    return (2 * b, 2 * length, 2 * h, 2 * e), 0, 2 * int(np.prod(shape))


def _misaligned(shape: tuple[int, ...]) -> tuple[Strides, int, int]:
    """Starts one element after an aligned address."""
    return _dense(shape), 1, int(np.prod(shape)) + 1


def _padded_rows(shape: tuple[int, ...]) -> tuple[Strides, int, int]:
    """Five unused elements after every row of features."""
    B, L, H, E = shape
    strides = _dense((B, L, H, E + 5))
    return strides, 0, B * L * H * (E + 5)


def _reversed(shape: tuple[int, ...]) -> tuple[Strides, int, int]:
    """Time runs backwards."""
    b, length, h, e = _dense(shape)
    return (b, -length, h, e), (shape[1] - 1) * length, int(np.prod(shape))


def _shared_heads(shape: tuple[int, ...]) -> tuple[Strides, int, int]:
    """One head expanded to all (stride 0); the values must agree along that axis."""
    B, L, _, E = shape
    return (L * E, E, 0, 1), 0, B * L * E


def _shared_batch(shape: tuple[int, ...]) -> tuple[Strides, int, int]:
    """One batch entry expanded to all (stride 0); the values must agree along that axis."""
    _, L, H, E = shape
    return (0, H * E, E, 1), 0, L * H * E


LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "contiguous": _contiguous,
        "heads-first": _heads_first,
        "time-first": _time_first,
        "features-slow": _features_slow,
        "packed": _packed,
        "every-other": _every_other,
        "misaligned": _misaligned,
        "padded-rows": _padded_rows,
        "reversed": _reversed,
        "shared-heads": _shared_heads,
        "shared-batch": _shared_batch,
    }
)

EXPANDED_AXIS = {"shared-heads": 2, "shared-batch": 0}
"""Layout -> the axis along which its values must be equal."""
