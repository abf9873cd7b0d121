"""Traits of calls meet in few cases, and each of those cases is asked for once."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from fullattention.backends.precision import DTYPES
from fullattention.conformance import check
from fullattention.conformance.catalogue import LEVELS, catalogue
from fullattention.conformance.covering import covering
from fullattention.conformance.subject import load_subject
from fullattention.conformance.trial import run_check
from tests.zoo.faulty.combined import (
    COMBINED,
    LongPaddingLost,
    MaskedNotContiguous,
    Stepwise,
    WeightsEvalDrop,
    WideKeysGradientDoubled,
)
from tests.zoo.specimen import Specimen


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2, 4), (7, 5, 3, 3, 3)])
def test_any_two_values_meet_in_a_row_and_rows_are_few(sizes: tuple[int, ...]) -> None:
    rows = covering(*(range(n) for n in sizes))
    for one, other in itertools.combinations(range(len(sizes)), 2):
        met = {(row[one], row[other]) for row in rows}
        assert met == set(itertools.product(range(sizes[one]), range(sizes[other])))
    *_, second, longest = sorted(sizes)
    assert len(rows) <= 1.3 * second * longest
    assert rows == covering(*(range(n) for n in sizes))


@pytest.mark.parametrize("level", LEVELS)
def test_no_two_checks_share_an_id(level: str) -> None:
    ids = Counter(one.id for one in catalogue(DTYPES, level))
    assert [name for name, count in ids.items() if count > 1] == []


@pytest.mark.parametrize("specimen", COMBINED, ids=str)
def test_what_is_wrong_in_two_traits_at_once_is_wrong_in_nothing_else(specimen: Specimen) -> None:
    """Each breaks one rule of a layer that is right as it stands, in the plainest call of all."""
    only = ("C1: shape", "C2: shape=2,5,7,3,11,13 dtype=float32 weights", "S2: shape=2,5,7,3,11,13")
    plain = [one for one in catalogue(("float32",), "quick") if one.id.startswith(only)]
    for candidate in (specimen.candidate, Stepwise):
        results = [run_check(load_subject(candidate), one) for one in plain]
        assert {one.status for one in results} == {"passed"}, results


def test_a_diagnosis_names_the_shape_of_the_mask_that_alone_is_misread() -> None:
    verdict = check(LongPaddingLost, level="standard", dtypes=("float32",), only="C4: shape=2,6,")
    assert not verdict.conformant
    assert any("the mask is (B, 1, 1, S)" in line for line in verdict.diagnosis), verdict.diagnosis


@pytest.mark.parametrize(
    ("layer", "only", "says"),
    [
        (WideKeysGradientDoubled, "G1: gradient", "`gradient` only where E > "),
        (WeightsEvalDrop, "P1: p=", "`p=0.5 in eval` only where output_attention is on"),
        (MaskedNotContiguous, "C1: contiguous", "`contiguous` only where keys are hidden"),
    ],
)
def test_a_diagnosis_says_where_a_trial_fails_that_plain_calls_do_not_show(
    layer: type, only: str, says: str
) -> None:
    verdict = check(layer, level="standard", dtypes=("float32",), only=only)
    (line,) = verdict.diagnosis
    assert line.startswith("right in ")
    assert says in line
