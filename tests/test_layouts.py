"""Where inputs lie in memory is what their layout says, and nothing is left to chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fullattention import load
from fullattention.backends.precision import DTYPES
from fullattention.conformance.data import numpy_dtype
from fullattention.conformance.layouts import LAYOUTS, place

LIBRARIES = {name: load(name).arrays for name in ("numpy-matmul", "torch-einsum")}
"""Those whose arrays have strides, and an address that can be asked for."""

SHAPES = [(2, 3, 4, 5), (3, 40, 70, 9)]
"""Of a few hundred bytes, and of as many as NumPy takes from the system each time."""


def address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_an_array_starts_where_64_divides_unless_its_layout_says_otherwise(
    library: str, dtype: str
) -> None:
    arrays = LIBRARIES[library]
    kept = []  # so that no address comes twice
    for shape in SHAPES:
        values = np.ones(shape, numpy_dtype(dtype))
        for copy in range(4):
            kept.append(arrays.put(values[: copy % 2 + 1], "cpu"))
            assert address(kept[-1]) % 64 == 0
            for layout in LAYOUTS.keys() - {"reversed"}:  # torch knows no negative strides
                kept.append(place(arrays, values, layout, "cpu"))
                _, offset, _ = LAYOUTS[layout](shape)
                assert address(kept[-1]) % 64 == offset * values.itemsize % 64, layout


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_put_is_a_copy_of_its_own_in_the_order_of_its_axes(library: str) -> None:
    arrays = LIBRARIES[library]
    for values in (np.arange(12.0).reshape(3, 4).T, np.ones(()), np.ones((0, 3)), np.ones(5, bool)):
        placed = arrays.put(values, "cpu")
        np.testing.assert_array_equal(arrays.take(placed), values)
        assert arrays.contiguous(placed) is placed
        before = values.copy()
        placed[...] = 7
        np.testing.assert_array_equal(values, before)
