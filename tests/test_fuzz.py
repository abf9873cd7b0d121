"""Random cases: what is drawn, what is found, and how it is repeated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fullattention import Backend, UnavailableError, load
from fullattention.backends import numpy_matmul
from fullattention.backends.interface import Sizes
from fullattention.backends.precision import DTYPES, stored
from fullattention.backends.registry import BUILT_IN
from fullattention.conformance import masks
from fullattention.conformance.bound import attention_bound
from fullattention.conformance.case import Case
from fullattention.conformance.data import REGIMES
from fullattention.conformance.fuzz import (
    Fuzzed,
    case_text,
    fuzz,
    fuzz_case,
    parse_case,
    random_case,
    uses,
)
from fullattention.conformance.layouts import LAYOUTS
from fullattention.conformance.poison import POISONS
from tests.available import each
from tests.zoo.faulty.limits import LIMITS


def draw(seed: int, dtype: str = "float32", avoid: frozenset[str] = frozenset()) -> Case:
    return random_case(np.random.default_rng(seed), dtype, avoid)


@functools.cache
def sample() -> tuple[Case, ...]:
    return tuple(draw(seed) for seed in range(3000))


def matmul_but(change: Callable[..., dict[str, Any]]) -> Backend:
    """numpy-matmul with its arguments changed."""

    def attend(q: Any, k: Any, v: Any, **options: Any) -> Any:
        return numpy_matmul.attend(**change(q=q, k=k, v=v, **options))

    right = load("numpy-matmul")
    return Backend(
        name="planted",
        attend=attend,
        arrays=right.arrays,
        precision={"float32": right.precision["float32"]},
        masked_rows="nan",
        lacks={"dropout": "not asked for"},
    )


def lose_last_key(**call: Any) -> dict[str, Any]:
    """A tile loop that forgets its remainder, where that is one key and nothing is hidden."""
    if call["k"].shape[1] % 16 == 1 and call["k"].shape[1] > 1 and call["hidden"] is None:
        call |= {"k": call["k"][:, :-1], "v": call["v"][:, :-1]}
        call["causal"] = False
    return call


def misplace_scale(**call: Any) -> dict[str, Any]:
    return call | {"scale": call["scale"] * 1.001}


def test_what_a_case_says_is_enough_to_make_it_again() -> None:
    for case in sample()[:300]:
        assert parse_case(str(case)) == case
        assert str(parse_case(str(case))) == str(case)


@settings(max_examples=200, deadline=None)
@given(
    case=st.builds(
        Case,
        shape=st.builds(Sizes, *[st.integers(1, 99)] * 6),
        dtype=st.sampled_from(DTYPES),
        data=st.sampled_from(sorted(REGIMES)),
        poison=st.sampled_from(["", *POISONS]),
        mask=st.sampled_from([masks.OFF, masks.CAUSAL, "random/", "tail/1", "band/B1LS"]),
        scale=st.none() | st.floats(allow_nan=False),
        weights=st.booleans(),
        layout=st.sampled_from(sorted(LAYOUTS)),
        on=st.sampled_from(["q", "kv", "qkv"]),
        masked_rows=st.sampled_from(["nan", "zero"]),
        seed=st.integers(0, 10**9),
    )
)
def test_every_case_reads_back_from_its_text(case: Case) -> None:
    assert parse_case(str(case)) == case
    assert str(parse_case(str(case))) == str(case)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "no field=value"),
        ("height=3", "no field=value of a case: shape, dtype"),
        ("shape=1,2,3", "B,L,S,H,E,D"),
        ("shape=1,2,3,4,5,0", "positive"),
        ("dtype=float8", "one of float64"),
        ("data=even", "one of normal"),
        ("poison=arsenic", "one of"),
        ("mask=random", "pattern/axes"),
        ("mask=random/SL", "the last 0 to 4 of B, H, L, S"),
        ("mask=later/S", "the last 2 to 4"),
        ("mask=random/LBHLS", "axes"),
        ("scale=much", "a number or None"),
        ("weights=1", "one of True, False"),
        ("layout=round", "one of contiguous"),
        ("on=x", "letters among q, k and v"),
        ("masked_rows=mean", "one of nan, zero"),
        ("seed=-1", "a whole number"),
    ],
)
def test_a_wrong_word_is_refused_with_its_rule(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=text.partition("=")[0]) as caught:
        parse_case(text)
    assert says in str(caught.value)


def test_a_call_that_must_be_refused_is_no_case_to_try() -> None:
    case = parse_case("shape=1,2,3,1,2,2 dtype=float32 mask=causal")
    with pytest.raises(ValueError, match="mask is 'causal': that needs L = S or L = 1"):
        fuzz_case("numpy-matmul", case)


def test_everything_a_case_can_say_is_drawn() -> None:
    cases = sample()
    assert {case.data for case in cases} == set(REGIMES)
    assert {case.poison for case in cases} == {"", *POISONS}
    assert {case.layout for case in cases} == set(LAYOUTS)
    assert {case.mask.partition("/")[0] for case in cases} == {"off", "causal", *masks.PATTERNS}
    axes = {case.mask.partition("/")[2] for case in cases}
    assert {"", "S", "1S", "LS", "B11S", "B1LS", "BHLS"} <= axes
    scales = {case.scale for case in cases}
    assert {None, 0.0, 0.3, -0.3} <= scales
    assert {case.masked_rows for case in cases} == {"nan", "zero"}
    assert {case.weights for case in cases} == {True, False}
    lengths = {case.shape.S for case in cases}
    assert {*range(1, 21), 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257} <= lengths


def test_long_calls_are_drawn_with_every_kind_of_mask() -> None:
    long = {case.mask.partition("/") for case in sample() if min(case.shape[1:3]) > 512}
    assert {name for name, _, _ in long} == {"off", "causal", *masks.PATTERNS}
    assert {"LS", "BHLS"} <= {axes for _, _, axes in long}


@pytest.mark.parametrize("name", ["third-tile-of-256", "long-masked", "long-both-ways"])
def test_what_is_wrong_in_long_calls_alone_is_found(name: str) -> None:
    (specimen,) = [one for one in LIMITS if one.name == name]
    (found,) = fuzz(specimen.candidate, count=400, dtypes=("float32",))
    assert not found.ok


def test_what_is_to_be_avoided_is_not_drawn() -> None:
    avoid = frozenset({"weights", "causal", "wide_scores", "masked_rows=zero", "N4", "S3"})
    for seed in range(300):
        case = draw(seed, "float16", avoid)
        assert not uses(case) & avoid
        assert not case.weights
        assert case.mask == masks.OFF or (case.scale or 0) >= 0


def test_the_same_seed_gives_the_same_cases_and_another_others() -> None:
    first, again, other = (
        [result.check for result in fuzz("numpy-matmul", count=5, seed=seed)[0].results]
        for seed in (0, 0, 1)
    )
    assert first == again
    assert not set(first) & set(other)


@pytest.mark.parametrize("name", each(BUILT_IN))
def test_no_built_in_backend_exceeds_its_bound(name: str) -> None:
    try:
        load(name)
    except UnavailableError as error:
        pytest.skip(error.reason)
    for found in fuzz(name, count=12, seed=1):
        assert found.worst is not None
        assert not [f"{result.check}: {result.detail}" for result in found.failures]
        assert found.ok


@pytest.mark.parametrize("fault", [lose_last_key, misplace_scale])
def test_a_fault_is_found_with_the_case_that_shows_it(
    fault: Callable[..., dict[str, Any]],
) -> None:
    backend = matmul_but(fault)
    (found,) = fuzz(backend, count=150)
    assert not found.ok
    case = parse_case(case_text(found.failures[0]))
    assert fuzz_case(backend, case).failures == found.failures[:1]


def test_scores_too_large_to_be_told_apart_leave_either_key_possible() -> None:
    q = np.full((1, 1, 1, 1), 1e14)
    k = np.array([1.0, 1.004]).reshape(1, 2, 1, 1) * 1e14  # apart by one bfloat16 rounding
    v = np.array([-1.0, 1.0]).reshape(1, 2, 1, 1)
    found = attention_bound(q, k, v, hidden=None, scale=1.0, precision=stored("bfloat16"))
    assert found.out.item() == 1
    assert found.out_bound.item() >= 2


def test_nothing_compared_is_not_ok() -> None:
    assert not Fuzzed(dtype="float32", results=()).ok


def test_a_wrong_request_is_refused() -> None:
    with pytest.raises(ValueError, match="count is 0: at least 1"):
        fuzz("numpy-matmul", count=0)
    with pytest.raises(ValueError, match="dtype float8: numpy-matmul takes float64"):
        fuzz("numpy-matmul", dtypes=("float8",))
