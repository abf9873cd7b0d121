"""The ratio of two backends, from times that the tests make up."""

from __future__ import annotations

import numpy as np
import pytest

from fullattention.bench.ratio import FINAL, INTERIM, REPORTED, ratio_of, student_quantile

TRIALS = 300


def turns(blocks: int, noise: float, drift: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Times of two equal backends: each turn has noise of its own, each block a drift of both."""
    random = np.random.default_rng(seed)
    common = np.exp(drift * random.standard_normal(blocks).cumsum())
    return tuple(common * np.exp(noise * random.standard_normal(blocks)) for _ in range(2))  # type: ignore[return-value]


def test_the_ratio_of_exact_times_is_exact() -> None:
    times = np.array([1.0, 2.0, 4.0, 8.0, 1.0, 2.0, 4.0, 8.0])
    found = ratio_of(1.5 * times, times)
    assert (found.ratio, *found.interval(FINAL)) == pytest.approx((1.5, 1.5, 1.5))
    assert found.verdict(FINAL) == "slower"
    assert found.smallest_difference == pytest.approx(0)
    assert found.blocks == 8


def test_the_other_way_round_it_is_the_inverse() -> None:
    first, second = turns(40, 0.01, 0.1, 1)
    there, back = ratio_of(1.05 * first, second), ratio_of(second, 1.05 * first)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert (there.verdict(FINAL), back.verdict(FINAL)) == ("slower", "faster")


def test_equal_backends_are_tied_where_the_interval_is_narrow_and_else_not_settled() -> None:
    assert ratio_of(*turns(80, 0.005, 0.1, 2)).verdict(FINAL) == "tie"
    assert ratio_of(*turns(8, 0.2, 0.1, 2)).verdict(FINAL) == "not settled"


def test_a_negligible_difference_names_no_winner_however_sure_it_is() -> None:
    first, second = turns(200, 0.001, 0.1, 6)
    found = ratio_of(1.005 * first, second)
    assert found.interval(FINAL)[0] > 1
    assert found.verdict(FINAL) == ratio_of(second, 1.005 * first).verdict(FINAL) == "tie"
    assert ratio_of(1.015 * first, second).verdict(FINAL) == "slower"


def test_equal_backends_are_seldom_called_different_whatever_drifts() -> None:
    verdicts = [ratio_of(*turns(40, 0.02, 0.2, seed)).verdict(FINAL) for seed in range(TRIALS)]
    different = sum(verdict in ("faster", "slower") for verdict in verdicts)
    assert different <= 0.04 * TRIALS


def test_two_percent_are_found_and_never_turned_round() -> None:
    verdicts = []
    for seed in range(TRIALS):
        first, second = turns(45, 0.01, 0.2, seed)
        verdicts.append(ratio_of(1.02 * first, second).verdict(FINAL))
    assert verdicts.count("slower") >= 0.9 * TRIALS
    assert "faster" not in verdicts


def test_a_difference_of_the_smallest_size_is_found_nine_times_in_ten() -> None:
    size = np.median([ratio_of(*turns(40, 0.02, 0.2, s)).smallest_difference for s in range(99)])
    found = 0
    for seed in range(TRIALS):
        first, second = turns(40, 0.02, 0.2, seed)
        found += ratio_of((1 + size) * first, second).verdict(FINAL) == "slower"
    assert 0.82 * TRIALS <= found <= 0.98 * TRIALS


def test_blocks_in_which_one_turn_was_disturbed_hardly_count() -> None:
    first, second = turns(40, 0.005, 0.1, 3)
    clean = ratio_of(first, second)
    first[[3, 17, 30]] *= 5
    disturbed = ratio_of(first, second)
    assert disturbed.ratio == pytest.approx(clean.ratio, rel=0.003)
    assert disturbed.verdict(FINAL) == clean.verdict(FINAL) == "tie"


def test_more_confidence_needs_a_wider_interval() -> None:
    found = ratio_of(*turns(20, 0.05, 0.1, 4))
    lows, highs = zip(*map(found.interval, (INTERIM, FINAL, REPORTED)), strict=True)
    assert sorted(lows) == list(lows)
    assert lows[-1] < found.ratio < highs[-1]
    assert sorted(highs, reverse=True) == list(highs)


def test_few_blocks_are_not_taken_for_many() -> None:
    """The false rate keeps to its level however few the blocks are."""
    verdicts = [ratio_of(*turns(8, 0.02, 0.2, seed)).verdict(FINAL) for seed in range(TRIALS)]
    assert sum(verdict in ("faster", "slower") for verdict in verdicts) <= 0.02 * TRIALS


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),  # from tables of Student's t
    [(0.975, 5, 2.571), (0.995, 5, 4.032), (0.999, 5, 5.893), (0.995, 30, 2.750)],
)
def test_quantiles_are_those_of_students_distribution(
    probability: float, freedom: int, value: float
) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(value, rel=0.005)


def test_the_same_times_give_the_same_verdict() -> None:
    times = turns(20, 0.05, 0.1, 5)
    assert ratio_of(*times) == ratio_of(*times)
