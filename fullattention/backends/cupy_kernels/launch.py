"""How a kernel is launched: its setting, blocks, threads and shared memory, within all limits."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from fullattention.backends.cupy_kernels.kernels import (
    BACKWARD_STEP,
    ELEMENTS,
    FORWARD_STEP,
    KERNELS,
    LARGEST_WIDTH,
    THREADS,
    Setting,
)
from fullattention.backends.errors import LimitError
from fullattention.backends.interface import Sizes

WARP = 32

LARGEST_GRID = 2**31 - 1
"""Blocks along x."""

LARGEST_LENGTH = 2**31 - 2**16
"""Of the axes L and S, which the kernels count in 32 bits, with room for a block's rows."""

USUAL_SHARED = 48 * 1024
"""Bytes of shared memory that a block gets unasked, and that leave room for several blocks."""

LONG_TILE = 64
"""Staged rows where they do not all fit: enough work between two barriers."""

TENSOR_WIDTH = 128
"""The most features that the tensor cores' kernel takes: a warp holds its queries in registers."""

TENSOR_QUERIES, TENSOR_KEYS, TENSOR_PAD = 64, 64, 8
"""Queries of a block, keys of a tile, and elements between staged rows, as in tensor_cores.cuh."""

TENSOR_TILES = 4
"""Keys and values of the present tile, and of the next one, which is on its way."""

BUSY = 64 * 1024
"""Threads that keep a large GPU busy; with fewer, a row is shared by more of them."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a device allows a block."""

    threads: int
    shared: int
    """Bytes of shared memory, asked for explicitly."""
    tensor_cores: bool
    """Whether they multiply both half-precision types: from compute capability 8.0 on."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch of a kernel."""

    kernel: str
    setting: Setting
    blocks: int
    threads: int
    shared: int
    """Bytes of dynamic shared memory of a block."""
    heads_log2: int
    tile: int
    row_blocks: int


@functools.cache  # small calls last microseconds
def plan(kernel: str, dtype: str, sizes: Sizes, limits: Limits, *, extras: bool) -> Launch:
    """How to launch a kernel for a call.

    `extras`: whether the call has a mask, dropout, or weights that are returned.

    Raises:
        LimitError: the call is too large.
    """
    rows, others = (sizes.S, sizes.L) if kernel == "gradient_of_keys" else (sizes.L, sizes.S)
    for axis, length in (("L", sizes.L), ("S", sizes.S)):
        if length > LARGEST_LENGTH:
            raise LimitError(f"{axis} = {length}: at most {LARGEST_LENGTH}")
    if kernel == "attend_by_tensor_cores":
        launch = _by_tensor_cores(dtype, sizes)
        check(launch, limits)
        return launch
    total = sizes.B * sizes.H
    setting = setting_for(kernel, dtype, sizes, extras=extras)
    row_threads = -(-rows // setting.rows)
    heads = _heads(setting, row_threads, others, total)
    groups, row_blocks = _rows(setting, row_threads, heads)
    tile = _tile(setting, heads, others)
    launch = Launch(
        kernel=kernel,
        setting=setting,
        blocks=-(-total // heads) * row_blocks,
        threads=groups * heads * setting.lanes,
        shared=shared_bytes(setting, heads, tile),
        heads_log2=heads.bit_length() - 1,
        tile=tile,
        row_blocks=row_blocks,
    )
    check(launch, limits)
    return launch


def forward_kernel(dtype: str, sizes: Sizes, limits: Limits, *, extras: bool) -> str:
    """Which kernel serves the forward pass of a call: tensor cores for what is long and half."""
    suits = (
        limits.tensor_cores
        and dtype in ("float16", "bfloat16")
        and not extras
        and max(sizes.E, sizes.D) <= TENSOR_WIDTH
        and sizes.L >= WARP
        and sizes.S >= TENSOR_KEYS
    )
    return "attend_by_tensor_cores" if suits else "attend"


def _by_tensor_cores(dtype: str, sizes: Sizes) -> Launch:
    width = max(16, 1 << (max(sizes.E, sizes.D) - 1).bit_length())
    row_blocks = -(-sizes.L // TENSOR_QUERIES)
    staged = TENSOR_TILES * TENSOR_KEYS * (width + TENSOR_PAD)
    return Launch(
        kernel="attend_by_tensor_cores",
        setting=Setting(
            element=ELEMENTS[dtype], width=width, features=width, rows=1, step=8, extras=0
        ),
        blocks=sizes.B * sizes.H * row_blocks,
        threads=THREADS,
        shared=16 + 4 * width + 2 * staged,
        heads_log2=0,
        tile=TENSOR_KEYS,
        row_blocks=row_blocks,
    )


def check(launch: Launch, limits: Limits) -> None:
    """Refuse a launch that the device would refuse, or worse, accept.

    Raises:
        LimitError: a limit is exceeded.
    """
    for what, asked, limit in (
        ("blocks", launch.blocks, LARGEST_GRID),
        ("threads in a block", launch.threads, min(limits.threads, THREADS)),
        ("bytes of shared memory in a block", launch.shared, limits.shared),
    ):
        if asked > limit:
            raise LimitError(f"{launch.kernel} needs {asked} {what}: at most {limit}")


def setting_for(kernel: str, dtype: str, sizes: Sizes, *, extras: bool) -> Setting:
    """What a kernel is compiled for to serve a call.

    Raises:
        LimitError: E or D is too large.
    """
    largest = max(sizes.E, sizes.D)
    if largest > LARGEST_WIDTH:
        axis = "E" if largest == sizes.E else "D"
        raise LimitError(f"{axis} = {largest}: at most {LARGEST_WIDTH}")
    width = max(4, 1 << (largest - 1).bit_length())
    # A warp is the most that can share a row.
    fewest = max(min(width, 8), width // WARP)
    features = fewest
    if kernel == "attend":
        features = _features(width, fewest, dtype, sizes)
    twice = kernel == "attend" and features <= 8 and sizes.L >= 16 and dtype != "float64"
    return Setting(
        element=ELEMENTS[dtype],
        width=width,
        features=features,
        rows=2 if twice else 1,
        step=FORWARD_STEP if KERNELS[kernel] == "forward" else BACKWARD_STEP,
        extras=int(extras),
    )


def _features(width: int, fewest: int, dtype: str, sizes: Sizes) -> int:
    """Features in one thread: more where arithmetic counts, if enough threads are left."""
    if sizes.S <= 32:
        return fewest
    wanted = 16 if sizes.S <= 128 or dtype == "float64" else 64
    features = max(min(width, wanted), fewest)
    rows = sizes.B * sizes.H * sizes.L
    while features > fewest and rows * (width // features) < BUSY:
        features //= 2
    return features


def _heads(setting: Setting, row_threads: int, others: int, total: int) -> int:
    """Heads of a block, a power of two: as many as fit it with all of their rows."""
    heads = 1
    tile = _up(others, setting.step)
    while (
        2 * heads * setting.lanes * row_threads <= THREADS
        and heads < total
        and shared_bytes(setting, 2 * heads, tile) <= USUAL_SHARED
    ):
        heads *= 2
    return heads


def _rows(setting: Setting, row_threads: int, heads: int) -> tuple[int, int]:
    """Threads of a block that differ in their rows alone, and blocks that share the rows."""
    row = heads * setting.lanes
    whole_warps = max(1, WARP // row)
    most = THREADS // row
    row_blocks = -(-row_threads // most)
    groups = -(-row_threads // row_blocks)
    return _up(groups, whole_warps), row_blocks


def _tile(setting: Setting, heads: int, others: int) -> int:
    """Staged rows: all of them if they fit, else a part."""
    whole = _up(others, setting.step)
    if shared_bytes(setting, heads, whole) <= USUAL_SHARED:
        return whole
    tile = min(whole, LONG_TILE)
    while tile > setting.step and shared_bytes(setting, heads, tile) > USUAL_SHARED:
        tile -= setting.step
    return tile


def _up(length: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-length // step) * step


def shared_bytes(setting: Setting, heads: int, tile: int) -> int:
    """Bytes of shared memory of a block; blocks.cuh has the layout."""
    reals = 2 * tile * heads * setting.width + heads * setting.width + 3 * tile * heads
    return 16 * heads + reals * (8 if setting.element == ELEMENTS["float64"] else 4)
