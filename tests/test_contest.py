"""Contests between simulated backends: who takes turns, until when, and who is best."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from fullattention.bench.contest import Blocks, LeftError, Rules, contest
from fullattention.bench.ratio import FINAL
from tests.bench_fakes import FakeClock

TURN = 2.0**-5
"""Seconds on the clock, whatever a backend's call takes."""


class Simulated:
    """Backends of known speeds with noise; every turn moves the clock and is noted."""

    def __init__(self, speeds: Mapping[str, float], noise: float = 0.005) -> None:
        self.clock = FakeClock()
        self.random = np.random.default_rng(1)
        self.noise = noise
        self.speeds = speeds
        self.order: list[str] = []
        self.leaves: dict[str, int] = {}
        """Backend -> its turn that is its last."""

    def turns(self) -> dict[str, Callable[[], float]]:
        return {name: lambda name=name: self.turn(name) for name in self.speeds}  # type: ignore[misc]

    def turn(self, name: str) -> float:
        self.clock.now += TURN
        self.order.append(name)
        if self.order.count(name) == self.leaves.get(name):
            raise LeftError
        return self.speeds[name] * float(np.exp(self.noise * self.random.standard_normal()))

    def run(self, budget: float = 8.0) -> Blocks:
        return contest(self.turns(), Rules(budget=budget), random.Random(1), self.clock)


def test_every_block_has_one_turn_of_each_in_an_order_that_changes() -> None:
    simulated = Simulated(dict.fromkeys("abc", 1.0), noise=0.3)
    blocks = simulated.run(budget=1.0)
    rounds = [tuple(simulated.order[i : i + 3]) for i in range(0, len(simulated.order), 3)]
    assert len(rounds) == len(blocks.rows)
    assert {frozenset(one) for one in rounds} == {frozenset("abc")}
    assert len(set(rounds)) > 3


def test_the_order_is_repeatable() -> None:
    first, second = (Simulated(dict.fromkeys("abc", 1.0), noise=0.3) for _ in range(2))
    first.run(1.0)
    second.run(1.0)
    assert first.order == second.order


def test_a_slower_backend_is_dropped_and_keeps_its_figures() -> None:
    simulated = Simulated({"fast": 1.0, "near": 1.001, "slow": 1.3}, noise=0.05)
    blocks = simulated.run()
    assert 4 <= len(blocks.times("slow")) < len(blocks.times("near"))
    assert blocks.ratio("slow", blocks.best(simulated.speeds)).verdict(FINAL) == "slower"


def test_one_that_is_far_behind_is_dropped_early() -> None:
    blocks = Simulated({"fast": 1.0, "far": 3.0}).run()
    assert len(blocks.times("far")) == 4
    assert len(blocks.times("fast")) == 8
    assert blocks.ratio("far", "fast").verdict(FINAL) == "slower"


def test_a_contest_ends_once_the_rest_is_tied() -> None:
    simulated = Simulated({"a": 1.0, "b": 1.0})
    blocks = simulated.run(budget=1000.0)
    assert len(blocks.rows) < 200
    other = "a" if blocks.best("ab") == "b" else "b"
    assert blocks.ratio(other, blocks.best("ab")).verdict(FINAL) == "tie"


def test_what_cannot_be_settled_ends_with_the_budget() -> None:
    simulated = Simulated({"a": 1.0, "b": 1.0}, noise=0.5)
    blocks = simulated.run(budget=2.0)
    assert len(blocks.rows) == 2.0 / (2 * TURN)
    assert blocks.ratio("a", "b").verdict(FINAL) == "not settled"


def test_there_are_always_enough_blocks_for_an_interval() -> None:
    assert len(Simulated({"a": 1.0, "b": 1.0}, noise=0.5).run(budget=0.0).rows) == 4
    assert len(Simulated({"alone": 1.0}).run(budget=0.0).rows) == 4


def test_what_is_settled_early_still_gets_enough_turns() -> None:
    assert len(Simulated({"alone": 1.0}).run().rows) == 8
    assert len(Simulated({"a": 1.0, "b": 2.0}).run().rows) == 8


def test_one_that_leaves_stops_nobody_else() -> None:
    simulated = Simulated({"a": 1.0, "b": 1.0, "breaks": 0.5})
    simulated.leaves = {"breaks": 3}
    blocks = simulated.run()
    assert len(blocks.times("breaks")) == 2
    assert simulated.order.count("breaks") == 3
    assert len(blocks.times("a")) >= 8
    assert blocks.best(["a", "b"]) in "ab"


def test_a_contest_that_all_leave_ends() -> None:
    simulated = Simulated({"a": 1.0, "b": 1.0})
    simulated.leaves = {"a": 1, "b": 2}
    assert len(simulated.run().rows) == 2
    assert Simulated({}).run().rows == []


class Drifting(Simulated):
    """Backends on a machine whose speed wanders from turn to turn."""

    level = 1.0

    def turn(self, name: str) -> float:
        self.level *= float(np.exp(0.02 * self.random.standard_normal()))
        return self.level * super().turn(name)


@pytest.mark.parametrize("factor", [1.05, 1.1, 1.3])
def test_the_winner_is_right_under_drift(factor: float) -> None:
    verdicts = []
    for seed in range(20):
        simulated = Drifting({"a": factor, "b": 1.0}, noise=0.01)
        simulated.random = np.random.default_rng(seed)
        verdicts.append(simulated.run(budget=4.0).ratio("a", "b").verdict(FINAL))
    assert set(verdicts) <= {"slower", "not settled"}
    assert verdicts.count("slower") >= 15


def test_the_best_is_looked_for_among_those_that_stayed() -> None:
    rows = [{"a": 1.0, "b": 1.1, "early": 0.9}] * 8 + [{"a": 0.5, "b": 0.6}] * 4
    blocks = Blocks([dict(row) for row in rows])
    assert blocks.best(["a", "b", "early"]) == "a"
    assert blocks.best(["b", "early"]) == "b"


def test_ratios_are_taken_in_common_blocks_alone() -> None:
    blocks = Blocks([{"a": 1.0, "b": 2.0}] * 8 + [{"a": 100.0}] * 8)
    assert blocks.ratio("b", "a").ratio == pytest.approx(2.0)
    assert blocks.ratio("b", "a").blocks == 8
    with pytest.raises(ValueError, match="no turn in the same block"):
        blocks.ratio("a", "c")
