"""Troubles that users reported of attention elsewhere: each is convicted here, one by one.

An entry names its public source and the symptom. Where a processor can show it, a small candidate
does, and a check of the named requirement fails it; where the diagnosis has a line for it, the
line is named too. Entries about anything but a candidate's numbers say what covers them instead.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fullattention.conformance.case import Case, Failed, check_case, exact, run
from fullattention.conformance.catalogue import selected
from fullattention.conformance.diagnosis import diagnose
from fullattention.conformance.subject import Subject, load_subject
from fullattention.conformance.trial import run_check
from fullattention.records import Result
from tests.zoo.faulty.backends import FAULTY_BACKENDS
from tests.zoo.faulty.layers import FAULTY_LAYERS
from tests.zoo.layers import FusedLayer, UpstreamLayer
from tests.zoo.reported import (
    GRID_OVERFLOWS,
    INNERMOST_DENSE,
    MASK_BY_HEAD,
    POINTER_ONLY,
    FilledWithMinus1e9,
    ThroughNumpy,
    guarded_by_comparison,
)

ZOO = {specimen.name: specimen.candidate for specimen in (*FAULTY_BACKENDS, *FAULTY_LAYERS)}

ENTRIES = [f"C{number:02}" for number in range(1, 31)]


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A reported trouble and a candidate that has it."""

    entry: str
    source: str
    symptom: str
    candidate: Any
    requirement: str
    """What the suite convicts it by."""
    check: str = ""
    """Part of the id of a check that fails."""
    dtype: str = "float32"
    line: str = ""
    """Part of the diagnosis; empty where that has no words for it."""

    def __str__(self) -> str:
        name = getattr(self.candidate, "name", None) or self.candidate.__name__
        return f"{self.entry}-{name}-{self.dtype}"


SHOWN = (
    Trouble(
        entry="C01",
        source="pytorch/pytorch#103963",
        symptom="a lowest finite number as the fill makes a fully hidden row the mean of V",
        candidate=ZOO["mask-finfo-min"],
        requirement="M6",
        line="fully hidden rows the mean of V",
    ),
    Trouble(
        entry="C01",
        source="pytorch/pytorch#103749",
        symptom="a fully hidden row is 0 in one library and NaN in the other",
        candidate=ZOO["HiddenRowsZero"],
        requirement="M6",
        line="fully hidden rows 0 instead of NaN",
    ),
    Trouble(
        entry="C02",
        source="rasbt/LLMs-from-scratch#1061",
        symptom="True hides here and shows there: no error, the future leaks",
        candidate=ZOO["FusedPolarityInverted"],
        requirement="M3",
        line="the mask inverted: True shows instead of hides",
    ),
    Trouble(
        entry="C03",
        source="pytorch/pytorch#103082",
        symptom="causal with L != S counts from the first key",
        candidate=ZOO["LengthsAnswered"],
        requirement="M2",
        line="L != S answered without a mask, causal from the top left",
    ),
    Trouble(
        entry="C03",
        source="pytorch/pytorch#108108",
        symptom="causal with L != S counts from the last key",
        candidate=ZOO["CausalBottomRight"],
        requirement="M2",
        line="L != S answered without a mask, causal from the bottom right",
    ),
    Trouble(
        entry="C04",
        source="pytorch/pytorch#124464",
        symptom="the fused call drops weights in eval, unless its caller passes 0",
        candidate=ZOO["FusedDropoutInEval"],
        requirement="P1",
        line="dropout active in eval",
    ),
    Trouble(
        entry="C05",
        source="pytorch/pytorch#101967",
        symptom="-infinity added to a NaN score stays NaN, so a hidden key leaks",
        candidate=ZOO["mask-infinity-added"],
        requirement="N4",
        check="nan-in-last-key",
    ),
    Trouble(
        entry="C06",
        source="pytorch/pytorch#142228",
        symptom="more batch entries than an axis of the grid holds: an error that names no limit",
        candidate=GRID_OVERFLOWS,
        requirement="L1",
        check="shape=65536,",
    ),
    Trouble(
        entry="C07",
        source="pytorch/pytorch#181133",
        symptom="strides of permuted views are not read: plausible garbage",
        candidate=ZOO["strides-ignored"],
        requirement="C4",
        check="heads-first",
        line="strides ignored: inputs read as if they were contiguous",
    ),
    Trouble(
        entry="C08",
        source="pytorch/pytorch#187506",
        symptom="wrong where the innermost axis is not dense",
        candidate=INNERMOST_DENSE,
        requirement="C4",
        check="every-other",
        line="wrong only where the layout is every-other",
    ),
    Trouble(
        entry="C09",
        source="pytorch/pytorch#141218",
        symptom="an axis of length 0 crashes",
        candidate=ZOO["NoKeysCrash"],
        requirement="C6",
    ),
    Trouble(
        entry="C09",
        source="pytorch/pytorch#174939",
        symptom="without keys the result is what lay in memory, and not 0",
        candidate=ZOO["NoKeysNan"],
        requirement="C6",
    ),
    Trouble(
        entry="C10",
        source="pytorch/pytorch#127055",
        symptom="a sliding window hides a row's first tile: -infinity minus -infinity",
        candidate=ZOO["hidden-tile-nan"],
        requirement="M4",
        check="band/LS",
        line="V is NaN",
    ),
    Trouble(
        entry="C11",
        source="pytorch/pytorch#184180",
        symptom="in a mask (B, 1, L, S) each head reads at an offset of its own",
        candidate=MASK_BY_HEAD,
        requirement="M4",
        check="random/B1LS",
        line="the masks of the batch entries repeated in turn",
    ),
    Trouble(
        entry="C11",
        source="pytorch/pytorch#128816",
        symptom="of a mask whose last axis has length 1, key 0 alone is hidden",
        candidate=ZOO["mask-one-key"],
        requirement="M6",
    ),
    Trouble(
        entry="C12",
        source="pytorch/pytorch#119131",
        symptom="half scores overflow before the scale makes them small",
        candidate=ZOO["half-overflow"],
        requirement="N3",
        check="wide-scores",
        dtype="float16",
    ),
    Trouble(
        entry="C13",
        source="unit8co/darts#3081",
        symptom="a fill of -1e9 is an error in float16",
        candidate=FilledWithMinus1e9,
        requirement="M4",
        dtype="float16",
        line="raises only where the dtype is float16",
    ),
    Trouble(
        entry="C13",
        source="NVIDIA/apex#1052",
        symptom="a fill that float16 can hold, -1e4, lets hidden keys win",
        candidate=ZOO["mask-minus-1e4"],
        requirement="M7",
        line="a finite number such as -1e4 in place of -infinity",
    ),
    Trouble(
        entry="C14",
        source="pytorch/pytorch#133671",
        symptom="V is a transposed view, and its caller's `.view` fails",
        candidate=ZOO["NotContiguous"],
        requirement="C1",
        check="contiguous",
    ),
    Trouble(
        entry="C15",
        source="sktime/pytorch-forecasting#1990",
        symptom="the layer is to be replaced by the fused call: the two differ",
        candidate=FusedLayer,
        requirement="M6",
        line="fully hidden rows 0 instead of NaN",
    ),
    Trouble(
        entry="C16",
        source="zhouhaoyi/Informer2020#100",
        symptom="heads and time are swapped: right shape, wrong numbers",
        candidate=ZOO["heads-as-time"],
        requirement="C1",
        line="heads and time swapped",
    ),
    Trouble(
        entry="C16",
        source="pytorch/benchmark#2391",
        symptom="the result is left heads first",
        candidate=ZOO["heads-first-result"],
        requirement="C1",
    ),
    Trouble(
        entry="C17",
        source="thuml/Time-Series-Library#542",
        symptom="one value comes back where callers unpack two",
        candidate=ZOO["BareResult"],
        requirement="C2",
        line="not a tuple (V, weights)",
    ),
    Trouble(
        entry="C17",
        source="thuml/Time-Series-Library#728",
        symptom="weights are asked for and None comes",
        candidate=ZOO["weights-never"],
        requirement="W1",
        line="output_attention=True returned weights None",
    ),
    Trouble(
        entry="C18",
        source="pytorch/pytorch#42929",
        symptom="which weights are returned in training, those before or after dropout?",
        candidate=ZOO["weights-before-dropout"],
        requirement="P2",
        line="the weights before dropout returned",
    ),
    Trouble(
        entry="C19",
        source="pytorch/pytorch#160064",
        symptom="asking for the weights takes another path, and V is another one",
        candidate=ZOO["WeightsChangeV"],
        requirement="C2",
        line="the mask ignored where output_attention is on",
    ),
    Trouble(
        entry="C20",
        source="cupy/cupy#3095",
        symptom="a raw kernel gets a pointer only: a flipped view is read forwards (NumPy's here)",
        candidate=POINTER_ONLY,
        requirement="C4",
        check="reversed",
    ),
    Trouble(
        entry="C20",
        source="cupy/cupy#913",
        symptom="and an expanded one, whose stride is 0, past its end",
        candidate=POINTER_ONLY,
        requirement="C4",
        check="shared-batch",
        dtype="float64",
    ),
    Trouble(
        entry="C21",
        source="cupy/cupy#7874",
        symptom="an array cannot be handed over: NumPy knows no bfloat16",
        candidate=ThroughNumpy,
        requirement="C1",
        dtype="bfloat16",
        line="raises only where the dtype is bfloat16",
    ),
    Trouble(
        entry="C21",
        source="pytorch/pytorch#94463",
        symptom="a tensor that needs a gradient cannot be handed over",
        candidate=ThroughNumpy,
        requirement="G1",
    ),
    Trouble(
        entry="C26",
        source="jax-ml/jax#27224",
        symptom="right for multiples of the block only",
        candidate=ZOO["keys-tail-dropped"],
        requirement="C5",
        line="keys after the last whole block of 16 never read",
    ),
    Trouble(
        entry="C26",
        source="triton-lang/triton#621",
        symptom="right up to one head size only",
        candidate=ZOO["features-over-256"],
        requirement="C5",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """An entry that no candidate's numbers show, and the tests that cover it."""

    source: str
    symptom: str
    tests: tuple[str, ...]
    left: str = ""
    """What they do not cover."""


TURNS, HERE = "tests/test_bench_turns.py", "tests/test_field_notes.py"

ELSEWHERE = {
    "C22": Elsewhere(
        source="cupy/cupy#1317",
        symptom="the launch is timed instead of the work, and compiling with the first call",
        tests=(
            f"{TURNS}::test_the_device_is_waited_for_once_a_chunk",
            "tests/test_bench_measure.py::test_a_timing_tells_its_turns_and_what_was_called",
        ),
    ),
    "C23": Elsewhere(
        source="numba/numba#3265",
        symptom="the CUDA simulator is no device: two shared arrays made on one line are one array",
        tests=(f"{HERE}::test_the_simulator_is_no_device",),
        left="launches that a device refuses and the simulator accepts need CUDA: not run here",
    ),
    "C24": Elsewhere(
        source="numba/numba#2919",
        symptom="fast math assumes that nothing is infinite, and drops the guard of hidden rows",
        tests=(f"{HERE}::test_fast_math_drops_the_guard_of_hidden_rows",),
    ),
    "C25": Elsewhere(
        source="numba/numba#10188",
        symptom="Numba's own CUDA target takes the process down on a newer driver",
        tests=(
            "tests/test_isolation.py::test_a_crash_is_the_failure_of_its_check",
            "tests/test_registry.py::test_a_library_that_fails_to_import_says_why",
        ),
        left="which target runs on which driver needs CUDA: not run here",
    ),
    "C27": Elsewhere(
        source="Dao-AILab/flash-attention#366",
        symptom="a fixed tolerance refuses honest half results and lets wrong float32 ones pass",
        tests=(f"{HERE}::test_the_bound_is_right_where_a_fixed_tolerance_is_not",),
    ),
    "C28": Elsewhere(
        source="Dao-AILab/flash-attention#1079",
        symptom="a clock is read before the device is done, and the wrong one wins",
        tests=(f"{TURNS}::test_the_device_is_waited_for_once_a_chunk",),
    ),
    "C29": Elsewhere(
        source="flashinfer-ai/flashinfer-bench#195",
        symptom="the device is waited for after every call, and the wait is timed",
        tests=(
            f"{TURNS}::test_the_device_is_waited_for_once_a_chunk",
            f"{TURNS}::test_chunks_and_turns_last_as_long_as_they_should",
        ),
        left="what a flush of the device's cache costs needs CUDA: not run here",
    ),
    "C30": Elsewhere(
        source="pytorch/pytorch#149857",
        symptom="which is fastest has an answer for one device, shape, dtype and mask alone",
        tests=(
            "tests/test_reports.py::test_workloads_masks_modes_and_devices_are_ranked_apart",
            "tests/test_reports.py::test_timings_of_differing_environments_are_not_ranked",
            "tests/test_reports.py::test_what_is_tied_with_the_best_or_not_settled_shares_its_rank",
        ),
    ),
}


def test_every_entry_is_listed_once() -> None:
    shown = {trouble.entry for trouble in SHOWN}
    assert sorted(shown | set(ELSEWHERE)) == ENTRIES
    assert not shown & set(ELSEWHERE)


def failure(subject: Subject, trouble: Trouble) -> Result | None:
    """The first check of the standard level that fails, of those that the trouble names."""
    standard = {one.id for one in selected((trouble.dtype,), "standard")}
    for one in selected((trouble.dtype,), "standard", only=f"{trouble.requirement}:"):
        if one.id in standard and trouble.check in one.id:
            result = run_check(subject, one)
            if result.status == "failed":
                return result
    return None


@pytest.mark.parametrize("trouble", SHOWN, ids=str)
def test_the_trouble_is_convicted_and_named(trouble: Trouble) -> None:
    subject = load_subject(trouble.candidate)
    assert failure(subject, trouble)
    if trouble.line:
        assert any(trouble.line in line for line in diagnose(subject))


@pytest.mark.parametrize("entry", ELSEWHERE)
def test_what_covers_an_entry_exists(entry: str) -> None:
    root = Path(__file__).parents[1]
    for test in ELSEWHERE[entry].tests:
        path, name = test.split("::")
        assert re.search(rf"^def {name}\(", (root / path).read_text("utf-8"), re.MULTILINE), test


def test_the_simulator_is_no_device() -> None:
    """A kernel that a device runs right is wrong there, so neither proves anything of the other."""
    pytest.importorskip("numba")
    done = subprocess.run(
        [sys.executable, "-m", "tests.zoo.simulated"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["failed", "passed"]


def test_fast_math_drops_the_guard_of_hidden_rows() -> None:
    numba = pytest.importorskip("numba")
    guarded, unguarded = (
        load_subject(guarded_by_comparison(numba, fastmath=fastmath)) for fastmath in (False, True)
    )
    case = Case(mask="rows/B1LS", masked_rows="zero")
    assert check_case(guarded, case) <= 1
    with pytest.raises(Failed, match="got nan, expected 0"):
        check_case(unguarded, case)
    assert any("fully hidden rows NaN instead of 0" in line for line in diagnose(unguarded))


def test_the_bound_is_right_where_a_fixed_tolerance_is_not() -> None:
    tolerance = 1e-2
    honest = load_subject(UpstreamLayer)
    half = Case(dtype="bfloat16", data="large")
    assert abs(run(honest, half).out.astype(float) - exact(half).out).max() > tolerance
    assert check_case(honest, half) <= 1
    wrong = load_subject(ZOO["tf32-everywhere"])
    single = Case()
    assert abs(run(wrong, single).out - exact(single).out).max() < tolerance
    with pytest.raises(Failed):
        check_case(wrong, single)
