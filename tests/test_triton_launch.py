"""How calls of every size are cut up for the Triton kernels, and which are refused before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fullattention.backends.errors import LimitError
from fullattention.backends.interface import Sizes
from fullattention.backends.triton_fused import DTYPES
from fullattention.backends.triton_kernels.launch import (
    LARGEST_GRID,
    LARGEST_WIDTH,
    TUNING,
    tiles,
)
from fullattention.bench.workloads import CATALOGUE

EXTREME = {
    "batch-over-65535": Sizes(65_536, 4, 4, 1, 8, 8),
    "heads-over-65535": Sizes(1, 4, 4, 70_000, 8, 8),
    "weights-over-2**31": Sizes(1, 2**17, 2**17, 2, 64, 64),
    "one-query": Sizes(32, 1, 4096, 8, 128, 128),
    "one-key": Sizes(32, 4096, 1, 8, 128, 128),
    "one-of-everything": Sizes(1, 1, 1, 1, 1, 1),
    "E-and-D-256": Sizes(4, 300, 300, 2, 256, 256),
    "odd-heads": Sizes(5, 12, 12, 37, 8, 8),
    **{name: one.shape for name, one in CATALOGUE.items() if one.shape.E <= LARGEST_WIDTH},
}


@pytest.mark.parametrize("kernel", ["attend", "query_gradients", "key_gradients"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", EXTREME.values(), ids=EXTREME)
def test_programs_cover_a_call_once(sizes: Sizes, dtype: str, kernel: str) -> None:
    """And tiles are what Triton takes: powers of two, 16 and more, with whole heads if several."""
    for tuning in (TUNING, replace(TUNING, short=0, sides=(16,))):
        cut = tiles(kernel, dtype, sizes, tuning)
        own, length = (cut.KEYS, sizes.S) if kernel == "key_gradients" else (cut.QUERIES, sizes.L)
        groups = -(-sizes.B * sizes.H // cut.HEADS)
        assert cut.programs == groups * -(-length // own) <= LARGEST_GRID
        assert cut.WIDTH_E >= sizes.E
        assert cut.WIDTH_D >= sizes.D
        assert cut.warps in (1, 2, 4, 8)
        for side in (cut.QUERIES, cut.KEYS, cut.WIDTH_E, cut.WIDTH_D):
            assert side >= 16
            assert side.bit_count() == 1
        if cut.HEADS > 1:
            assert cut.QUERIES >= sizes.L
            assert cut.KEYS >= sizes.S


def test_short_heads_share_a_program_however_many_there_are() -> None:
    """A batch entry's bits depend on the tiles: with its neighbours, they would change [C10]."""
    sizes = Sizes(2688, 12, 12, 16, 32, 32)
    cut = tiles("attend", "float16", sizes)
    assert cut.HEADS > 1
    alone = tiles("attend", "float16", sizes._replace(B=1))
    assert alone == replace(cut, programs=alone.programs)


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        (Sizes(1, 4, 4, 1, 257, 8), "E = 257"),
        (Sizes(1, 4, 4, 1, 8, 1000), "D = 1000"),
        (Sizes(1, 2**31, 4, 1, 8, 8), "L = 2147483648"),
        (Sizes(1, 4, 2**31 - 1, 1, 8, 8), "S = 2147483647"),
        (Sizes(2**20, 129, 65, 2**12, 8, 8), "programs: at most 2147483647"),
    ],
)
def test_what_is_too_large_is_refused_with_the_limit(sizes: Sizes, named: str) -> None:
    with pytest.raises(LimitError, match=named):
        tiles("attend", "float32", sizes)
