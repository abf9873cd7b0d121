"""The ratio of two backends, from times that the tests make up."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from fullattention.bench.ratio import (
    FINAL,
    INTERIM,
    REPORTED,
    SAME_PROCESS,
    USUAL_SPREAD,
    USUAL_WEIGHT,
    Ratio,
    Spread,
    ratio_of,
    spread_of,
    student_quantile,
)
from fullattention.records import Speed
from tests.bench_fakes import turns_of

TRIALS = 300


def compared(
    seed: int, *, factor: float = 1.0, blocks: int = 40, noise: float = 0.02, spread: float = 0.0
) -> Ratio:
    """The first of two backends of four processes each, slower by a factor, over the second."""
    first, second = turns_of(2, 4, blocks, noise=noise, spread=spread, seed=seed)
    return ratio_of(factor * first, second, spread_of([first, second]))


def verdicts(factor: float = 1.0, **planted: float) -> Counter[Speed]:
    found = (compared(seed, factor=factor, **planted) for seed in range(TRIALS))  # type: ignore[arg-type]
    return Counter(one.verdict(FINAL) for one in found)


def different(found: Counter[Speed]) -> int:
    return found["slower"] + found["faster"]


def test_the_ratio_of_exact_times_is_exact() -> None:
    times = np.array([[1.0, 2.0, 4.0, 8.0, 1.0, 2.0, 4.0, 8.0]] * 2).T
    found = ratio_of(1.5 * times, times, SAME_PROCESS)
    assert (found.ratio, *found.interval(FINAL)) == pytest.approx((1.5, 1.5, 1.5))
    assert found.verdict(FINAL) == "slower"
    assert found.smallest_difference == pytest.approx(0)
    assert found.blocks == 8


def test_times_without_any_scatter_have_an_interval_without_width() -> None:
    times = np.full((5, 1), 2.0)
    found = ratio_of(1.5 * times, times, Spread(0.0, math.inf))
    assert found.interval(FINAL) == (found.ratio, found.ratio)
    assert found.verdict(FINAL) == "slower"


def test_the_other_way_round_it_is_the_inverse() -> None:
    first, second = turns_of(2, 2, 40, noise=0.01, seed=1)
    spread = spread_of([first, second])
    there, back = ratio_of(1.1 * first, second, spread), ratio_of(second, 1.1 * first, spread)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert (there.verdict(FINAL), back.verdict(FINAL)) == ("slower", "faster")


def test_equal_backends_are_tied_where_the_interval_is_narrow_and_else_not_settled() -> None:
    assert compared(2, noise=0.005).verdict(FINAL) == "tie"
    assert compared(2, noise=0.2, blocks=8).verdict(FINAL) == "not settled"
    assert compared(2, noise=0.005, spread=0.05).verdict(FINAL) == "not settled"


# How often verdicts are right


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
def test_processes_that_differ_by_five_percent_make_no_false_winners(noise: float) -> None:
    assert different(verdicts(noise=noise, spread=0.05)) <= 0.02 * TRIALS


def test_the_blocks_alone_would_make_false_winners_of_such_processes() -> None:
    """What the verdict was before: each pair of processes compared as if it were the backends."""
    false = 0
    for seed in range(TRIALS):
        first, second = turns_of(2, 1, 40, noise=0.03, spread=0.05, seed=seed)
        false += ratio_of(first, second, SAME_PROCESS).verdict(FINAL) != "not settled"
    assert false > 0.5 * TRIALS


@pytest.mark.parametrize("blocks", [4, 8, 40])
def test_equal_backends_are_seldom_called_different_however_few_the_blocks(blocks: int) -> None:
    assert different(verdicts(blocks=blocks)) <= 0.02 * TRIALS


def test_thirty_percent_are_found_though_processes_differ_by_five() -> None:
    assert verdicts(1.3, spread=0.05)["slower"] >= 0.95 * TRIALS


def test_five_percent_are_found_where_processes_do_not_differ() -> None:
    found = verdicts(1.05)
    assert found["slower"] >= 0.9 * TRIALS
    assert not found["faster"]


@pytest.mark.parametrize("spread", [0.0, 0.03])
def test_a_difference_of_the_smallest_size_is_found_nine_times_in_ten(spread: float) -> None:
    sizes = [compared(seed, spread=spread).smallest_difference for seed in range(99)]
    found = verdicts(1 + float(np.median(sizes)), spread=spread)["slower"]
    assert 0.82 * TRIALS <= found <= 0.98 * TRIALS


# Parts of it


@pytest.mark.parametrize("planted", [0.0, 0.03, 0.1])
def test_the_spread_of_processes_is_found_with_what_their_turns_scatter(planted: float) -> None:
    """Of many backends, so that it is known well."""
    found = spread_of(turns_of(200, 2, 20, noise=0.05, spread=planted, seed=1))
    scatter = 0.05 / math.sqrt(20)
    assert math.sqrt(found.variance) == pytest.approx(math.hypot(planted, scatter), rel=0.15)


def test_what_strikes_all_processes_of_a_backend_in_a_block_widens_the_interval() -> None:
    first, second = turns_of(2, 4, 10, noise=0.001, seed=1)
    spread = spread_of([first, second])
    calm = ratio_of(first, second, spread)
    first *= np.exp(0.1 * np.random.default_rng(1).standard_normal((10, 1)))
    assert spread_of([first, second]).variance == pytest.approx(spread.variance)
    assert ratio_of(first, second, spread).error > 3 * calm.error


def test_processes_that_agree_by_chance_leave_what_is_usual() -> None:
    times = np.ones((8, 3))
    found = spread_of([times, 2 * times])
    assert found.freedom == USUAL_WEIGHT + 4
    assert found.variance == pytest.approx(USUAL_SPREAD**2 * USUAL_WEIGHT / found.freedom)
    assert found.difference == pytest.approx(math.sqrt(2 * found.variance), rel=0.01)


def test_a_backend_whose_turns_scatter_counts_for_less() -> None:
    """Whether few or wild, they tell little of what lasts."""
    steady = turns_of(6, 2, 20, noise=0.02, spread=0.03, seed=1)
    alone = spread_of(steady)
    for few, noise in ((20, 2.0), (2, 0.5)):
        both = spread_of([*steady, *turns_of(1, 2, few, noise=noise, seed=2)])
        assert both.variance == pytest.approx(alone.variance, rel=0.1)
        assert both.freedom == pytest.approx(alone.freedom, abs=0.1)
    alike = spread_of([*steady, *turns_of(1, 2, 20, noise=0.02, seed=2)])
    assert alike.freedom == pytest.approx(alone.freedom + 1, abs=0.1)


def test_more_processes_narrow_what_their_differences_leave_open() -> None:
    spread = Spread(0.03**2, 7.0)
    errors = []
    for processes in (2, 8):
        times, others = np.ones((20, processes)), np.ones((20, processes))
        errors.append(ratio_of(times, others, spread).error)
    assert errors == pytest.approx([0.03, 0.015])


def test_blocks_in_which_one_turn_was_disturbed_hardly_count() -> None:
    first, second = turns_of(2, 2, 40, noise=0.005, seed=3)
    spread = spread_of([first, second])
    clean = ratio_of(first, second, spread)
    first[[3, 17, 30], [0, 1, 1]] *= 5
    disturbed = ratio_of(first, second, spread_of([first, second]))
    assert disturbed.ratio == pytest.approx(clean.ratio, rel=0.003)
    assert disturbed.error == pytest.approx(clean.error, rel=0.2)


def test_more_confidence_needs_a_wider_interval() -> None:
    found = compared(4, blocks=20, noise=0.05)
    lows, highs = zip(*map(found.interval, (INTERIM, FINAL, REPORTED)), strict=True)
    assert sorted(lows) == list(lows)
    assert lows[-1] < found.ratio < highs[-1]
    assert sorted(highs, reverse=True) == list(highs)


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),  # from tables of Student's t
    [(0.975, 5, 2.571), (0.995, 5, 4.032), (0.999, 5, 5.893), (0.995, 30, 2.750)],
)
def test_quantiles_are_those_of_students_distribution(
    probability: float, freedom: int, value: float
) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(value, rel=0.005)
