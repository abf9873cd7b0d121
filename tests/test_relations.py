"""Each relation and each pair of calls convicts by itself, and nothing that is right."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fullattention.backends import UnavailableError
from fullattention.backends.interface import Array, Sizes
from fullattention.backends.precision import DTYPES
from fullattention.conformance import arguments, relations
from fullattention.conformance.call import call_of, expected_of
from fullattention.conformance.case import Case
from fullattention.conformance.check import Check
from fullattention.conformance.contract import SECTION_OF
from fullattention.conformance.relations import CAUSAL
from fullattention.conformance.subject import Subject, load_subject
from fullattention.conformance.trial import run_check
from tests.zoo.attending import Plain, right, scores
from tests.zoo.faulty.backends import FAULTY_BACKENDS
from tests.zoo.faulty.layers import FAULTY_LAYERS
from tests.zoo.layers import NumpyLayer
from tests.zoo.specimen import backend

BACKENDS = (
    "numpy-reference",
    "numpy-matmul",
    "torch-einsum",
    "torch-sdpa-math",
    "torch-sdpa-flash",
    "numba-cpu",
    "numba-cpu-torch",
)

ZOO = {specimen.name: specimen.candidate for specimen in (*FAULTY_BACKENDS, *FAULTY_LAYERS)}


def clipped(x: Array) -> Array:
    return np.maximum(x, x.dtype.type(-1))


class InverseOfE(NumpyLayer):
    def factor_on_scores(self, E: int, unused: dict[str, Any]) -> float:
        return self.scale or 1 / E


class DeltaUsed(NumpyLayer):
    def factor_on_scores(self, E: int, unused: dict[str, Any]) -> float:
        delta = unused.get("delta")
        return super().factor_on_scores(E, unused) * (1 if delta is None else float(delta.flat[0]))


class ScaledInTraining(NumpyLayer):
    def factor_on_scores(self, E: int, unused: dict[str, Any]) -> float:
        return super().factor_on_scores(E, unused) * (2 if self.training else 1)


OWN: dict[str, Any] = {
    "queries-clipped": backend("own", Plain(scores=lambda q, k: scores(clipped(q), k))),
    "values-clipped": backend("own", Plain(read_values=lambda v: clipped(v.swapaxes(1, 2)))),
    "queries-unread": backend("own", Plain(scores=lambda q, k: scores(q * 0 + 1, k))),
    "keys-unread": backend("own", Plain(scores=lambda q, k: scores(q, k * 0 + 1))),
    "values-unread": backend("own", lambda c: right(c.but(v=c.v * 0 + 1))),
    "InverseOfE": InverseOfE,
    "DeltaUsed": DeltaUsed,
    "ScaledInTraining": ScaledInTraining,
}

CONVICTED = {
    "relation: every key twice": "one-in-sum",
    "relation: keys in another order": "keys-tail-dropped",
    "relation: one vector added to all keys": "padding-in-sum",
    "relation: features in another order": "features-tail-dropped",
    "relation: hidden keys appended": "mask-ignored",
    "relation: every other query": "row-0-for-all",
    "relation: heads reversed and one left out": "head-0-for-all",
    "relation: first batch entry left out": "values-of-next-batch",
    "relation: columns reversed and some left out": "columns-over-e",
    "relation: causal prefix": "causal-ignored",
    "relation: causal by a mask": "causal-strict",
    "relation: q and k negated": "queries-clipped",
    "relation: values times -2": "values-clipped",
    "relation: scale / 4 and q times 4": "scale-ignored",
    "relation: causally the first query gets V[0]": "causal-loose",
    "relation: V within the range of the values": "mask-after-softmax",
    "relation: scale near 0 gives the mean of the values": "largest-key-only",
    "relation: identity as V gives weights": "hidden-weights-not-zero",
    "relation: keys in two parts, merged": "fast-exp",
    "relation: identity as V gives the weights": "weights-of-another-call",
    "pair: queries changes V, other numbers": "queries-unread",
    "pair: keys changes V, other numbers": "keys-unread",
    "pair: values changes V, other numbers": "values-unread",
    "pair: scale changes V, 0.3 and 2.5": "ScaleIgnored",
    "pair: scale changes V, 0.5 and -0.5": "scale-absolute",
    "pair: attn_mask changes V, some keys hidden and none": "UpstreamMaskDropped",
    "pair: mask_flag changes V, a mask given, on and off": "FlagIgnored",
    "pair: mask_flag changes V, no mask given, on and off": "CausalDropped",
    "pair: masked_rows changes V, 'nan' and 'zero'": "mask-finfo-min",
    "pair: attention_dropout changes V, 0 and 0.5 in training": "DropoutIgnored",
    "pair: train changes V, dropout 0.5, in eval and in training": "DropoutIgnored",
    "pair: scale changes nothing, None and 0": "ZeroLiteral",
    "pair: scale changes nothing, None and 0.0": "FusedZeroLiteral",
    "pair: scale changes nothing, None and 1 / sqrt(E)": "InverseOfE",
    "pair: attn_mask changes nothing, mask_flag off, a mask and none": "FlagIgnored",
    "pair: output_attention changes nothing, on and off": "weights-change-v",
    "pair: output_attention changes nothing, a mask given, on and off": "WeightsChangeV",
    "pair: factor changes nothing, 5 and 1": "FactorUsed",
    "pair: tau changes nothing, none and 7.5": "TauUsed",
    "pair: delta changes nothing, none and 7.5": "DeltaUsed",
    "pair: attention_dropout changes nothing, 0 and 0.5 in eval": "DropoutInEval",
    "pair: train changes nothing, dropout 0, in eval and in training": "ScaledInTraining",
}
"""What is tried, without its case -> a candidate that it fails."""


def name_of(check: Check) -> str:
    return check.label.partition(" shape=")[0]


def checks_of(dtype: str) -> Iterator[Check]:
    for section in (relations, arguments):
        yield from section.checks(dtype, dtype == "float32")


def failures(subject: Subject, dtype: str, name: str = "") -> list[str]:
    results = (
        run_check(subject, one)
        for one in checks_of(dtype)
        if one.dtype in subject.precision and name in ("", name_of(one))
    )
    return [f"{result.check}: {result.detail}" for result in results if result.status == "failed"]


@pytest.mark.parametrize("name", CONVICTED)
def test_each_convicts_by_itself(name: str) -> None:
    candidate = {**ZOO, **OWN}[CONVICTED[name]]
    assert failures(load_subject(candidate), "float32", name)


def test_every_relation_and_pair_has_something_that_it_convicts() -> None:
    assert {name_of(one) for one in checks_of("float32")} == set(CONVICTED)


@pytest.mark.proof
@pytest.mark.parametrize("name", BACKENDS)
def test_what_is_right_keeps_every_relation_in_every_dtype(name: str) -> None:
    try:
        subject = load_subject(name)
    except UnavailableError as error:
        pytest.skip(error.reason)
    assert [line for dtype in subject.precision for line in failures(subject, dtype)] == []


@pytest.mark.parametrize(
    ("candidate", "name", "words"),
    [
        (
            "ScaleIgnored",
            "pair: scale changes V, 0.3 and 2.5",
            "ignores `scale`: with 0.3 and 2.5 V is the same",
        ),
        (
            "TauUsed",
            "pair: tau changes nothing, none and 7.5",
            "`tau` changes V: with none and 7.5 it differs by up to",
        ),
    ],
)
def test_a_pair_names_the_argument_and_what_became_of_it(
    candidate: str, name: str, words: str
) -> None:
    (line,) = failures(load_subject(ZOO[candidate]), "float32", name)
    assert words in line


def test_no_oracle_decides_between_two_results() -> None:
    """A candidate that is off by as much everywhere keeps the relations, and is left to others."""
    shifted = backend("shifted", lambda c: (right(c)[0] * 0 + 1, None), dtypes=("float32",))
    kept = "relation: every key twice"
    assert failures(load_subject(shifted), "float32", kept) == []


WITHOUT_CHANCE = [pair for pair in arguments.DIFFERENT if "dropout" not in pair.needs]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pair", WITHOUT_CHANCE, ids=lambda pair: f"{pair.argument}-{pair.label}")
def test_what_must_differ_differs_by_far_more_than_rounding(
    pair: arguments.Pair, dtype: str
) -> None:
    subject = load_subject("torch-sdpa-math")
    case = Case(dtype=dtype, mask=pair.mask)
    case = case.but(shape=relations.SQUARE) if pair.mask == CAUSAL else case
    one, other = (
        expected_of(subject, change(call_of(case))) for change in (pair.first, pair.second)
    )
    apart = np.where(np.isnan(one.out) & np.isnan(other.out), 0.0, abs(one.out - other.out))
    assert (np.isnan(apart) | (apart > 4 * (one.out_bound + other.out_bound))).any()


def test_labels_are_distinct_and_cite_the_contract() -> None:
    for dtype in DTYPES:
        ids = [one.id for one in checks_of(dtype)]
        assert len(set(ids)) == len(ids)
    assert {one.requirement for one in checks_of("float32")} <= set(SECTION_OF)


# The same relations on shapes and data that nobody chose.


SIZES = st.builds(
    Sizes,
    B=st.integers(2, 3),
    L=st.integers(2, 9),
    S=st.integers(3, 20),
    H=st.integers(2, 3),
    E=st.integers(1, 17),
    D=st.integers(2, 9),
)

TRIALS = [(name, trial, mask) for _, name, trial, mask in relations.trials()]


@settings(derandomize=True, deadline=None, max_examples=150, database=None)
@given(
    trial=st.sampled_from(TRIALS),
    shape=SIZES,
    dtype=st.sampled_from(DTYPES),
    data=st.sampled_from(("normal", "uniform", "large", "staircase", "value-offset")),
    seed=st.integers(0, 2**31),
)
def test_relations_hold_for_any_shape_and_data(
    trial: tuple[str, Any, str], shape: Sizes, dtype: str, data: str, seed: int
) -> None:
    _, holds, mask = trial
    if mask == CAUSAL:
        shape = shape._replace(S=shape.L)
    case = Case(shape=shape, dtype=dtype, data=data, mask=mask, seed=seed)
    ratio = holds(load_subject("numpy-matmul"), case)
    assert math.isfinite(ratio)
