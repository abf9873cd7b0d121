"""Which kernel a call takes, how it is cut up, and what a device would refuse to launch."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from numba import cuda
from numba.core import types

from fullattention.backends.dropout import kept_factor, threshold
from fullattention.backends.errors import LimitError
from fullattention.backends.interface import Array, Sizes
from fullattention.backends.numba_cuda_kernels.kernels import (
    CAUSAL,
    CHUNK,
    LOW,
    MASKED,
    SHOWN,
    Constants,
    Kernel,
    key_gradients,
    numpy_real,
    query_gradients,
    rows,
    rows_layout,
    tiles,
)
from fullattention.backends.numba_cuda_kernels.simulator import SIMULATED, simulating

MOST_THREADS = 1024
MOST_BLOCKS = (2**31 - 1, 65_535, 65_535)
MOST_SHARED = 48 * 1024
"""Limits of every CUDA device: threads of a block, blocks along x, y and z, and the bytes of shared
memory that a block gets without asking for more."""

REGISTERS = 512
"""Bytes of queries and sums that one thread may hold: half of its registers."""

Factory = Callable[[Constants], Kernel]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How work is cut up; any choice gives right results."""

    short: int
    """Queries and keys up to which a block owns whole heads."""
    threads: int
    """Of a block that owns a tile."""
    row_threads: int
    """Of a block that owns whole heads, at most."""
    row_bytes: int
    """Shared memory of such a block, at most, if one head needs no more."""
    sides: tuple[int, ...]
    """Queries and keys of a tile to choose from, largest first."""


DEVICE = Tuning(
    short=128, threads=128, row_threads=256, row_bytes=32 * 1024, sides=(32, 16, 8, 4, 2, 1)
)
"""A guess from the sizes of registers and shared memory; no device has been asked."""

SIMULATOR = Tuning(short=128, threads=3, row_threads=4, row_bytes=4096, sides=(8, 4, 2, 1))
"""Each thread costs the simulator much, so there are few; the tiles' edges then lie close by."""

TUNING = SIMULATOR if SIMULATED else DEVICE


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A kernel and its launch."""

    factory: Factory
    constants: Constants
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic: int = 0
    """Bytes of shared memory that are asked for at the launch."""
    batches: int = 0
    """Batch entries of a block of `rows`."""


def memory(factory: Factory, c: Constants) -> int:
    """Bytes of shared memory that a kernel declares itself."""
    wide = max(c.E, c.D) + 1
    elements: dict[Factory, int] = {
        rows: 0,
        tiles: c.queries * (c.E + 1 + c.D + c.keys + 3) + c.keys * wide,
        query_gradients: c.queries * (2 * c.E + c.D + 4 + 2 * c.keys) + c.keys * wide,
        key_gradients: c.keys * 2 * (c.E + c.D + 1) + c.queries * (wide + 2 + 2 * c.keys),
    }
    return elements[factory] * real_size(c)


def real_size(c: Constants) -> int:
    """Bytes of a number of the arithmetic."""
    return 8 if c.dtype == "float64" else 4


def rows_memory(c: Constants, batches: int, L: int, S: int) -> int:
    """Bytes of dynamic shared memory of a block of `rows`."""
    layout = rows_layout(c)
    return batches * (S * c.heads * (layout.key + layout.value) + L * layout.run) * real_size(c)


@functools.lru_cache(maxsize=4096)
def forward_plan(
    c: Constants, sizes: Sizes, *, logsumexp: bool = False, tuning: Tuning = TUNING
) -> Plan:
    """The launch of the forward pass: whole heads where they are short and narrow, else tiles.

    Raises:
        LimitError: E and D are too wide for a tile.
    """
    c = replace(c, logsumexp=logsumexp)
    held = (c.E + c.D) * real_size(c)
    if max(sizes.L, sizes.S) <= tuning.short and held <= REGISTERS:
        # In float64 the exponential alone takes many registers.
        own = 2 if 2 * held <= REGISTERS and sizes.L > 1 and c.dtype != "float64" else 1
        one = replace(c, queries=own, heads=1)
        if rows_memory(one, 1, sizes.L, sizes.S) <= MOST_SHARED:
            return _rows_plan(one, sizes, tuning)
    return tiles_plan(tiles, c, sizes, tuning=tuning)


def _rows_plan(one: Constants, sizes: Sizes, tuning: Tuning) -> Plan:
    """As many neighbouring heads to a block as fit, then as many batch entries."""
    B, L, S, H, E, _ = sizes
    parts = -(-L // one.queries)

    def fits(c: Constants, batches: int) -> bool:
        return (
            rows_memory(c, batches, L, S) <= tuning.row_bytes
            and batches * c.heads * parts <= tuning.row_threads
        )

    powers = [2**i for i in range(H.bit_length(), -1, -1) if 2**i < H]
    choices = (replace(one, heads=heads) for heads in (H, *powers))
    c = next((c for c in choices if fits(c, 1)), one)
    batches = 1
    while c.heads == H and 2 * batches <= B and fits(c, 2 * batches):
        batches *= 2
    items = batches * c.heads * parts
    columns = min(32, 1 << (c.heads * E - 1).bit_length(), tuning.row_threads // 2)
    lines = max(1, min(-(-items // columns), tuning.row_threads // columns))
    return Plan(
        factory=rows,
        constants=c,
        grid=(blocks(-(-B // batches) * -(-H // c.heads)), 1, 1),
        block=(columns, lines, 1),
        dynamic=rows_memory(c, batches, L, S),
        batches=batches,
    )


@functools.lru_cache(maxsize=4096)
def tiles_plan(factory: Factory, c: Constants, sizes: Sizes, *, tuning: Tuning = TUNING) -> Plan:
    """The launch of a kernel by tiles: one block for each tile of the queries or keys it owns.

    Raises:
        LimitError: E and D are too wide for the smallest tile.
    """
    by_key = factory is key_gradients
    smallest = CHUNK if factory is tiles else 1  # keys between two rescalings
    needed = 0
    for side in tuning.sides:
        queries, keys = (min(side, power(n)) for n in (sizes.L, sizes.S))
        tiled = replace(c, queries=queries, keys=max(keys, smallest))
        needed = memory(factory, tiled)
        if needed <= MOST_SHARED:
            owned = -(-sizes.S // tiled.keys) if by_key else -(-sizes.L // tiled.queries)
            return Plan(
                factory=factory,
                constants=tiled,
                grid=(blocks(sizes.B * sizes.H * owned), 1, 1),
                block=(tuning.threads, 1, 1),
            )
    raise LimitError(
        f"E = {c.E} and D = {c.D} in {c.dtype} need {needed} bytes of shared "
        f"memory for the smallest tile: a block has {MOST_SHARED} [L1]"
    )


def power(n: int) -> int:
    """The smallest power of two that is no less."""
    return int(1 << (n - 1).bit_length())


def blocks(items: int) -> int:
    """Blocks along x; each block takes several items where there are more items than blocks."""
    return min(items, MOST_BLOCKS[0])


def validate(plan: Plan) -> None:
    """Refuse what a device would refuse, before it is launched: the simulator runs anything.

    Raises:
        LimitError: a limit is exceeded, or there is nothing to launch.
    """
    threads = plan.block[0] * plan.block[1] * plan.block[2]
    if not 1 <= threads <= MOST_THREADS:
        raise LimitError(f"a block of {plan.block} has {threads} threads: 1 to {MOST_THREADS}")
    for axis, size, most in zip("xyz", plan.grid, MOST_BLOCKS, strict=True):
        if not 1 <= size <= most:
            raise LimitError(f"the grid has {size} blocks along {axis}: 1 to {most}")
    shared = plan.dynamic + memory(plan.factory, plan.constants)
    if shared > MOST_SHARED:
        raise LimitError(f"a block needs {shared} bytes of shared memory: at most {MOST_SHARED}")


def signature(factory: Factory, c: Constants) -> Any:
    """Types of a kernel's arguments. Arrays have any strides: one kernel serves every layout."""
    array = types.Array(c.storage, 4, "A")
    precise = types.Array(c.real, 4, "A")
    mask = types.Array(types.boolean, 4, "A")
    arrays: dict[Factory, tuple[Any, ...]] = {
        rows: (array, array, array, mask, array, array, precise if c.logsumexp else array),
        query_gradients: (array, array, array, mask, array, array, precise, precise, array),
        key_gradients: (*(array, array, array, mask, array, array), precise, precise, array, array),
    }
    arrays[tiles] = arrays[rows]
    dropping = types.Tuple((c.real, types.int64, types.int64, types.int64))
    strides = types.UniTuple(types.int64, 4)
    batches = (types.int64,) if factory is rows else ()
    return types.void(*arrays[factory], c.real, dropping, strides, *batches)


@functools.cache
def compiled(factory: Factory, c: Constants) -> Any:
    """A kernel ready to launch; Numba keeps it on disk too, beside this file or in its cache."""
    if SIMULATED:
        return cuda.jit(factory(c))
    return cuda.jit(signature(factory, c), cache=True)(factory(c))


def launch(
    plan: Plan,
    arrays: tuple[Array, ...],
    mask: Array,
    *,
    scale: float,
    dropout: float,
    seed: int,
    stream: Any,
) -> None:
    """Run a plan on Numba device arrays; `mask` is the one of `arrays` that broadcasts.

    Raises:
        LimitError: the device would refuse it.
    """
    validate(plan)
    c = plan.constants
    real = numpy_real(c)
    arguments = (
        *arrays,
        real(scale),
        (real(kept_factor(dropout)), threshold(dropout), seed & LOW, seed >> 32),
        tuple(int(n > 1) for n in mask.shape),  # an index is 0 along an axis of one entry
        *((plan.batches,) if plan.factory is rows else ()),
    )
    if SIMULATED:
        with simulating():
            compiled(plan.factory, c)[plan.grid, plan.block, stream, plan.dynamic](*arguments)
    else:
        configured(plan, stream)(*arguments)


@functools.lru_cache(maxsize=4096)
def configured(plan: Plan, stream: Any) -> Any:
    """A kernel with its grid; Numba would warn of small grids, which small calls have by nature."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compiled(plan.factory, plan.constants)[plan.grid, plan.block, stream, plan.dynamic]


def mask_kind(hidden: Array | None, causal: bool) -> int:
    """What hides keys, as kernels are told."""
    if hidden is not None:
        return MASKED
    return CAUSAL if causal else SHOWN
