"""The compiled kernels: two passes in each of three regimes, for whichever format is computed with.

Numba keeps what it compiled beside these files, and looks it up by the function's bytecode, its
closure, the argument types, and the CPU's name and features. It does not look at the files that
the function calls into, so their digest is part of the closure.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numba

from fullattention.backends.numba_cpu_kernels import lanes, rows, wide
from fullattention.backends.numba_cpu_kernels.call import Call, Factors
from fullattention.backends.numba_cpu_kernels.vector import after, aligned, as_bits, inlined


class Kernel(NamedTuple):
    """One pass in one regime."""

    run: Callable[..., None]
    """Takes a `Call` as a tuple and `Factors` as an array, scratch for numbers and for 64-bit
    integers, and the first and last unit of work."""
    layout: Callable[[int, int, int, int, int, int], tuple[int, ...]]
    """Where the parts of its scratch begin, and last where they end: a function of L, S, E, D,
    lanes and `Call.chunk`, as far as the regime depends on them."""


INTEGERS = 256
"""Length of the scratch for integers."""


def digest() -> str:
    """Of all files that the kernels are made of."""
    texts = (path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


@inlined
def factors_in(array):
    """The `Factors` that lie in an array: Numba takes floating-point numbers of NumPy slowly."""
    return Factors(array[0], array[1], array[2], array[3])


@functools.cache
def kernels() -> Mapping[str, Kernel]:
    """The kernels; each is compiled, or read from disk, when it is first called."""
    sources = digest()
    kernel = functools.partial(numba.njit, nogil=True, cache=True, error_model="numpy")

    @kernel
    def lanes_forward(call, factors, numbers, integers, start, stop):
        sources  # noqa: B018 - a part of the closure
        p, tables = aligned(numbers), aligned(integers)
        bits = as_bits(after(tables, 6 * lanes.TABLE))
        lanes.forward(Call(*call), factors_in(factors), p, bits, tables, start, stop)

    @kernel
    def lanes_backward(call, factors, numbers, integers, start, stop):
        sources  # noqa: B018 - a part of the closure
        p, tables = aligned(numbers), aligned(integers)
        bits = as_bits(after(tables, 9 * lanes.TABLE))
        lanes.backward(Call(*call), factors_in(factors), p, bits, tables, start, stop)

    @kernel
    def rows_forward(call, factors, numbers, integers, start, stop):
        sources  # noqa: B018 - a part of the closure
        p, table = aligned(numbers), aligned(integers)
        rows.forward(Call(*call), factors_in(factors), p, table, start, stop)

    @kernel
    def rows_backward(call, factors, numbers, integers, start, stop):
        sources  # noqa: B018 - a part of the closure
        p, table = aligned(numbers), aligned(integers)
        rows.backward(Call(*call), factors_in(factors), p, table, start, stop)

    @kernel
    def wide_forward(call, factors, numbers, integers, start, stop):
        sources  # noqa: B018 - a part of the closure
        wide.forward(Call(*call), factors_in(factors), aligned(numbers), start, stop)

    @kernel
    def wide_backward(call, factors, numbers, integers, start, stop):
        sources  # noqa: B018 - a part of the closure
        wide.backward(Call(*call), factors_in(factors), aligned(numbers), start, stop)

    return {
        "lanes_forward": Kernel(lanes_forward, lanes.forward_layout),
        "lanes_backward": Kernel(lanes_backward, lanes.backward_layout),
        "rows_forward": Kernel(rows_forward, rows.forward_layout),
        "rows_backward": Kernel(rows_backward, rows.backward_layout),
        "wide_forward": Kernel(wide_forward, wide.forward_layout),
        "wide_backward": Kernel(wide_backward, wide.backward_layout),
    }
