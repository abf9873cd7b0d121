"""The Triton kernels in Triton's interpreter: faulty ones are found out, large calls are right.

It runs where TRITON_INTERPRET=1: `nox -s triton` sets it, and checks the contract beside this.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from fullattention.backends import triton_fused
from fullattention.backends.errors import UnavailableError
from fullattention.backends.triton_kernels.simulator import SIMULATED, simulating
from fullattention.conformance.catalogue import selected
from fullattention.conformance.subject import from_backend, load_subject
from fullattention.conformance.trial import run_check
from tests.zoo import triton_faults, triton_tiles

assert SIMULATED, "set TRITON_INTERPRET=1"


@pytest.mark.parametrize(("fault", "requirement"), triton_faults.FAULTS.items())
def test_a_faulty_kernel_is_found_out(fault: str, requirement: str) -> None:
    """By wrong numbers, not by an error, in a check that the kernel without the fault passes."""
    faulty, right = (from_backend(triton_faults.backend(name)) for name in (fault, ""))
    for check in selected(("float32",), "quick"):
        if check.requirement == requirement and "shape" in check.id:
            result = run_check(faulty, check)
            if result.status == "failed":
                assert "elements wrong" in result.detail
                assert run_check(right, check).status == "passed"
                return
    pytest.fail("no check found it")


LARGE = ("L1: shape=65536,2,2,1,4,4 ", "L1: shape=16385,2,2,4,4,4 ", "L1: 2^31 elements between")


@pytest.mark.parametrize("only", LARGE)
def test_more_heads_and_elements_than_a_grid_axis_or_an_int32_counts(only: str) -> None:
    subject = load_subject(f"{triton_tiles.__file__}:large")
    results = [run_check(subject, one) for one in selected(("float32",), "full", only=only)]
    assert {result.status for result in results} == {"passed"}


def round_trip(numbers: Any, rounded: Any, squares: Any, SIZE: tl.constexpr) -> None:
    places = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x = tl.load(numbers + places).to(tl.bfloat16)
    tl.store(rounded + places, x)
    tl.store(squares + places, tl.dot(x, x))


def test_the_interpreter_rounds_and_multiplies_bfloat16_as_torch_does() -> None:
    numbers = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    numbers[0, :4] = 1.99999, 2**-130, 1 + 2**-8, 1 + 3 * 2**-8  # a carry, a subnormal, two ties
    x = torch.from_numpy(numbers)
    rounded, squares = torch.empty_like(x, dtype=torch.bfloat16), torch.empty_like(x)
    with simulating():
        triton.jit(round_trip)[(1,)](x, rounded, squares, SIZE=16)
    wanted = x.bfloat16()
    assert torch.equal(rounded, wanted)
    torch.testing.assert_close(squares, wanted.float() @ wanted.float())


@triton.jit  # type: ignore[untyped-decorator]
def doubled(x: Any) -> Any:
    return x + x


@triton.jit  # type: ignore[untyped-decorator]
def four_times(numbers: Any, SIZE: tl.constexpr) -> None:
    places = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(numbers + places, doubled(doubled(tl.load(numbers + places))))


def test_a_launch_patches_the_language_once_whatever_helpers_are_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patch, patched = interpreter._patch_lang, []  # noqa: SLF001 - there is no public way

    def noted(function: Any) -> Any:
        patched.append(function.__module__)
        return patch(function)

    monkeypatch.setattr(interpreter, "_patch_lang", noted)
    x = torch.arange(12.0)
    for _ in range(2):
        with simulating():
            four_times[(3,)](x, SIZE=4)
    assert torch.equal(x, 16 * torch.arange(12.0))
    assert len(patched) == 2


def test_the_interpreter_runs_on_the_cpu_alone() -> None:
    with pytest.raises(UnavailableError, match=r"interpreter runs on 'cpu', not 'cuda'"):
        triton_fused.backend("cuda")
