"""NVIDIA's compiler takes the CUDA source for real GPUs; a handful of settings, the rest by nox."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from fullattention.backends.cupy_kernels.kernels import KERNELS, STANDARD, source
from tests.cuda_settings import ARCHITECTURES, setting_of, usage
from tests.nvrtc import WHEEL, compile_for, is_installed

pytestmark = pytest.mark.skipif(not is_installed(), reason=f"{WHEEL} is not installed")

SOME = 64
"""Bytes a thread may spill: what the compiler prefers to a register more, outside of loops."""

FORWARD = ("patchtst/traffic/l42", "tslib/patchtst/ecl", "long/2k")


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("workload", FORWARD)
def test_the_forward_pass_compiles_and_hardly_spills(workload: str, arch: str) -> None:
    used = usage("attend", setting_of("attend", workload), arch)
    assert used.spilled <= SOME


@pytest.mark.parametrize("workload", ["patchtst/traffic/l42", "tslib/patchtst/ecl"])
def test_tiny_heads_leave_room_for_many_blocks(workload: str) -> None:
    """Bound by memory: five blocks of 128 threads fit the 64 Ki registers of a multiprocessor."""
    used = usage("attend", setting_of("attend", workload), "sm_90")
    assert used.registers * 128 * 5 <= 64 * 1024


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("workload", ["long/2k/float16", "vit/b16/bfloat16"])
def test_the_tensor_cores_kernel_compiles(workload: str, arch: str) -> None:
    kernel = "attend_by_tensor_cores"
    assert usage(kernel, setting_of(kernel, workload), arch).spilled == 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_what_serves_masks_and_weights_compiles(arch: str) -> None:
    usage("attend", setting_of("attend", "patchtst/traffic/l42", extras=True), arch)


@pytest.mark.parametrize("kernel", [name for name, of in KERNELS.items() if of == "backward"])
def test_the_backward_pass_compiles(kernel: str) -> None:
    usage(kernel, setting_of(kernel, "patchtst/traffic/l42", extras=True), "sm_90")


def test_a_faulty_source_is_refused_by_line() -> None:
    broken = source("forward").replace("Real inverse[ROWS];", "Real inverse[];")
    setting = setting_of("attend", "toy")
    with pytest.raises(RuntimeError, match=r"forward\.cuh\(\d+\)"):
        compile_for(broken, "sm_90", (STANDARD, *setting.macros))


def test_the_source_is_part_of_the_package() -> None:
    """Beside its module, wherever that is installed."""
    spec = importlib.util.find_spec("fullattention.backends.cupy_kernels")
    assert spec is not None
    assert spec.origin is not None
    assert {path.name for path in Path(spec.origin).parent.glob("*.cuh")} == {
        "elements.cuh",
        "blocks.cuh",
        "random.cuh",
        "forward.cuh",
        "tensor_cores.cuh",
        "backward.cuh",
    }
