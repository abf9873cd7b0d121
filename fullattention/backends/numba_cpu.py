"""Fused attention compiled by Numba for this CPU, for NumPy arrays and for torch tensors.

`docs/cpu-kernels.md` explains the two regimes that the kernels have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numba
import numpy as np

from fullattention.backends import numpy_arrays
from fullattention.backends.errors import UnavailableError
from fullattention.backends.interface import Array, Backend, Shape, dtype_name
from fullattention.backends.numba_cpu_kernels import lanes as lanes_regime
from fullattention.backends.numba_cpu_kernels import memory
from fullattention.backends.numba_cpu_kernels.call import Call, Factors
from fullattention.backends.numba_cpu_kernels.entry import kernels
from fullattention.backends.numba_cpu_kernels.exponential import EXP_ULP
from fullattention.backends.numba_cpu_kernels.rows import ROWS
from fullattention.backends.numba_cpu_kernels.vector import FUSED, WIDTH
from fullattention.backends.numba_cpu_kernels.workers import Work
from fullattention.backends.precision import DTYPES, Precision, standard

_KINDS: Mapping[str, tuple[int, int, type[np.floating[Any]]]] = {
    "float64": (memory.NATIVE, 8, np.float64),
    "float32": (memory.NATIVE, 4, np.float32),
    "float16": (memory.FLOAT16, 2, np.float32),
    "bfloat16": (memory.BFLOAT16, 2, np.float32),
}
"""By dtype: how numbers are stored, their bytes, and what they are computed with."""

WORK_OF_A_THREAD = 2**22
"""Multiplications that a thread must have to do before it is worth waking."""

WORK_OF_EXP = 24
"""Multiplications that take as long as one exponential and what goes with it."""

QUERIES_IN_CACHE = 1024
"""Features and columns, of all queries of a pair together, that a lane has in scratch at a time."""

WIDEST, LONGEST = 128, 128
"""Features, and keys, up to which the lanes regime is the faster one."""


@dataclass(frozen=True, slots=True)
class View:
    """Where an array begins and how many bytes lie between its entries along each axis."""

    address: int
    strides: Shape


ABSENT = View(0, (0, 0, 0, 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What one call is about, in either pass: (B, L, S, H, E, D), inputs and options."""

    dtype: str
    sizes: Shape
    q: View
    k: View
    v: View
    hidden: View
    causal: bool
    scale: float
    dropout: float
    seed: int
    threads: int

    def forward(self, out: int, weights: int) -> None:
        """Write V and, unless its address is 0, the weights."""
        self._run("forward", out, weights, 0, 0, 0, 0, 0)

    def backward(self, g_out: int, g_weights: int, d_q: int, d_k: int, d_v: int) -> None:
        """Write the gradients by q, k and v; there is none by the weights if that address is 0."""
        self._run("backward", 0, 0, g_out, g_weights, d_q, d_k, d_v)

    def _run(self, direction: Literal["forward", "backward"], *places: int) -> None:
        B, L, S, H, E, D = self.sizes
        kind, size, real = _KINDS[self.dtype]
        lanes = WIDTH // real().itemsize
        threads = self._useful_threads()
        if S <= LONGEST and max(E, D) <= WIDEST:
            kernel = kernels()[f"lanes_{direction}"]
            chunk = max(2, min(lanes_regime.ROWS, QUERIES_IN_CACHE // (E + D)) // 2 * 2)
            units = -(-B * H // lanes)
        else:
            kernel = kernels()[f"rows_{direction}"]
            chunk = _chunk(L, B * H, threads) if direction == "forward" else L
            units = B * H * -(-L // chunk)
        call = Call(
            *(self.q.address, self.k.address, self.v.address, self.hidden.address),
            *places,
            *(H, L, S, E, D),
            *self.q.strides,
            *self.k.strides,
            *self.v.strides,
            *self.hidden.strides,
            pairs=B * H,
            chunk=chunk,
            kind=kind,
            size=size,
            causal=int(self.causal),
            threshold=min(round(self.dropout * 2**32), 2**32 - 1),
            seed=self.seed,
        )
        Work(
            kernel=kernel.run,
            call=tuple(call),  # Numba takes half a microsecond for a tuple, 20 for a named one
            factors=_factors(self.scale, self.dropout, real),
            dtype=real,
            scratch=kernel.scratch(L, S, E, D, lanes),
            units=units,
        ).run(threads)

    def _useful_threads(self) -> int:
        """As many threads as have enough to do."""
        B, L, S, H, E, D = self.sizes
        work = B * H * L * S * (E + D + WORK_OF_EXP)
        return max(1, min(self.threads, work // WORK_OF_A_THREAD))


def _chunk(L: int, pairs: int, threads: int) -> int:
    """Queries that one thread takes at a time: all of a pair's, unless there are few pairs."""
    wanted = -(-8 * threads // pairs) if threads > 1 else 1
    return max(8 * ROWS, -(-L // wanted // ROWS) * ROWS)


def _factors(
    scale: float, dropout: float, real: type[np.floating[Any]]
) -> tuple[np.floating[Any], ...]:
    sign = math.copysign(1.0, scale)
    binary = abs(scale) * math.log2(math.e)
    if binary > np.finfo(real).max:  # its product with log2(e) does not fit, its half does
        sign, binary = 2 * sign, abs(scale) / 2 * math.log2(math.e)
    keep = 1 / (1 - dropout) if dropout < 1 else 0.0
    factors = Factors(binary=binary, sign=sign, scale=scale, keep=keep)
    return tuple(real(factor) for factor in factors)


def hidden_view(address: int, shape: Shape, strides: Shape) -> View:
    """A mask is broadcast by a stride of 0 along each axis of size 1."""
    return View(
        address,
        tuple(0 if n == 1 else step for n, step in zip(shape, strides, strict=True)),
    )


def _view(array: np.ndarray) -> View:
    return View(array.__array_interface__["data"][0], array.strides)


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    hidden: Array | None,
    causal: bool,
    scale: float,
    dropout: float,
    weights: bool,
) -> tuple[Array, Array | None]:
    """Attend over NumPy arrays; see `interface.Attend`."""
    B, L, H, E = q.shape
    S, D = v.shape[1], v.shape[3]
    mask = ABSENT
    if hidden is not None:
        mask = hidden_view(_view(hidden).address, hidden.shape, hidden.strides)
    out = np.empty((B, L, H, D), q.dtype)
    a = np.empty((B, H, L, S), q.dtype) if weights else None
    Problem(
        dtype=dtype_name(q),
        sizes=(B, L, S, H, E, D),
        q=_view(q),
        k=_view(k),
        v=_view(v),
        hidden=mask,
        causal=causal,
        scale=scale,
        dropout=dropout,
        seed=numpy_arrays.draw_seed() if dropout else 0,
        threads=numba.get_num_threads(),
    ).forward(_view(out).address, 0 if a is None else _view(a).address)
    return out, a


def _precision(dtype: str) -> Precision:
    return replace(standard(dtype), exp_ulp=EXP_ULP)


def _require(name: str, device: str) -> None:
    if device != "cpu":
        raise UnavailableError(name, f"its kernels run on 'cpu', not {device!r}")
    if not FUSED:
        raise UnavailableError(name, "this CPU has no fused multiply-add")


def backend(device: str) -> Backend:
    """Numba's kernels on NumPy arrays."""
    _require("numba-cpu", device)
    return Backend(
        name="numba-cpu",
        version=numba.__version__,
        attend=attend,
        arrays=numpy_arrays.ARRAYS,
        device=device,
        seed=numpy_arrays.seed,
        precision={dtype: _precision(dtype) for dtype in DTYPES},
        masked_rows="nan",
        batch_invariant=True,
        lacks=numpy_arrays.LACKS,
    )


def for_torch(device: str) -> Backend:
    """Numba's kernels on torch's tensors, with gradients."""
    _require("numba-cpu-torch", device)
    from fullattention.backends import torch_arrays, torch_autograd
    from fullattention.backends.numba_cpu_torch import TensorKernels

    return Backend(
        name="numba-cpu-torch",
        version=numba.__version__,
        attend=torch_autograd.differentiable(TensorKernels()),
        arrays=torch_arrays.ARRAYS,
        device=device,
        seed=torch_arrays.seed,
        precision={dtype: _precision(dtype) for dtype in DTYPES},
        masked_rows="nan",
        batch_invariant=True,
        lacks={"double_backward": torch_autograd.ONCE},
    )
