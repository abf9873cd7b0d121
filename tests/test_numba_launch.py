"""What Numba's kernels ask of a device is within its limits for every shape, or refused before."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: nox installs it")

from fullattention.backends.errors import LimitError
from fullattention.backends.interface import Sizes
from fullattention.backends.numba_cuda import DTYPES
from fullattention.backends.numba_cuda_kernels.kernels import (
    Constants,
    key_gradients,
    query_gradients,
    rows,
    tiles,
)
from fullattention.backends.numba_cuda_kernels.launch import (
    DEVICE,
    MOST_BLOCKS,
    SIMULATOR,
    Plan,
    Tuning,
    forward_plan,
    tiles_plan,
    validate,
)
from fullattention.bench.workloads import CATALOGUE

EXTREME = {
    "batch-over-65535": Sizes(65_536, 4, 4, 1, 8, 8),
    "heads-over-65535": Sizes(1, 4, 4, 70_000, 8, 8),
    "patchtst-traffic": Sizes(20_688, 64, 64, 16, 8, 8),
    "blocks-over-2**31": Sizes(2**20, 129, 2, 2**11, 64, 64),
    "elements-over-2**31": Sizes(2**12, 96, 96, 2**6, 256, 256),
    "weights-over-2**31": Sizes(1, 2**17, 2**17, 2, 64, 64),
    "one-query": Sizes(32, 1, 4096, 8, 128, 128),
    "one-key": Sizes(32, 4096, 1, 8, 128, 128),
    "one-of-everything": Sizes(1, 1, 1, 1, 1, 1),
    "E-and-D-512": Sizes(4, 300, 300, 2, 512, 512),
    "E-1-D-512": Sizes(4, 300, 300, 2, 1, 512),
    "odd-heads": Sizes(5, 12, 12, 37, 8, 8),
    **{name: Sizes(*workload.shape) for name, workload in CATALOGUE.items()},
}


def all_plans(dtype: str, sizes: Sizes, tuning: Tuning) -> list[Plan]:
    c = Constants(dtype=dtype, E=sizes.E, D=sizes.D, weights=True, dropout=True)
    backward = [
        tiles_plan(kind, c, sizes, tuning=tuning) for kind in (query_gradients, key_gradients)
    ]
    return [forward_plan(c, sizes, logsumexp=True, tuning=tuning), *backward]


@pytest.mark.parametrize("tuning", [DEVICE, SIMULATOR], ids=["device", "simulator"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", EXTREME.values(), ids=EXTREME)
def test_every_launch_is_within_the_limits(sizes: Sizes, dtype: str, tuning: Tuning) -> None:
    for plan in all_plans(dtype, sizes, tuning):
        validate(plan)
        assert items(plan, sizes) <= plan.grid[0] or plan.grid[0] == MOST_BLOCKS[0]


def items(plan: Plan, sizes: Sizes) -> int:
    """What there is to do, in units of a block's work."""
    c = plan.constants
    if plan.factory is rows:
        return -(-sizes.B // plan.batches) * -(-sizes.H // c.heads)
    owned = -(-sizes.S // c.keys) if plan.factory is key_gradients else -(-sizes.L // c.queries)
    return sizes.B * sizes.H * owned


def test_short_heads_share_a_block_and_long_ones_do_not() -> None:
    for name in ("patchtst/traffic/l42", "tslib/patchtst/ecl", "crossformer/m4", "toy"):
        sizes = EXTREME[name]
        plan = all_plans("float32", sizes, DEVICE)[0]
        assert plan.factory is rows
        assert plan.batches * plan.constants.heads > 1
    assert all_plans("float32", EXTREME["long/2k"], DEVICE)[0].factory is tiles


def test_a_warp_loads_at_least_128_neighbouring_bytes_where_heads_are_narrow() -> None:
    for name, sizes in EXTREME.items():
        plan = all_plans("float32", sizes, DEVICE)[0]
        if plan.factory is rows and name in CATALOGUE:
            run = plan.constants.heads * sizes.E * 4
            assert run >= min(128, sizes.H * sizes.E * 4), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_too_wide_for_shared_memory_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(LimitError, match=r"E = 4096 and D = 8 .* bytes of shared memory"):
        all_plans(dtype, Sizes(1, 8, 8, 1, 4096, 8), DEVICE)


RIGHT = all_plans("float32", Sizes(2, 200, 200, 2, 8, 8), DEVICE)[0]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (replace(RIGHT, block=(2048, 1, 1)), "2048 threads"),
        (replace(RIGHT, block=(32, 33, 1)), "1056 threads"),
        (replace(RIGHT, block=(0, 1, 1)), "0 threads"),
        (replace(RIGHT, dynamic=512 * 1024), "bytes of shared memory"),
        (replace(RIGHT, grid=(0, 1, 1)), "0 blocks along x"),
        (replace(RIGHT, grid=(2**31, 1, 1)), "2147483648 blocks along x"),
        (replace(RIGHT, grid=(1, 70_000, 1)), "70000 blocks along y"),
        (replace(RIGHT, grid=(1, 1, 70_000)), "70000 blocks along z"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_device_refuses_is_refused_before_the_launch(wrong: Plan, named: str) -> None:
    """The simulator would run all of these."""
    with pytest.raises(LimitError, match=named):
        validate(wrong)
    assert prod(RIGHT.block) <= 1024
    validate(RIGHT)
