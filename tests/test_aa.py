"""The method's own quality is counted right, on traces that the tests make up."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from fullattention.bench.worker import Turn
from tests.bench_fakes import ENVIRONMENT, FakeClock
from tools.aa import (
    ALONE,
    Decision,
    by_medians,
    contests,
    interleaved,
    one_after_the_other,
    section,
    table,
)

WALL = 2.0**-5
"""Seconds of every turn."""


def machine(
    drift: float, noise: float = 0.003, names: int = 3
) -> tuple[FakeClock, dict[str, Callable[[], Turn]]]:
    """Equal backends on a machine whose speed wanders."""
    clock, draw, level = FakeClock(), np.random.default_rng(1), 1.0

    def turn() -> Turn:
        nonlocal level
        clock.now += WALL
        level *= float(np.exp(drift * draw.standard_normal()))
        seconds = level * float(np.exp(noise * draw.standard_normal()))
        return Turn(seconds, None, WALL, others=0.0, sample=None, inputs=0)

    return clock, {f"same {number}": turn for number in range(3)}


def test_turns_are_recorded_in_blocks_until_the_time_is_over() -> None:
    clock, turns = machine(0.0)
    trace = interleaved(turns, 3.0, random.Random(1), clock)
    assert len(trace) == 3.0 / (3 * WALL)
    assert all(set(block) == set(turns) for block in trace)
    assert len({tuple(block) for block in trace}) > 1


def test_contests_on_a_drifting_machine_name_no_false_winner_and_find_two_percent() -> None:
    clock, turns = machine(drift=0.01)
    trace = interleaved(turns, 120.0, random.Random(1), clock)
    same = list(contests(trace, 1.0))
    assert len(same) > 200
    assert all(one.seconds <= 2.0 + 2 * WALL for one in same)
    false = sum(one.verdict in ("slower", "faster") for one in same)
    assert false <= 0.03 * len(same)
    other = [one.verdict for one in contests(trace, 1.05)]
    assert other.count("slower") >= 0.95 * len(other)
    assert "faster" not in other


def test_easy_decisions_take_less_time() -> None:
    clock, turns = machine(drift=0.01, noise=0.01)
    trace = interleaved(turns, 30.0, random.Random(1), clock)
    hard, easy = ([one.seconds for one in contests(trace, ratio)] for ratio in (1.005, 1.3))
    assert np.median(easy) == 12 * WALL  # four blocks of two, and four of the best alone
    assert np.median(easy) < np.median(hard)


def test_a_trace_that_is_too_short_gives_no_decision() -> None:
    clock, turns = machine(0.0)
    assert list(contests(interleaved(turns, 1.0, random.Random(1), clock), 1.0)) == []
    assert list(contests([], 1.0)) == []


def test_medians_one_after_the_other_are_of_spans_that_follow_each_other() -> None:
    clock, turns = machine(drift=0.0)
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


def test_the_table_has_counts_and_shares() -> None:
    decisions = [Decision("slower", 1.0), Decision("slower", 2.0), Decision("tie", 2.0)]
    text = table({("as it is", "blocks", 1.02): decisions})
    row = text.splitlines()[-1]
    assert row == "| as it is | blocks | 1.02 | 3 | 2 (66.7%) | 0 | 1 (33.3%) | 0 | 2.00 |"
    assert len({line.count("|") for line in text.splitlines()}) == 1
    whole = section({("as it is", "blocks", 1.02): decisions}, "nox -s aa", ENVIRONMENT)
    assert "`nox -s aa`, 2026-01-01: Some CPU, 4 usable cores, 2 threads" in whole


def test_slow_calls_leave_enough_turns_for_the_one_that_is_left_alone() -> None:
    """The loser is dropped after four blocks; the best goes on to eight."""
    slow = Turn(0.25, None, 0.25, others=0.0, sample=None, inputs=0)
    found = list(contests([{"a": slow, "b": slow}] * 20, 2.0))
    assert [one.verdict for one in found] == ["slower"] * 4
