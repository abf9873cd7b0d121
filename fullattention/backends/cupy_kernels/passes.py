"""The forward and the backward pass by our own kernels, over the arrays of any library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from fullattention.backends.cupy_kernels.kernels import (
    ARRAYS,
    ELEMENTS,
    ROWS,
    TABLES,
    Setting,
    packed,
)
from fullattention.backends.cupy_kernels.launch import (
    Launch,
    Limits,
    forward_kernel,
    plan,
)
from fullattention.backends.dropout import kept_factor, threshold
from fullattention.backends.interface import Array, Shape, Sizes, broadcast_strides, dtype_name
from fullattention.backends.passes import Options, sizes_of
from fullattention.backends.precision import accumulator

NO_ARRAY, NO_TABLE = (0,) * 6, (0,) * 5
"""The fields of an array that a call does not have."""


class View(NamedTuple):
    """Where an array lies."""

    address: int
    strides: tuple[int, ...]
    """In elements."""
    shape: Shape


class Runtime(Protocol):
    """What differs between the libraries whose arrays the kernels take."""

    def view(self, name: str, array: Array) -> View:
        """Where an array, of that name, lies on its device.

        Raises:
            LimitError: not in whole elements.
        """

    def empty(self, shape: Shape, dtype: str, like: Array) -> Array:
        """A new array in C order, on the device of another one."""

    def limits(self, like: Array) -> Limits:
        """What the device of an array allows."""

    def launch(self, launch: Launch, call: np.ndarray, like: Array) -> None:
        """Queue a kernel on the current stream of the device of an array."""


@dataclass(frozen=True)
class FusedKernels:
    """Both passes; `torch_autograd.Kernels` says what they take and give.

    The forward pass keeps `levels` (2, B, H, L): the largest score of each row, and one over the
    sum of its exponentials. From these the backward pass rebuilds the weights with
    the forward pass's own rounding, and NaN where a row had none.
    """

    runtime: Runtime

    def forward(
        self,
        q: Array,
        k: Array,
        v: Array,
        hidden: Array | None,
        options: Options,
        *,
        weights: bool,
    ) -> tuple[Array, Array | None, Array]:
        """V (B, L, H, D), the weights (B, H, L, S) or None, and what the backward pass needs."""
        sizes, dtype = sizes_of(q, v), dtype_name(q)
        B, L, S, H, _, D = sizes
        extras = weights or _has_extras(hidden, options)
        kernel = forward_kernel(dtype, sizes, self.runtime.limits(q), extras=extras)
        launch = self._plan(kernel, q, sizes, extras=extras)
        out = self.runtime.empty((B, L, H, D), dtype, q)
        a = self.runtime.empty((B, H, L, S), dtype, q) if weights else None
        levels = self.runtime.empty((2, B, H, L), accumulator(dtype), q)
        arrays = {"q": q, "k": k, "v": v, "out": out}
        rows = {"maximum": levels[0], "inverse": levels[1]}
        call = self._call(launch, sizes, options, arrays, hidden, a, rows)
        self.runtime.launch(launch, call, q)
        return out, a, levels

    def backward(
        self,
        g_out: Array,
        g_weights: Array | None,
        q: Array,
        k: Array,
        v: Array,
        hidden: Array | None,
        out: Array,
        levels: Array,
        options: Options,
    ) -> tuple[Array, Array, Array]:
        """Gradients by q, k and v."""
        sizes, dtype = sizes_of(q, v), dtype_name(q)
        B, L, S, H, E, D = sizes
        extras = g_weights is not None or _has_extras(hidden, options)
        launches = [
            self._plan(kernel, q, sizes, extras=extras)
            for kernel in ("gradient_of_queries", "gradient_of_keys")
        ]
        dq = self.runtime.empty((B, L, H, E), dtype, q)
        dk = self.runtime.empty((B, S, H, E), dtype, q)
        dv = self.runtime.empty((B, S, H, D), dtype, q)
        slope = self.runtime.empty((B, H, L), accumulator(dtype), q)
        arrays = {"q": q, "k": k, "v": v, "out": g_out, "dq": dq, "dk": dk, "dv": dv}
        rows = {"maximum": levels[0], "inverse": levels[1], "slope": slope}
        for launch in launches:  # in this order: the second reads the first one's slope
            call = self._call(launch, sizes, options, arrays, hidden, g_weights, rows)
            self.runtime.launch(launch, call, q)
        return dq, dk, dv

    def _plan(self, kernel: str, like: Array, sizes: Sizes, *, extras: bool) -> Launch:
        limits = self.runtime.limits(like)
        return plan(kernel, dtype_name(like), sizes, limits, extras=extras)

    def _call(
        self,
        launch: Launch,
        sizes: Sizes,
        options: Options,
        arrays: Mapping[str, Array],
        hidden: Array | None,
        weights: Array | None,
        rows: Mapping[str, Array],
    ) -> np.ndarray:
        """The record that a kernel takes."""
        view = self.runtime.view
        values: list[float] = []
        for name in ARRAYS:
            given = name in arrays
            values += _array(view(name, arrays[name]), launch.setting) if given else NO_ARRAY
        for name, table in zip(TABLES, (hidden, weights), strict=True):
            values += _table(view(name, table)) if table is not None else NO_TABLE
        values += (view(name, rows[name]).address if name in rows else 0 for name in ROWS)
        values += sizes
        values += (options.causal, launch.heads_log2, launch.tile, launch.row_blocks)
        values += (options.seed, threshold(options.dropout))
        values += (options.scale, kept_factor(options.dropout))
        return packed(values)


def _has_extras(hidden: Array | None, options: Options) -> bool:
    return hidden is not None or options.dropout > 0


def _array(view: View, setting: Setting) -> tuple[int, ...]:
    """The fields of an `Array` of elements.cuh."""
    size = view.shape[3]
    b, t, h, e = view.strides
    itemsize = {ELEMENTS["float64"]: 8, ELEMENTS["float32"]: 4}.get(setting.element, 2)
    chunk = 2 if itemsize == 8 else 4
    # Of numbers that are all multiples of a power of two, "or" is one too.
    aligned = (view.address | (b | t | h | size) * itemsize) % (chunk * itemsize) == 0
    return (view.address, b, t, h, e, aligned and e == 1)


def _table(view: View) -> tuple[int, ...]:
    """The fields of a `Table` of elements.cuh."""
    return (view.address, *broadcast_strides(view.shape, view.strides))
