"""Inside torch.autocast and under torch.compile the contract holds, or it is said why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fullattention.conformance import modes
from fullattention.conformance.case import Case, Failed, Refused, check_case
from fullattention.conformance.catalogue import catalogue
from fullattention.conformance.check import Check
from fullattention.conformance.modes import in_autocast, tried_compiled
from fullattention.conformance.subject import load_subject
from fullattention.conformance.trial import run_check
from tests.zoo.faulty.layers import FAULTY_LAYERS
from tests.zoo.layers import UpstreamLayer
from tests.zoo.specimen import Specimen

DTYPES = ("float64", "float32", "bfloat16")
IN_MODES = [
    check
    for check in catalogue(DTYPES, "standard")
    if "in autocast" in check.id or "compiled by" in check.id
]
IN_ONE_MODE = [one for one in FAULTY_LAYERS if one.name.startswith(("Autocast", "Compiled"))]
CASE = Case(mask="random/BHLS")


def returning(change: Callable[[torch.Tensor], torch.Tensor]) -> type:
    """The layer with V changed."""

    class Changed(UpstreamLayer):
        def forward(self, *arguments: Any, **options: Any) -> Any:
            out, a = super().forward(*arguments, **options)
            return change(out), a

    return Changed


@pytest.mark.parametrize("name", ["torch-einsum", "torch-sdpa", "torch-sdpa-flash"])
@pytest.mark.parametrize("check", IN_MODES, ids=lambda check: check.id)
def test_the_layer_is_right_in_every_mode(name: str, check: Check) -> None:
    needs_weights = check.id.startswith("W1") and name != "torch-einsum"
    result = run_check(load_subject(name), check)
    assert result.status == ("unsupported" if needs_weights else "passed"), result


@pytest.mark.parametrize("change", [torch.Tensor.float, torch.Tensor.bfloat16])
def test_inside_autocast_v_has_its_dtype_or_the_inputs(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    case = CASE.but(dtype="bfloat16")
    assert check_case(in_autocast(load_subject(returning(change)), "bfloat16"), case) <= 1


def test_inside_autocast_v_has_no_other_dtype() -> None:
    subject = in_autocast(load_subject(returning(torch.Tensor.half)), "bfloat16")
    with pytest.raises(Failed, match="V has dtype float16, expected bfloat16"):
        check_case(subject, CASE.but(dtype="bfloat16"))


def test_arrays_of_another_library_are_unsupported_and_not_passed() -> None:
    subject = load_subject("numpy-matmul")
    results = [run_check(subject, check) for check in IN_MODES]
    assert {result.status for result in results} == {"unsupported"}
    assert all("not arrays of numpy" in r.detail or "gradient" in r.detail for r in results)


def test_without_a_compiler_nothing_is_passed() -> None:
    subject = load_subject(UpstreamLayer)
    with pytest.raises(Refused, match=r"torch\.compile by no-such"):
        tried_compiled(subject, CASE, trial=check_case, backend="no-such")


def test_what_torch_compiles_nothing_of_is_not_passed() -> None:
    class Opaque(UpstreamLayer):
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def forward(self, *arguments: Any, **options: Any) -> Any:
            return super().forward(*arguments, **options)

    with pytest.raises(Refused, match="compiles nothing of it"):
        tried_compiled(load_subject(Opaque), CASE, trial=check_case, backend="eager")


def test_what_stays_uncompiled_is_a_warning() -> None:
    def printed(out: torch.Tensor) -> torch.Tensor:
        torch.compiler.disable(print)(end="")  # type: ignore[no-untyped-call]
        return out

    subject = load_subject(returning(printed))
    evidence = tried_compiled(subject, CASE, trial=check_case, backend="eager")
    assert evidence.warning.startswith("torch.compile leaves parts uncompiled: ")


@pytest.mark.proof
def test_generated_code_is_tried_where_there_is_a_compiler() -> None:
    (check,) = (c for c in catalogue(("float32",), "full") if c.id.startswith("C1: compiled by"))
    result = run_check(load_subject(UpstreamLayer), check)
    reason = modes.why_no_compiler("inductor", "cpu")
    assert result.status == ("unsupported" if reason else "passed")
    assert reason in result.detail


@pytest.mark.parametrize("specimen", IN_ONE_MODE, ids=str)
def test_outside_its_mode_such_a_fault_does_not_show(specimen: Specimen) -> None:
    for dtype in DTYPES:
        check_case(load_subject(specimen.candidate), CASE.but(dtype=dtype))
