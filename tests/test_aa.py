"""The method's own quality is counted right, on traces that the tests make up."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pytest

from fullattention.bench.server import Turn
from fullattention.records import Speed
from tests.bench_fakes import ENVIRONMENT, FakeClock
from tools.aa import (
    ALONE,
    AS_IT_IS,
    BUDGETS,
    HALVINGS,
    LOADED,
    MEDIANS,
    RATIOS,
    Decision,
    by_medians,
    contests,
    difference,
    differences_told,
    goals,
    halvings,
    interleaved,
    one_after_the_other,
    section,
    times,
    verdicts,
    within,
)

QUICK, LONG = BUDGETS

WALL = 2.0**-5
"""Seconds of every turn."""


def machine(
    drift: float, noise: float = 0.003, spread: float = 0.0, processes: int = 8, seed: int = 1
) -> tuple[FakeClock, dict[str, Callable[[], Turn]]]:
    """Processes of one backend on a machine whose speed wanders."""
    clock, draw, level = FakeClock(), np.random.default_rng(seed), 1.0

    def turn(effect: float) -> Turn:
        nonlocal level
        clock.now += WALL
        level *= float(np.exp(drift * draw.standard_normal()))
        seconds = level * float(np.exp(effect + noise * draw.standard_normal()))
        return Turn(seconds, None, WALL, own=0.0, others=0.0, sample=None, inputs=0)

    effects = spread * draw.standard_normal(processes)
    return clock, {f"same {n}": functools.partial(turn, one) for n, one in enumerate(effects)}


def test_turns_are_recorded_in_blocks_until_the_time_is_over() -> None:
    clock, turns = machine(0.0)
    trace = interleaved(turns, 3.0, random.Random(1), clock)
    assert len(trace) == 3.0 / (8 * WALL)
    assert all(set(block) == set(turns) for block in trace)
    assert len({tuple(block) for block in trace}) > 1


@pytest.mark.parametrize(("budget", "seconds"), [(QUICK, 7.0), (LONG, 30.0)])
def test_contests_of_processes_that_differ_name_no_false_winner_and_find_thirty_percent(
    budget: float, seconds: float
) -> None:
    same: list[Decision] = []
    other: list[Speed] = []
    for seed in range(20):
        clock, turns = machine(drift=0.01, noise=0.01, spread=0.05, seed=seed)
        trace = interleaved(turns, seconds, random.Random(1), clock)
        same += contests(trace, 1.0, budget)
        other += [one.verdict for one in contests(trace, 1.3, budget)]
    assert len(same) > 1000
    assert all(one.seconds <= budget + 8 * WALL for one in same)
    assert sum(one.verdict in ("slower", "faster") for one in same) <= 0.02 * len(same)
    assert other.count("slower") >= 0.95 * len(other)
    assert "faster" not in other


def test_every_halving_of_the_processes_is_a_case_once() -> None:
    found = halvings("abcdefgh")
    assert len({frozenset(map(frozenset, pair)) for pair in found}) == len(found) == 35
    assert all(sorted(first + second) == list("abcdefgh") for first, second in found)


def test_easy_decisions_take_less_time() -> None:
    clock, turns = machine(drift=0.01, noise=0.01)
    trace = interleaved(turns, 30.0, random.Random(1), clock)
    hard, easy = ([one.seconds for one in contests(trace, ratio, LONG)] for ratio in (1.005, 1.3))
    assert np.median(easy) == 48 * WALL  # four blocks of all eight, and four of the best's four
    assert np.median(easy) < np.median(hard)


def test_what_processes_differ_by_is_told_for_each_case() -> None:
    clock, turns = machine(drift=0.01, noise=0.01, spread=0.05, processes=200)
    found = difference(interleaved(turns, 200.0, random.Random(1), clock))
    assert found == pytest.approx(0.05 * 2**0.5, rel=0.15)
    told = differences_told({("as it is", "a on b"): 0.05, ("loaded", "a on b"): 0.12})
    assert list(told) == [
        "Two processes of one backend usually differ by, machine as it is: 5.0% of a on b.",
        "Two processes of one backend usually differ by, machine loaded: 12.0% of a on b.",
    ]


def test_a_trace_that_is_too_short_gives_no_decision() -> None:
    clock, turns = machine(0.0)
    trace = interleaved(turns, 3.0, random.Random(1), clock)
    assert list(contests(trace, 1.0, LONG)) == []
    assert list(contests([], 1.0, QUICK)) == []
    assert len(list(contests(trace, 1.0, QUICK))) == 2 * HALVINGS


def test_medians_one_after_the_other_are_of_spans_that_follow_each_other() -> None:
    clock, turns = machine(drift=0.0, processes=3)
    spans = one_after_the_other(turns, 6 * ALONE, clock)
    assert [name for name, _ in spans] == ["same 0", "same 1", "same 2"] * 2
    assert all(len(taken) == ALONE / WALL for _, taken in spans)
    assert [one.verdict for one in by_medians(spans, 1.0)] == ["tie"] * 5
    assert [one.verdict for one in by_medians(spans, 1.05)] == ["slower"] * 5
    assert [one.verdict for one in by_medians(spans, 0.95)] == ["faster"] * 5


def test_drift_deceives_medians_one_after_the_other() -> None:
    clock, turns = machine(drift=0.01)
    verdicts = [one.verdict for one in by_medians(one_after_the_other(turns, 60.0, clock), 1.0)]
    assert verdicts.count("tie") < len(verdicts) / 2


def found(
    other: Mapping[float, list[Decision]] = MappingProxyType({}),
) -> dict[tuple[str, str, float], list[Decision]]:
    """Every decision right, within a quarter of its budget, but for some that took two seconds on
    the machine as it is, by ratio."""
    made = {}
    for machine_is, budget, ratio in itertools.product((AS_IT_IS, LOADED), BUDGETS, RATIOS):
        right: list[Decision] = [Decision("slower" if ratio > 1 else "tie", budget / 4)] * 10
        made[machine_is, within(budget), ratio] = made[machine_is, MEDIANS, ratio] = right
    return made | {(AS_IT_IS, within(QUICK), ratio): given for ratio, given in other.items()}


def decisions(*verdicts: Speed) -> list[Decision]:
    return [Decision(verdict, 1.0) for verdict in verdicts]


def test_the_tables_have_the_shares_of_each_method_and_the_seconds_of_each_budget() -> None:
    of = found(
        {
            1.0: decisions("slower", "faster", "tie", "not settled"),
            1.05: decisions("slower", "faster", "not settled", "slower"),
        }
    )
    first, medians, *_ = verdicts(of).rows
    percent = ["100.0%"] * 4
    assert first == ["as it is", "blocks, 2 s", "4", "50.0%", "100.0%", "50.0%", *percent[2:], "1"]
    assert medians == ["as it is", "medians", "10", "0.0%", *percent, "0"]
    quick, long, *_ = times(of).rows
    quarter, half = "0.50 (25%)", "1.00 (50%)"
    assert quick == ["as it is", "2 s", half, quarter, half, quarter, quarter]
    assert long == ["as it is", "8 s"] + 5 * ["2.00 (25%)"]
    for table in (verdicts(of), times(of)):
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_goals_are_judged_by_what_was_counted() -> None:
    assert [line.rpartition(": ")[2] for line in goals(found())] == ["met."] * 3
    missed = found(
        {
            1.0: [*19 * decisions("tie"), *decisions("faster")],
            1.02: [*8 * decisions("slower"), *decisions("tie", "not settled")],
            1.1: decisions("slower", "faster"),
        }
    )
    false, wrong, small = goals(missed)
    assert false.endswith("in 5.0% at worst (as it is, blocks, 2 s): missed.")
    assert wrong.endswith("never: 1 times: missed.")
    assert small.startswith("A difference of 2% found within 2 s on the machine as it is,")
    assert small.endswith("in at least 90%: in 80.0%: missed.")


def test_the_section_tells_tables_goals_processes_and_the_machine() -> None:
    whole = section(found(), {("as it is", "a on b"): 0.05}, "nox -s aa", ENVIRONMENT)
    assert "`nox -s aa`, 2026-01-01: Some CPU, 4 usable cores, 2 threads" in whole
    assert "5.0% of a on b" in whole
    assert whole.count(": met.") == 3


def test_slow_calls_leave_enough_turns_for_the_one_that_is_left_alone() -> None:
    """The loser is dropped after four blocks; the best goes on to eight."""
    slow = Turn(0.3, None, 0.3, own=0.0, others=0.0, sample=None, inputs=0)
    found = list(contests([dict.fromkeys("abcd", slow)] * 16, 3.0, LONG))
    assert {one.verdict for one in found} == {"slower"}
    assert [one.seconds for one in found] == pytest.approx([7.2] * 3 * HALVINGS)
