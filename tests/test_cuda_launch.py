"""Launches are planned within every limit of a device, or refused before they happen."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from fullattention.backends.cupy_kernels.kernels import CALL, KERNELS, LARGEST_WIDTH, THREADS
from fullattention.backends.cupy_kernels.launch import (
    LARGEST_GRID,
    WARP,
    Launch,
    Limits,
    check,
    forward_kernel,
    plan,
)
from fullattention.backends.errors import LimitError
from fullattention.backends.interface import Sizes
from fullattention.bench.workloads import CATALOGUE
from tests.cuda_settings import H200

OLD = Limits(threads=1024, shared=64 * 1024, tensor_cores=False)
"""The least of the GPUs since Volta."""

ANY_CALL = [kernel for kernel in KERNELS if kernel != "attend_by_tensor_cores"]

LENGTHS = (1, 2, 7, 16, 33, 64, 129, 500, 4096)
WIDTHS = (1, 2, 8, 11, 64, 100, 256, 512)


def planned(
    kernel: str, dtype: str, sizes: Sizes, limits: Limits = H200, *, extras: bool = True
) -> Launch:
    return plan(kernel, dtype, sizes, limits, extras=extras)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("kernel", ANY_CALL)
def test_every_plan_covers_the_call_within_the_limits(kernel: str, dtype: str) -> None:
    for L, S, E, (B, H) in itertools.product(LENGTHS, LENGTHS, WIDTHS, ((1, 1), (3, 5), (700, 16))):
        launch = planned(kernel, dtype, Sizes(B, L, S, H, E, E))
        rows, others = (S, L) if kernel == "gradient_of_keys" else (L, S)
        setting, heads = launch.setting, 1 << launch.heads_log2
        groups = launch.threads // (heads * setting.lanes)
        assert launch.threads == groups * heads * setting.lanes
        assert launch.threads % WARP == 0
        assert launch.threads <= THREADS
        assert launch.row_blocks * groups * setting.rows >= rows
        assert launch.blocks * heads >= B * H * launch.row_blocks
        assert launch.tile % setting.step == 0
        assert launch.tile <= -(-others // setting.step) * setting.step
        assert setting.width >= E
        assert setting.lanes <= WARP
        assert launch.shared <= H200.shared


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_workload_fits_an_older_gpu_too(name: str) -> None:
    workload = CATALOGUE[name]
    for kernel in ANY_CALL:
        launch = planned(kernel, workload.dtype, Sizes(*workload.shape), OLD)
        # No block repeats what another does, but for the rows that one cannot hold.
        assert launch.blocks <= workload.shape.B * workload.shape.H * launch.row_blocks


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("L", "E"), [(32, 1), (65, 16), (128, 100), (4096, 128)])
def test_tensor_cores_cover_the_call_within_the_limits(L: int, E: int, dtype: str) -> None:
    sizes = Sizes(3, L, 64, 5, E, E)
    assert forward_kernel(dtype, sizes, H200, extras=False) == "attend_by_tensor_cores"
    launch = planned("attend_by_tensor_cores", dtype, sizes, extras=False)
    assert launch.setting.width >= E
    assert launch.threads // WARP * 16 * launch.row_blocks >= L
    assert launch.blocks == 15 * launch.row_blocks
    assert launch.shared <= H200.shared


@pytest.mark.parametrize(
    ("dtype", "sizes", "limits", "extras"),
    [
        ("float32", Sizes(1, 64, 64, 1, 64, 64), H200, False),
        ("float16", Sizes(1, 64, 64, 1, 64, 64), OLD, False),
        ("float16", Sizes(1, 64, 64, 1, 64, 64), H200, True),
        ("float16", Sizes(1, 1, 64, 1, 64, 64), H200, False),
        ("float16", Sizes(1, 64, 16, 1, 64, 64), H200, False),
        ("float16", Sizes(1, 64, 64, 1, 64, 129), H200, False),
    ],
)
def test_other_calls_go_without_tensor_cores(
    dtype: str, sizes: Sizes, limits: Limits, extras: bool
) -> None:
    assert forward_kernel(dtype, sizes, limits, extras=extras) == "attend"


def test_more_heads_than_a_grid_is_high_are_no_matter() -> None:
    launch = planned("attend", "float32", Sizes(20_688, 64, 64, 16, 8, 8))
    assert 65_535 < launch.blocks < LARGEST_GRID


def test_heads_of_one_time_step_are_read_together() -> None:
    """Neighbours in memory: a block of tiny heads reads whole lines of 128 bytes."""
    for name in ("patchtst/weather", "patchtst/traffic/l42", "patchtst/traffic/l64"):
        shape = CATALOGUE[name].shape
        launch = planned("attend", "float32", Sizes(*shape))
        assert shape.E * 4 << launch.heads_log2 >= 128
        assert launch.tile >= shape.S
        assert launch.row_blocks == 1


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (Sizes(1, 4, 4, 1, LARGEST_WIDTH + 1, 4), "E = 513: at most 512"),
        (Sizes(1, 4, 4, 1, 4, LARGEST_WIDTH + 1), "D = 513: at most 512"),
        (Sizes(1, 2**31, 4, 1, 4, 4), "L = 2147483648: at most"),
        (Sizes(1, 4, 2**31, 1, 4, 4), "S = 2147483648: at most"),
        (Sizes(2**40, 4, 4, 1, 4, 4), "blocks: at most 2147483647"),
    ],
)
def test_what_is_beyond_the_kernels_is_refused_by_name(sizes: Sizes, words: str) -> None:
    for kernel in ANY_CALL:
        with pytest.raises(LimitError, match=words):
            planned(kernel, "float32", sizes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"threads": THREADS + 32}, "threads in a block"),
        ({"shared": H200.shared + 1}, "bytes of shared memory"),
        ({"blocks": LARGEST_GRID + 1}, "blocks"),
    ],
)
def test_a_launch_beyond_a_limit_is_refused(change: dict[str, int], words: str) -> None:
    launch = planned("attend", "float32", Sizes(2, 9, 9, 3, 8, 8))
    check(launch, H200)
    with pytest.raises(LimitError, match=words):
        check(dataclasses.replace(launch, **change), H200)  # type: ignore[arg-type]


def test_a_device_with_little_shared_memory_refuses_what_needs_more() -> None:
    sizes = Sizes(1, 20, 20, 1, 512, 512)
    planned("attend", "float64", sizes)
    with pytest.raises(LimitError, match="bytes of shared memory in a block: at most 65536"):
        planned("attend", "float64", sizes, OLD)


def test_the_record_has_no_padding() -> None:
    """Every field has 8 bytes, so that NumPy and each compiler agree on where they lie."""
    assert CALL.itemsize == 8 * len(list(_leaves(CALL)))


def _leaves(dtype: object) -> list[object]:
    fields = getattr(dtype, "fields", None)
    if fields is None:
        return [dtype]
    return [leaf for kind, _ in fields.values() for leaf in _leaves(kind)]
