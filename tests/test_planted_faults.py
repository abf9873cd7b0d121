"""The suite finds every fault of the zoo, names the broken rule, and accepts all that is right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fullattention.backends import Backend, UnsupportedError, standard
from fullattention.backends.precision import DTYPES
from fullattention.conformance import check
from fullattention.conformance.catalogue import catalogue
from fullattention.conformance.contract import SECTION_OF, TEXT
from fullattention.conformance.ledger import is_conformant
from fullattention.conformance.subject import load_subject
from fullattention.conformance.trial import run_check
from fullattention.records import Result, Verdict
from tests.zoo.attending import Call, Plain, right
from tests.zoo.faulty.backends import FAULTY_BACKENDS
from tests.zoo.faulty.combined import COMBINED
from tests.zoo.faulty.contract import refuses_masks
from tests.zoo.faulty.layers import FAULTY_LAYERS
from tests.zoo.faulty.making import on_out
from tests.zoo.faulty.mask import plus_minus_infinity
from tests.zoo.judging import first_failure, torchs_own
from tests.zoo.layers import NumpyLayer
from tests.zoo.specimen import Specimen, backend
from tests.zoo.valid import VALID

FAULTY = (*FAULTY_BACKENDS, *FAULTY_LAYERS)

MISSED_BY_QUICK = {
    "features-over-256",
    "queries-over-1024",
    "batches-over-256",
    "heads-over-32",
    "AutocastFill",
    "AutocastCasts",
    "AutocastStays",
    "CompiledMaskKept",
    "CompiledLengthKept",
    "half-batch-variant",
    "half-workspace-shared",
    "gradient-any-order",
    "batches-over-65535",
    "grid-overflows",
    "limit-unnamed",
    "third-tile-of-256",
    "third-tile-of-512",
    "long-causal",
    "MemoryErrorHidden",
    "MemoryErrorMisread",
    "MemoryErrorElsewhere",
    "CausalFeaturesLost",
    "CausalStridesIgnored",
    "MaskedColumnsLost",
    "LongPaddingLost",
    "LongKeyMaskLost",
    "ScaleAtMostTen",
    "InferenceRounds",
    "Float64InPlace",
    "GivenScaleInPlace",
    "ValuesClearedInTraining",
    "MaskInvertedWithWeights",
    "OneKeyAliased",
    "MaskedNotContiguous",
    "HalfCausalKeepsAll",
    "DropsByTileOf128",
    "QueriesDropByTileOf128",
    "WideKeysGradientDoubled",
    "MaskedFast64",
    "WholeTilesUnmasked",
    "WeightsFillFinite",
    "PaddingFillFinite",
    "LongHiddenRowsZero",
    "MaskedResultsOverwritten",
    "WeightsOverwritten",
    "MaskedWorkspaceShared",
    "TrainingStridesIgnored",
    "TrainingFeaturesLost",
}
"""What only `standard` or `full` finds: a size or a mode that would make `quick` slow."""


def _by_cost(specimen: Specimen) -> Any:
    """What is wrong in two traits at once is found late: those tests take long."""
    return pytest.param(specimen, marks=[pytest.mark.proof] * (specimen in COMBINED))


@pytest.mark.parametrize("specimen", [*map(_by_cost, FAULTY)], ids=str)
def test_standard_finds_the_fault_and_names_the_rule(specimen: Specimen) -> None:
    subject = load_subject(specimen.candidate)
    found = first_failure(subject, specimen.violates)
    assert found is not None, specimen.reason
    assert found.detail


@pytest.mark.proof
@pytest.mark.usefixtures("one_thread")
def test_quick_misses_only_what_is_listed() -> None:
    left = {specimen.name: load_subject(specimen.candidate) for specimen in FAULTY}
    for one in catalogue(DTYPES, "quick"):
        left = {
            name: subject
            for name, subject in left.items()
            if one.dtype not in subject.precision or run_check(subject, one).status != "failed"
        }
    assert set(left) == MISSED_BY_QUICK


@pytest.mark.proof
@pytest.mark.usefixtures("one_thread")
def test_standard_accepts_all_that_is_right() -> None:
    """Case by case rather than candidate by candidate, so that the oracle is asked once."""
    subjects = {specimen.name: load_subject(specimen.candidate) for specimen in VALID}
    results: dict[str, list[Result]] = {name: [] for name in subjects}
    for one in catalogue(DTYPES, "standard"):
        for name, subject in subjects.items():
            if one.dtype in subject.precision:
                results[name].append(run_check(subject, one))
    failures = [
        (name, result.check, result.detail)
        for name, found in results.items()
        for result in found
        if result.status in ("failed", "deviates") and not torchs_own(name, result)
    ]
    assert failures == []
    assert all(
        is_conformant([result for result in found if not torchs_own(name, result)])
        for name, found in results.items()
    )


def test_the_zoo_has_faults_of_every_kind_and_enough_of_them() -> None:
    kinds = Counter(specimen.kind for specimen in FAULTY)
    assert min(kinds.values()) >= 4
    assert set(kinds) == {
        "scale",
        "mask",
        "softmax",
        "layout",
        "precision",
        "dropout",
        "contract",
        "state",
        "special",
        "determinism",
        "cheat",
        "gradient",
        "limits",
    }
    assert len(FAULTY_BACKENDS) >= 120
    assert len(FAULTY_LAYERS) >= 40
    assert len(VALID) >= 15


def test_specimens_are_distinct_and_cite_the_contract() -> None:
    for group in (FAULTY_BACKENDS, FAULTY_LAYERS, VALID):
        assert len({specimen.name for specimen in group}) == len(group)
        assert len({specimen.reason for specimen in group}) == len(group)
    assert {rule for specimen in FAULTY for rule in specimen.violates} <= set(SECTION_OF)
    assert all(specimen.violates for specimen in FAULTY)
    assert not any(specimen.violates for specimen in VALID)


@pytest.mark.parametrize("name", ["mask-finfo-min", "right-20-times", "PolarityInverted"])
def test_the_verdict_on_a_fault_is_not_conformant(name: str) -> None:
    specimen = next(specimen for specimen in FAULTY if specimen.name == name)
    verdict = check(specimen.candidate, dtypes=("float32",))
    assert not verdict.conformant
    assert failed(verdict) & set(specimen.violates)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("PolarityInverted", "elements wrong"),
        ("LengthsAnswered", "answered instead of refused"),
        ("BareResult", "not a tuple"),
        ("SqueezesOneQuery", "has shape"),
        ("AlwaysFloat32", "has dtype float32, expected float64"),
        ("mutates-queries", "changed queries in place"),
        ("one-buffer", "a later call changed an earlier result"),
        ("dropout-of-output", "V is dropped, not the weights"),
        ("dropout-shared-by-heads", "h+1"),
        ("dropout-inverted", "weights are kept"),
        ("values-of-next-batch", "read b="),
        ("hidden-rows-zero", "got 0, expected nan"),
    ],
)
def test_the_message_says_what_is_wrong(name: str, words: str) -> None:
    specimen = next(specimen for specimen in FAULTY if specimen.name == name)
    subject = load_subject(specimen.candidate)
    assert any(
        words in run_check(subject, one).detail
        for one in catalogue(tuple(subject.precision), "standard")
        if one.requirement in specimen.violates
    )


# Deviations: declared, undeclared, stale.


LEAK = {"N4": "a NaN in a hidden key leaks"}


def leaking(deviates: dict[str, str]) -> Backend:
    return backend(
        "leaking", Plain(hide=plus_minus_infinity), dtypes=("float32",), deviates=deviates
    )


def test_a_declared_and_observed_deviation_is_reported_and_conformant() -> None:
    verdict = check(leaking(LEAK))
    deviating = [result for result in verdict.results if result.status == "deviates"]
    assert verdict.conformant
    assert {result.requirement for result in deviating} == {"N4"}
    assert all(LEAK["N4"] in r.detail and "observed" in r.detail for r in deviating)


def test_the_same_deviation_undeclared_fails() -> None:
    verdict = check(leaking({}))
    assert not verdict.conformant
    assert failed(verdict) == {"N4"}


def test_no_deviation_can_be_declared_from_being_right() -> None:
    everything = dict.fromkeys(set(TEXT) - {"C9"}, "meh")
    verdict = check(backend("null", on_out(np.zeros_like), deviates=everything))
    assert not verdict.conformant
    assert failed(verdict) == {"N1", "N5"}
    details = [result.detail for result in verdict.results if result.status == "failed"]
    assert all("no deviation can be declared from N" in detail for detail in details)


def test_a_deviation_that_is_no_longer_observed_fails() -> None:
    cured = backend("cured", right, dtypes=("float32",), deviates=LEAK)
    verdict = check(cured, level="standard")
    assert not verdict.conformant
    (stale,) = [result for result in verdict.results if result.status == "failed"]
    assert "no longer observed" in stale.detail


def test_a_deviation_excuses_its_own_requirement_only() -> None:
    masked = backend("masked", Plain(hidden=lambda call: None), dtypes=("float32",), deviates=LEAK)
    assert "M4" in failed(check(masked, only="M4: shape=2,5,7,3,11,13 dtype=float32"))


def raises_on_nan(call: Call) -> Any:
    if any(np.isnan(x.astype(np.float32)).any() for x in (call.q, call.k, call.v)):
        raise FloatingPointError("NaN in the input")
    return right(call)


def test_a_deviation_excuses_wrong_answers_and_no_exception() -> None:
    verdict = check(backend("raises", raises_on_nan, dtypes=("float32",), deviates=LEAK))
    assert {r.requirement for r in verdict.results if "raised FloatingPoint" in r.detail} == {"N4"}
    assert failed(verdict) == {"N4"}


# Lacks: declared, undeclared.


def refusing_masks(**fields: Any) -> Verdict:
    candidate = backend("refusing", refuses_masks, dtypes=("float32",), **fields)
    return check(candidate, only="M4: shape=2,5,7,3,11,13 dtype=float32 mask=random/BHLS")


def test_a_refusal_for_want_of_what_is_not_declared_lacking_fails() -> None:
    (undeclared,) = refusing_masks().results
    assert undeclared.status == "failed"
    assert "refused for want of 'mask', which it does not declare lacking" in undeclared.detail
    (declared,) = refusing_masks(lacks={"mask": "not written yet"}).results
    assert declared.status == "unsupported"


def test_a_refusal_of_a_dtype_that_is_declared_fails() -> None:
    def refuses_float32(call: Call) -> Any:
        raise UnsupportedError("odd", "float32", "not today")

    verdict = check(backend("odd", refuses_float32, dtypes=("float32",)), only="C1: contiguous")
    assert {result.status for result in verdict.results} == {"failed"}


def test_a_refusal_of_a_size_stays_unsupported() -> None:
    def refuses_sizes(call: Call) -> Any:
        raise UnsupportedError("small", "a call of this size", "E = 11: at most 4")

    verdict = check(backend("small", refuses_sizes, dtypes=("float32",)), only="C1: shape=3")
    assert {result.status for result in verdict.results} == {"unsupported"}


@pytest.mark.parametrize("reason", ["because", "float32 alone"])
def test_a_refusal_for_want_of_no_capability_must_name_a_limit(reason: str) -> None:
    def refuses(call: Call) -> Any:
        raise UnsupportedError("odd", "speed", reason)

    verdict = check(backend("odd", refuses, dtypes=("float32",)), only="C1: contiguous")
    result = verdict.results[0]
    assert result.status == "failed"
    assert f"'speed', which is no capability, and no limit is named: {reason}" in result.detail


# Candidates that answer nothing, or rubbish.


def refuses_everything(call: Call) -> Any:
    raise UnsupportedError("shy", "this call", "it takes none")


def raises(call: Call) -> Any:
    raise MemoryError("nothing left")


def raises_wordlessly(call: Call) -> Any:
    raise ValueError


def prints(call: Call) -> Any:
    print("2 passed")
    return None, None


RUBBISH = {
    "raises": raises,
    "raises-wordlessly": raises_wordlessly,
    "prints": prints,
    "text": lambda call: ("passed", None),
    "numbers": lambda call: (1.0, 2.0),
    "not-a-number": lambda call: (np.full_like(call.v[:, :1], np.nan), None),
    "nothing": lambda call: None,
}


def test_a_backend_that_refuses_everything_is_not_conformant() -> None:
    verdict = check(backend("shy", refuses_everything))
    assert not verdict.conformant
    assert all(r.ratio is None for r in verdict.results if r.status == "passed")


@pytest.mark.parametrize("name", RUBBISH)
def test_rubbish_is_not_conformant_and_does_not_stop_the_run(name: str) -> None:
    candidate = backend(name, RUBBISH[name], dtypes=("float32",))
    verdict = check(candidate)
    assert not verdict.conformant
    assert len(verdict.results) == len(catalogue(("float32",), "quick"))


def test_an_error_that_names_nothing_is_a_warning_and_an_empty_one_fails() -> None:
    def refusing(message: str) -> type:
        class Refusing(NumpyLayer):
            def check(self, *arrays: Any) -> None:
                if len({x.ndim for x in arrays}) > 1:
                    raise ValueError(message)
                super().check(*arrays)

        return Refusing

    def result(message: str) -> Result:
        only = "C8: q is 3-D"
        (found,) = check(refusing(message), only=only, dtypes=("float32",)).results
        return found

    assert result("").status == "failed"
    assert result("no").warning == "the error names no argument, shape or dtype: 'no'"
    for message in ("queries must have four axes", "got (5, 3, 11)", "expected Float"):
        assert (result(message).status, result(message).warning) == ("passed", "")


def test_a_class_without_the_constructor_is_not_conformant() -> None:
    class Bare:
        pass

    verdict = check(Bare, dtypes=("float32",))
    assert not verdict.conformant
    assert "TypeError" in verdict.results[0].detail


def test_a_candidate_cannot_change_the_inputs_that_later_checks_use() -> None:
    def spoils(call: Call) -> Any:
        for x in (call.q, call.k, call.v):
            x[...] = 0
        return right(call)

    check(backend("spoils", spoils, dtypes=("float32",)))
    assert check(backend("right", right, dtypes=("float32",))).conformant


def test_a_looser_declared_precision_hides_no_faulty_mask() -> None:
    loose = {dtype: replace(standard(dtype), u_in=2.0**-8, u_weights=2.0**-8) for dtype in DTYPES}
    for specimen in FAULTY_BACKENDS:
        if specimen.kind == "mask" and isinstance(specimen.candidate, Backend):
            declared = {d: loose[d] for d in specimen.candidate.precision}
            candidate = replace(specimen.candidate, precision=declared)
            found = first_failure(load_subject(candidate), specimen.violates)
            assert found is not None, specimen.name


def test_only_a_comparison_of_numbers_makes_conformant() -> None:
    """Refusing what must be refused is not enough."""

    class OnlyRefuses(NumpyLayer):
        def check(self, *arrays: Any) -> None:
            raise ValueError("always refused")

    verdict = check(OnlyRefuses, only="C8", dtypes=("float32",))
    unanswered, *more = [result for result in verdict.results if result.status == "failed"]
    assert unanswered.check.startswith("C8: plain call is answered")
    assert not more
    assert not is_conformant(one for one in verdict.results if one is not unanswered)


def failed(verdict: Verdict) -> set[str]:
    return {result.requirement for result in verdict.results if result.status == "failed"}
