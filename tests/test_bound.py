"""The oracle and its bound: right where it can be worked out, never below an honest error."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import pytest

from fullattention import FullAttention, load, names
from fullattention.backends import Precision, flash, prescaled, standard, stored, tf32
from fullattention.backends.interface import Sizes
from fullattention.backends.precision import DTYPES, UNIT_ROUNDOFF, widest
from fullattention.conformance import masks
from fullattention.conformance.bound import Expected, attention_bound, error_over_bound, ratios
from fullattention.conformance.case import Case, check_case, expected, inputs
from fullattention.conformance.data import REGIMES
from fullattention.conformance.layouts import LAYOUTS
from fullattention.conformance.subject import Subject, load_subject
from fullattention.layer import resolve_scale
from tests.available import each, found
from tests.zoo.attending import Call, Plain, Tiled, product, right, scores
from tests.zoo.faulty.precision import to_tf32
from tests.zoo.specimen import backend, tiled


def bound_of(case: Case, precision: Precision) -> Expected:
    return attention_bound(
        *inputs(case),
        hidden=masks.hidden_by(case.mask, case.shape, case.seed),
        scale=resolve_scale(case.scale, case.shape.E),
        precision=precision,
        masked_rows=case.masked_rows,
    )


def attend_one_row(
    raw_scores: list[float], values: list[float], precision: Precision, scale: float = 1.0
) -> Expected:
    """One query of one feature, so that the keys are the scores."""
    q = np.ones((1, 1, 1, 1))
    k = np.array(raw_scores).reshape(1, -1, 1, 1)
    v = np.array(values).reshape(1, -1, 1, 1)
    return attention_bound(q, k, v, hidden=None, scale=scale, precision=precision)


# Worked out by hand.


def test_one_key_gets_all_the_weight_and_its_error_is_rounding_only() -> None:
    got = attend_one_row([0.7], [3.0], standard("float32"))
    u = UNIT_ROUNDOFF["float32"]
    assert got.weights.item() == 1
    assert got.out.item() == 3
    assert 3 * u < got.out_bound.item() < 3 * 12 * u


def test_two_keys_share_the_weight_as_their_exponentials() -> None:
    got = attend_one_row([0.0, math.log(3)], [0.0, 4.0], standard("float64"))
    np.testing.assert_allclose(got.weights.ravel(), [0.25, 0.75], rtol=1e-15)
    np.testing.assert_allclose(got.out.item(), 3.0, rtol=1e-15)


def test_the_scale_multiplies_the_scores() -> None:
    scaled = attend_one_row([0.0, 2.0], [0.0, 1.0], standard("float64"), scale=0.5)
    np.testing.assert_allclose(scaled.out.item(), 1 / (1 + math.exp(-1)), rtol=1e-15)


def test_a_hidden_key_has_weight_0_and_no_room_for_error() -> None:
    case = Case(mask="tail/LS")
    got = bound_of(case, standard("float32"))
    hidden = np.broadcast_to(masks.build(case.mask, case.shape, 0), got.weights.shape)
    assert (got.weights[hidden] == 0).all()
    assert (got.weights_bound[hidden] == 0).all()
    assert (got.weights_bound[~hidden] > 0).all()


@pytest.mark.parametrize(("rows", "value"), [("nan", math.nan), ("zero", 0.0)])
def test_a_fully_hidden_row_holds_what_its_profile_says(rows: str, value: float) -> None:
    case = Case(mask="rows/B1LS", masked_rows=rows)  # type: ignore[arg-type] # one of the two
    got = bound_of(case, standard("float32"))
    hidden = np.asarray(masks.build(case.mask, case.shape, 0).all(-1))[:, 0]
    assert hidden.any()
    assert not hidden.all()
    np.testing.assert_equal(np.unique(got.out[hidden]), [value])
    assert np.isfinite(got.out[~hidden]).all()


# Every backend that runs here.


AVAILABLE = [name for name in names() if found(name) is not None]
WITH_WEIGHTS = [name for name in AVAILABLE if "weights" not in load(name).lacks]


@pytest.mark.parametrize("name", each(WITH_WEIGHTS))
def test_the_known_row_comes_out_of_every_backend(name: str) -> None:
    """Raw scores of one row with E = 8, so they are divided by sqrt(8)."""
    arrays = load(name).arrays
    q, k = np.zeros((1, 1, 1, 8), np.float32), np.zeros((1, 6, 1, 8), np.float32)
    q[..., 0] = 1
    k[0, :, 0, 0] = [0.41, -0.12, 0.67, 0.08, -0.23, 0.31]
    layer = FullAttention(mask_flag=False, output_attention=True, backend=name).eval()
    _, weights = layer(arrays.put(q, "cpu"), arrays.put(k, "cpu"), arrays.put(k, "cpu"), None)
    np.testing.assert_allclose(
        arrays.take(weights).ravel(),
        [0.1793, 0.1486, 0.1965, 0.1595, 0.1430, 0.1730],
        atol=5e-5,
    )


@pytest.mark.parametrize("name", each(AVAILABLE))
def test_the_toy_shape_keeps_its_layout_in_every_backend(name: str) -> None:
    """B = E = D = 8 and L = S = 6, where swapped axes still fit: only the numbers tell."""
    case = Case(shape=Sizes(8, 6, 6, 2, 8, 8), weights=name in WITH_WEIGHTS)
    assert check_case(load_subject(name), case) <= 1


# The bound is no smaller than honest errors.


SHAPES = (Sizes(1, 2, 3, 1, 1, 2), Sizes(2, 3, 9, 2, 5, 3), Sizes(1, 4, 33, 1, 16, 4))
MASKS = (masks.OFF, "random/BHLS")


@functools.cache
def honest(name: str) -> Subject:
    if name == "plain":
        return load_subject(backend("plain", right))
    if name == "tiled":
        return load_subject(backend("tiled", Tiled(tile=8), precision=tiled(8)))
    return load_subject(name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("regime", REGIMES)
def test_no_honest_implementation_exceeds_its_bound(regime: str, dtype: str) -> None:
    for seed, (shape, mask) in enumerate((s, m) for s in SHAPES for m in MASKS):
        case = Case(shape=shape, dtype=dtype, data=regime, mask=mask, seed=seed)
        for name in ("plain", "tiled", "torch-einsum", "torch-sdpa"):
            subject = honest(name)
            if regime == "wide-scores" and "wide_scores" in subject.lacks:
                continue
            weights = "weights" not in subject.lacks
            assert check_case(subject, case.but(weights=weights)) <= 1  # it raises beyond 1


def test_honest_half_errors_come_close_to_their_bound() -> None:
    """A bound that is far too large would hide faults."""
    subject = honest("plain")
    worst = max(check_case(subject, Case(dtype="float16", seed=seed)) for seed in range(8))
    assert worst > 0.5


# It is smaller than errors that are not.


@pytest.mark.parametrize("regime", ["normal", "uniform", "log-normal", "outlier-feature"])
def test_tf32_operands_exceed_the_float32_bound(regime: str) -> None:
    for method in (
        Plain(scores=lambda q, k: scores(to_tf32(q), to_tf32(k))),
        Plain(product=lambda a, v: product(to_tf32(a), to_tf32(v))),
    ):
        method_out, _ = method(call_of(Case(data=regime)))
        want = bound_of(Case(data=regime), standard("float32"))
        assert error_over_bound(method_out, want.out, want.out_bound) > 1


def call_of(case: Case) -> Call:
    q, k, v = inputs(case)
    scale = resolve_scale(case.scale, case.shape.E)
    return Call(q=q, k=k, v=v, hidden=None, causal=False, scale=scale, dropout=0.0, weights=False)


@pytest.mark.parametrize(
    ("dtype", "relative"),
    [("float64", 1e-12), ("float32", 1e-4), ("float16", 4e-3), ("bfloat16", 3e-2)],
)
def test_a_relative_error_of_known_size_exceeds_it(dtype: str, relative: float) -> None:
    want = bound_of(Case(dtype=dtype), standard(dtype))
    assert error_over_bound(want.out * (1 + relative), want.out, want.out_bound) > 1
    assert error_over_bound(want.weights * (1 + relative), want.weights, want.weights_bound) > 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_oracle_is_asked_once_for_all_cases_of_the_same_numbers(layout: str) -> None:
    plain = Case(mask="random/BHLS")
    case = plain.but(layout=layout, on="k", weights=True)
    same = all(map(np.array_equal, inputs(case), inputs(plain)))
    model = standard("float32")
    assert (expected(case, model) is expected(plain, model)) == same
    assert np.array_equal(expected(case, model).out, bound_of(case, model).out)


def test_the_ratio_is_the_error_in_units_of_the_bound() -> None:
    want = bound_of(Case(), standard("float32"))
    assert error_over_bound(want.out, want.out, want.out_bound) == 0
    got = want.out.copy()
    got[1, 2, 1, 3] += 3 * want.out_bound[1, 2, 1, 3]
    assert error_over_bound(got, want.out, want.out_bound) == pytest.approx(3)


def test_the_bound_stays_tight_under_an_offset_in_the_values() -> None:
    """Centred on the output: an offset of 1000 costs its rounding, not 1000 times the weights'."""
    plain, offset = (
        bound_of(Case(data=data), standard("float32")) for data in ("normal", "value-offset")
    )
    assert offset.out_bound.max() < 1000 * 24 * UNIT_ROUNDOFF["float32"]
    assert plain.out_bound.max() < offset.out_bound.max()


# It grows with every figure of the precision.


BASE = dataclasses.replace(
    stored("float16"), u_in=2.0**-12, tile=4, eta_weights=2.0**-25, exp_ulp=4.0
)


@pytest.mark.parametrize(
    "field",
    [
        *("u_acc", "u_softmax", "u_out", "eta_out", "u_in", "u_scores", "score_roundings"),
        *("exp_ulp", "exp_arg", "u_weights", "eta_weights"),
    ],
)
def test_a_larger_figure_gives_a_larger_bound(field: str) -> None:
    case = Case(dtype="float16", mask="random/BHLS")
    larger = dataclasses.replace(BASE, **{field: 2 * getattr(BASE, field)})
    require_larger(bound_of(case, larger), bound_of(case, BASE))


@pytest.mark.parametrize(
    "model", [dataclasses.replace(BASE, tile=2), dataclasses.replace(BASE, recompute=True)]
)
def test_more_steps_give_a_larger_bound(model: Precision) -> None:
    case = Case(dtype="float16", mask="random/BHLS")
    require_larger(bound_of(case, model), bound_of(case, BASE))


def require_larger(larger: Expected, smaller: Expected) -> None:
    for name in ("out_bound", "weights_bound"):
        more, less = getattr(larger, name), getattr(smaller, name)
        assert (more >= less * (1 - 1e-12)).all()
    assert larger.out_bound.sum() + larger.weights_bound.sum() > (
        smaller.out_bound.sum() + smaller.weights_bound.sum()
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "preset", [stored, prescaled, flash, tf32], ids=lambda preset: preset.__name__
)
def test_no_preset_is_tighter_than_the_standard_one(
    preset: Callable[[str], Precision], dtype: str
) -> None:
    case = Case(dtype=dtype)
    looser, usual = (bound_of(case, model(dtype)) for model in (preset, standard))
    assert (looser.out_bound >= usual.out_bound * (1 - 1e-12)).all()


def test_blocked_sums_are_allowed_far_less_over_many_keys_and_no_more_over_few() -> None:
    long = dataclasses.replace(standard("float32"), tile=128)
    blocked = dataclasses.replace(long, blocked=True)
    many = Case(shape=Sizes(1, 2, 4096, 1, 8, 4), data="uniform")
    assert 4 * bound_of(many, blocked).out_bound.max() < bound_of(many, long).out_bound.max()
    few = Case(shape=Sizes(1, 2, 100, 1, 8, 4))
    assert (bound_of(few, blocked).out_bound == bound_of(few, long).out_bound).all()


def test_a_model_that_covers_several_takes_sums_for_long_ones() -> None:
    blocked = dataclasses.replace(flash("float32"), blocked=True)
    assert not widest(blocked, blocked).blocked
    assert widest(blocked, standard("float32")).tile == blocked.tile


# Comparison of special values.


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("got", "want", "bound", "ratio"),
    [
        (NAN, NAN, 1.0, 0.0),
        (NAN, 0.0, 1.0, INF),
        (0.0, NAN, 1.0, INF),
        (INF, INF, 1.0, 0.0),
        (-INF, -INF, 1.0, 0.0),
        (INF, -INF, 1.0, INF),
        (INF, 3e38, 1.0, INF),
        (3e38, INF, 1.0, INF),
        (NAN, INF, 1.0, INF),
        (1.5, 1.0, 1.0, 0.5),
        (0.5, 1.0, 1.0, 0.5),
        (1.0, 1.0, 0.0, 0.0),
        (1e-300, 0.0, 0.0, INF),
        (0.0, -0.0, 0.0, 0.0),
        (1.0, 2.0, NAN, INF),
        (NAN, 1.0, INF, INF),
    ],
)
def test_ratios_of_special_values(got: float, want: float, bound: float, ratio: float) -> None:
    arrays = (np.array([x]) for x in (got, want, bound))
    assert ratios(*arrays).item() == ratio


def test_one_nan_among_many_right_elements_is_infinitely_wrong() -> None:
    want = bound_of(Case(), standard("float32"))
    got = want.out.copy()
    got[0, 0, 0, 0] = np.nan
    assert error_over_bound(got, want.out, want.out_bound) == INF


def test_nothing_to_compare_is_no_error() -> None:
    empty = np.empty((0, 3))
    assert error_over_bound(empty, empty, empty) == 0
