"""Fused attention compiled by Numba for this CPU, for NumPy arrays and for torch tensors.

`docs/cpu-kernels.md` explains the three regimes that the kernels have.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numba
import numpy as np

from fullattention.backends import numpy_arrays
from fullattention.backends.dropout import kept_factor, threshold
from fullattention.backends.errors import UnavailableError
from fullattention.backends.interface import (
    Array,
    Backend,
    Shape,
    Sizes,
    broadcast_strides,
    dtype_name,
)
from fullattention.backends.numba_cpu_kernels import memory
from fullattention.backends.numba_cpu_kernels.call import Factors
from fullattention.backends.numba_cpu_kernels.entry import Kernel, kernels
from fullattention.backends.numba_cpu_kernels.exponential import EXP_ULP
from fullattention.backends.numba_cpu_kernels.rows import ROWS
from fullattention.backends.numba_cpu_kernels.vector import FUSED, WIDTH
from fullattention.backends.numba_cpu_kernels.workers import Work
from fullattention.backends.passes import sizes_of
from fullattention.backends.precision import DTYPES, Precision, standard
from fullattention.backends.reasons import ONCE

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

QUERIES = 16
"""Most queries that the lanes regime reads, and whose results it writes, at a time."""

QUERIES_IN_CACHE = 1024
"""Features and columns, of all queries of a pair together, that a lane has in scratch at a time."""

LONGEST = 128
"""Keys of a pair up to which `rows` is no faster than the other regimes."""

KEYS_IN_CACHE = 80 * 128
"""Numbers of a pair's keys and values up to which `lanes` is fast: it holds those of as many pairs
at once as a register has lanes, and the gradients by them in the backward pass."""

WIDE, WIDE_BACKWARD, MANY = 1024, 128, 12
"""Features and columns together from which `wide` is faster than `lanes`; in the backward pass, if
there are so many keys, from `WIDE_BACKWARD` on."""

HEADS_IN_CACHE = 2**18
"""Numbers of scratch up to which `wide` is fast, and takes heads at a time."""

LARGEST_BITS = 2**32 - 1
"""The largest threshold of dropout that a lane holds. Where it should be one more, the weights that
pass it are multiplied by 0."""

Direction = Literal["forward", "backward"]
Regime = Literal["lanes", "wide", "rows"]


class Plan(NamedTuple):
    """What depends on the layout of a call's arrays but not on where they lie."""

    work: Work
    layout: tuple[int, ...]
    """The fields of a `Call` that follow the addresses and the seed, in its order."""

    def run(self, *addresses_and_seed: int) -> None:
        """Run on the arrays that lie at these addresses, in the order of `Call`'s fields."""
        self.work.run(addresses_and_seed + self.layout)


@functools.lru_cache(maxsize=1024)  # a microsecond, where planning takes twenty
def plan(
    direction: Direction,
    dtype: str,
    sizes: Sizes,
    steps: tuple[Shape, Shape, Shape],
    step_size: int,
    hidden: tuple[Shape, Shape] | None,
    causal: bool,
    scale: float,
    dropout: float,
    threads: int,
) -> Plan:
    """How to do one pass.

    Args:
        direction: which pass.
        dtype: of the arrays.
        sizes: of the call's axes.
        steps: strides of q, k and v, in units of `step_size` bytes.
        step_size: see `steps`.
        hidden: shape and strides in bytes of the mask, or None.
        causal: as for `interface.Attend`.
        scale: likewise.
        dropout: likewise.
        threads: as many may be used.
    """
    B, L, S, H, E, D = sizes
    kind, size, real = _KINDS[dtype]
    lanes = WIDTH // real().itemsize
    threads = min(threads, threads_worth_waking(sizes))
    regime = _regime(direction, sizes, lanes)
    kernel = kernels()[f"{regime}_{direction}"]
    if regime == "lanes":
        chunk = max(2, min(QUERIES, L + 1, QUERIES_IN_CACHE // (E + D)) // 2 * 2)
        units = -(-B * H // lanes)
    elif regime == "wide":
        chunk = _heads(kernel, sizes, lanes, threads)
        units = B * -(-H // chunk)
    else:
        chunk = _chunk(L, B * H, threads) if direction == "forward" else L
        units = B * H * -(-L // chunk)
    layout = (
        *(H, L, S, E, D),
        *(step * step_size for strides in steps for step in strides),
        *((0,) * 4 if hidden is None else broadcast_strides(*hidden)),
        *(B * H, chunk, kind, size),
        *(int(causal), min(threshold(dropout), LARGEST_BITS)),
    )
    return Plan(
        Work(
            kernel=kernel.run,
            factors=_factors(scale, dropout, real),
            dtype=real,
            scratch=kernel.layout(L, S, E, D, lanes, chunk)[-1],
            units=units,
            threads=threads,
        ),
        layout,
    )


def threads_worth_waking(sizes: Sizes) -> int:
    """As many as have enough to do at a call of these sizes."""
    B, L, S, H, E, D = sizes
    return max(1, B * H * L * S * (E + D + WORK_OF_EXP) // WORK_OF_A_THREAD)


def _regime(direction: Direction, sizes: Sizes, lanes: int) -> Regime:
    """The one that is the fastest, as measured; the same for any batch, whose results are too."""
    _, L, S, _, E, D = sizes
    features, few = E + D, S <= LONGEST
    in_lanes = few and S * features <= KEYS_IN_CACHE
    many = direction == "backward" and S >= MANY and features >= WIDE_BACKWARD
    if in_lanes and not many and features < WIDE:
        return "lanes"
    scratch = kernels()[f"wide_{direction}"].layout(L, S, E, D, lanes, 1)[-1]
    if few and scratch <= HEADS_IN_CACHE:
        return "wide"
    return "lanes" if in_lanes else "rows"


def _heads(kernel: Kernel, sizes: Sizes, lanes: int, threads: int) -> int:
    """Heads that are read at a time: about as many as fit, and some for each thread."""
    B, L, S, H, E, D = sizes
    parts = -(-H * kernel.layout(L, S, E, D, lanes, 1)[-1] // HEADS_IN_CACHE)
    return -(-H // max(parts, -(-threads // B)))


def _chunk(L: int, pairs: int, threads: int) -> int:
    """Queries that one thread takes at a time: all of a pair's, unless there are few pairs."""
    wanted = -(-8 * threads // pairs) if threads > 1 else 1
    return max(8 * ROWS, -(-L // wanted // ROWS) * ROWS)


def _factors(scale: float, dropout: float, real: type[np.floating[Any]]) -> np.ndarray:
    sign = math.copysign(1.0, scale)
    binary = abs(scale) * math.log2(math.e)
    if binary > np.finfo(real).max:  # its product with log2(e) does not fit, its half does
        sign, binary = 2 * sign, abs(scale) / 2 * math.log2(math.e)
    factors = Factors(binary=binary, sign=sign, scale=scale, keep=kept_factor(dropout))
    return np.array(factors, real)


_DATA = object.__basicsize__
"""Where an array holds the address of its numbers: NumPy's ABI has it follow the object's head."""

_word_at = ctypes.c_ssize_t.from_address


def _address(array: np.ndarray | None) -> int:
    """Where an array's numbers begin; to ask NumPy takes a microsecond."""
    return 0 if array is None else _word_at(id(array) + _DATA).value


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
    sizes = sizes_of(q, v)
    B, L, S, H, _, D = sizes
    out = np.empty((B, L, H, D), q.dtype)
    a = np.empty((B, H, L, S), q.dtype) if weights else None
    forward = plan(
        "forward",
        dtype_name(q),
        sizes,
        (q.strides, k.strides, v.strides),
        1,
        None if hidden is None else (hidden.shape, hidden.strides),
        causal,
        scale,
        dropout,
        numba.get_num_threads() if threads_worth_waking(sizes) > 1 else 1,
    )
    seed = numpy_arrays.draw_seed() if dropout else 0
    forward.run(*map(_address, (q, k, v, hidden, out, a)), 0, 0, 0, 0, 0, seed)
    return out, a


def _precision(dtype: str) -> Precision:
    return replace(standard(dtype), exp_ulp=EXP_ULP)


def _score_copies(sizes: Sizes, uses: Collection[str]) -> float:
    """Each thread holds those of one unit of work; weights are written where they stay."""
    return 1.0 if "weights" in uses else 0.0


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
        version=f"{np.__version__}, numba {numba.__version__}",
        attend=attend,
        arrays=numpy_arrays.ARRAYS,
        device=device,
        seed=numpy_arrays.seed,
        precision={dtype: _precision(dtype) for dtype in DTYPES},
        masked_rows="nan",
        batch_invariant=True,
        score_copies=_score_copies,
        lacks=numpy_arrays.LACKS,
    )


def for_torch(device: str) -> Backend:
    """Numba's kernels on torch's tensors, with gradients."""
    name = "numba-cpu-torch"
    _require(name, device)
    import torch

    from fullattention.backends import torch_arrays, torch_autograd
    from fullattention.backends.numba_cpu_torch import TensorKernels

    return Backend(
        name=name,
        version=f"{torch.__version__}, numba {numba.__version__}",
        attend=torch_autograd.differentiable(name, TensorKernels()),
        arrays=torch_arrays.ARRAYS,
        device=device,
        seed=torch_arrays.seed,
        precision={dtype: _precision(dtype) for dtype in DTYPES},
        masked_rows="nan",
        batch_invariant=True,
        score_copies=_score_copies,
        lacks={"double_backward": ONCE},
    )
