"""No requirement's checks could be left out: for each, a fault that they alone convict.

For every candidate of the table all checks of the standard level run, in one dtype. Some of its
requirement fail and all others pass: without them it would be conformant.
"""

from __future__ import annotations

import pytest

from fullattention.backends.precision import DTYPES
from fullattention.conformance.catalogue import catalogue, selected
from fullattention.conformance.contract import TEXT
from fullattention.conformance.ledger import is_conformant
from fullattention.conformance.subject import load_subject
from fullattention.conformance.trial import run_check
from fullattention.records import Result
from tests.zoo.faulty.backends import FAULTY_BACKENDS
from tests.zoo.faulty.layers import FAULTY_LAYERS
from tests.zoo.narrow import NARROW

SPECIMENS = {specimen.name: specimen for specimen in (*FAULTY_BACKENDS, *FAULTY_LAYERS, *NARROW)}

CONVICTED_BY_ONE = {
    "C1": "NotContiguous",
    "C2": "weights-path-short",
    "C3": "mutates-mask",
    "C4": "innermost-taken-for-dense",
    "C5": "heads-over-32",
    "C6": "NoFeaturesNan",
    "C7": "TauUsed",
    "C8": "MixesDtypes",
    "C9": "race-of-blocks",
    "C10": "batch-variant",
    "C11": "CausalMaskKept",
    "C12": "workspace-shared",
    "S1": "ScaleKept",
    "S2": "ZeroLiteral",
    "S3": "ScaleBeforeMask",
    "S4": "ScaleClipped",
    "M1": "MaskCheckedAlways",
    "M2": "LengthsAnswered",
    "M3": "AnyMaskKind",
    "M4": "MaskOfThreeAxes",
    "M5": "padding-by-80",
    "M6": "hidden-row-spoils-tile",
    "M7": "causal-minus-1e9",
    "N1": "long-values-coarse",
    "N2": "maximum-of-first-tile",
    "N3": "half-overflow",
    "N4": "mask-infinity-added",
    "N5": "features-128-in-float32",
    "W1": "WeightsNotContiguous",
    "W2": "weights-of-their-tile",
    "P1": "AnyProbability",
    "P2": "dropout-repeats",
    "P3": "dropout-frozen",
    "G1": "QueriesDecideGradient",
    "G2": "gradient-weights-ignored",
    "G3": "gradient-hidden-row-nan",
    "L1": "batches-over-65535",
    "L2": "MemoryErrorHidden",
}
"""Requirement -> the specimen that its checks alone convict."""

FULL_ONLY = ("L2",)
"""Requirements that the standard level has no check of: those of the full level join it."""


pytestmark = pytest.mark.usefixtures("one_thread")


def results_of(requirement: str) -> list[Result]:
    """What the standard level finds in the requirement's specimen, in one dtype."""
    subject = load_subject(SPECIMENS[CONVICTED_BY_ONE[requirement]].candidate)
    takes = [dtype for dtype in DTYPES if dtype in subject.precision]
    dtype = "float32" if "float32" in takes else takes[0]
    checks = catalogue((dtype,), "standard")
    if requirement in FULL_ONLY:
        checks += selected((dtype,), "full", only=f"{requirement}:")
    return [run_check(subject, one) for one in checks]


def test_every_requirement_is_listed() -> None:
    assert set(CONVICTED_BY_ONE) == set(TEXT)


@pytest.mark.proof
@pytest.mark.parametrize("requirement", CONVICTED_BY_ONE)
def test_a_fault_is_convicted_by_this_requirement_alone(requirement: str) -> None:
    results = results_of(requirement)
    failed = {one.check: one.requirement for one in results if one.status == "failed"}
    assert set(failed.values()) == {requirement}, failed
    assert is_conformant(one for one in results if one.requirement != requirement)
