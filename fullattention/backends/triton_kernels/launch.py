"""How a call is cut up into programs of a kernel, and what a device would refuse to launch."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from fullattention.backends.errors import LimitError
from fullattention.backends.interface import Sizes

LARGEST_GRID = 2**31 - 1
"""Programs along x."""

LARGEST_LENGTH = 2**31 - 2**16
"""Of the axes L and S, which the kernels count in 32 bits, with room for a tile."""

LARGEST_WIDTH = 256
"""The most features E and columns D: tiles of more outgrow shared memory."""

NARROWEST = 16
"""Rows and columns of a factor that every product of Triton's takes."""

MOST_WARPS = 8
"""Of a program."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How work is cut up; any choice gives right results."""

    short: int = 64
    """Queries and keys up to which a program owns whole heads."""
    sides: tuple[int, ...] = (64, 32, NARROWEST)
    """Queries and keys of a tile to choose from, largest first."""
    numbers: int = 4096
    """In a program's largest tile, in float32; half types have twice as many."""
    own: int = 16
    """Of those, in one thread; half types have twice as many."""


TUNING = Tuning()
"""As much as stays in registers, by the assembler's account; no device has been asked."""


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """How a kernel is cut up; its constants are spelled as the kernels do."""

    HEADS: int
    QUERIES: int
    KEYS: int
    WIDTH_E: int
    WIDTH_D: int
    programs: int
    warps: int
    stages: int
    """Tiles that are loaded ahead."""


@functools.lru_cache(maxsize=4096)  # small calls last microseconds
def tiles(kernel: str, dtype: str, sizes: Sizes, tuning: Tuning = TUNING) -> Tiles:
    """How to cut a call of a kernel.

    Raises:
        LimitError: the call is too large.
    """
    check_sizes(sizes)
    packed = 1 if dtype == "float32" else 2
    most, own = packed * tuning.numbers, packed * tuning.own
    wide_e, wide_d = padded(sizes.E), padded(sizes.D)
    queries, keys, heads = padded(sizes.L), padded(sizes.S), 1

    def largest(queries: int, keys: int) -> int:
        # Both factors of a product lie in registers beside the sums, which are never packed.
        return max(packed * queries * keys, 2 * max(queries, keys) * max(wide_e, wide_d))

    if max(sizes.L, sizes.S) <= tuning.short and largest(queries, keys) <= most:
        # However few heads there are: their number is to change no bit of a result.
        while 2 * heads * largest(queries, keys) <= most:
            heads *= 2
    else:
        if packed > 1 and kernel == "attend":  # whose sums alone outlast a tile of keys
            most *= 2
        side = next((n for n in tuning.sides if largest(n, n) <= most), NARROWEST)
        queries, keys = min(queries, side), min(keys, side)
    rows, length = (keys, sizes.S) if kernel == "key_gradients" else (queries, sizes.L)
    programs = -(-sizes.B * sizes.H // heads) * -(-length // rows)
    if programs > LARGEST_GRID:
        raise LimitError(f"{sizes} needs {programs} programs: at most {LARGEST_GRID}")
    return Tiles(
        HEADS=heads,
        QUERIES=queries,
        KEYS=keys,
        WIDTH_E=wide_e,
        WIDTH_D=wide_d,
        programs=programs,
        warps=min(MOST_WARPS, power_of_two(-(-heads * largest(queries, keys) // (32 * own)))),
        stages=2 if max(wide_e, wide_d) <= 128 else 1,
    )


def check_sizes(sizes: Sizes) -> None:
    """Refuse what the kernels cannot count or hold.

    Raises:
        LimitError: an axis is too long.
    """
    for axis, length, limit in (
        ("L", sizes.L, LARGEST_LENGTH),
        ("S", sizes.S, LARGEST_LENGTH),
        ("E", sizes.E, LARGEST_WIDTH),
        ("D", sizes.D, LARGEST_WIDTH),
    ):
        if length > limit:
            raise LimitError(f"{axis} = {length}: at most {limit}")


def power_of_two(length: int) -> int:
    """The next power of two."""
    return 1 << (length - 1).bit_length()


def padded(length: int) -> int:
    """Rows or columns of a tile that holds so many."""
    return max(NARROWEST, power_of_two(length))
