"""Contests between simulated backends: who takes turns, until when, and who is best."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from fullattention.bench.contest import Blocks, LeftError, Rules, contest
from fullattention.bench.ratio import FINAL
from fullattention.records import Speed
from tests.bench_fakes import FakeClock

TURN = 2.0**-5
"""Seconds on the clock, whatever a backend's call takes."""


class Simulated:
    """Backends of known speeds with noise; every turn moves the clock and is noted.

    The processes of one backend differ by `spread`, for good.
    """

    def __init__(
        self,
        speeds: Mapping[str, float],
        noise: float = 0.005,
        *,
        processes: int = 4,
        spread: float = 0.0,
        seed: int = 1,
    ) -> None:
        self.clock = FakeClock()
        self.random = np.random.default_rng(seed)
        self.noise = noise
        self.speeds = speeds
        effects = spread * self.random.standard_normal((len(speeds), processes))
        self.effects = dict(zip(speeds, np.exp(effects), strict=True))
        self.order: list[str] = []
        self.processes: list[tuple[str, int]] = []
        self.leaves: dict[str, int] = {}
        """Backend -> its turn that is its last."""

    def turns(self) -> dict[str, list[Callable[[], float]]]:
        return {
            name: [functools.partial(self.turn, name, number) for number in range(len(effects))]
            for name, effects in self.effects.items()
        }

    def turn(self, name: str, process: int) -> float:
        self.clock.now += TURN
        self.order.append(name)
        self.processes.append((name, process))
        if self.order.count(name) == self.leaves.get(name):
            raise LeftError
        noise = float(np.exp(self.noise * self.random.standard_normal()))
        return self.speeds[name] * float(self.effects[name][process]) * noise

    def run(self, budget: float = 8.0) -> Blocks:
        return contest(self.turns(), Rules(budget=budget), random.Random(1), self.clock)


def test_every_block_has_one_turn_of_each_process_in_an_order_that_changes() -> None:
    simulated = Simulated(dict.fromkeys("abc", 1.0), noise=0.3, processes=2)
    blocks = simulated.run(budget=1.0)
    taken, every = simulated.processes, {(name, number) for name in "abc" for number in (0, 1)}
    each = [tuple(taken[i : i + 6]) for i in range(0, len(taken), 6)]
    assert len(each) == len(blocks.rows)
    assert all(set(block) == every for block in each)
    assert len(set(each)) > 3
    assert all(blocks.times(name).shape == (len(each), 2) for name in "abc")


def test_backends_alternate_and_any_processes_of_two_meet() -> None:
    simulated = Simulated(dict.fromkeys("abc", 1.0), noise=0.3, processes=2)
    simulated.run(budget=1.5)
    order = simulated.order
    assert all(set(order[i : i + 3]) == set("abc") for i in range(0, len(order), 3))
    taken = simulated.processes
    meetings = {tuple(sorted(taken[i : i + 3])) for i in range(0, len(taken), 3)}
    assert len(meetings) == 8


def test_a_turn_is_kept_by_its_process() -> None:
    simulated = Simulated({"a": 1.0, "b": 1.0}, noise=0.0, spread=0.1)
    blocks = simulated.run(budget=0.0)
    assert blocks.times("a") == pytest.approx(np.tile(simulated.effects["a"], (4, 1)))


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
    assert len(blocks.rows) == 2.0 / (8 * TURN)
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
    assert len(blocks.times("breaks")) == 0
    assert simulated.order.count("breaks") == 3
    assert len(blocks.times("a")) >= 8
    assert blocks.best(["a", "b"]) in "ab"


def test_a_contest_that_all_leave_ends() -> None:
    simulated = Simulated({"a": 1.0, "b": 1.0})
    simulated.leaves = {"a": 1, "b": 5}
    assert simulated.run().rows[1:] == [{}]
    assert Simulated({}).run().rows == []


class Drifting(Simulated):
    """Backends on a machine whose speed wanders from turn to turn."""

    level = 1.0

    def turn(self, name: str, process: int) -> float:
        self.level *= float(np.exp(0.02 * self.random.standard_normal()))
        return self.level * super().turn(name, process)


@pytest.mark.parametrize("factor", [1.07, 1.1, 1.3])
def test_the_winner_is_right_under_drift(factor: float) -> None:
    verdicts = []
    for seed in range(20):
        simulated = Drifting({"a": factor, "b": 1.0}, noise=0.01, seed=seed)
        verdicts.append(simulated.run(budget=4.0).ratio("a", "b").verdict(FINAL))
    assert set(verdicts) <= {"slower", "not settled"}
    assert verdicts.count("slower") >= 15


@pytest.mark.parametrize(("backends", "processes"), [("ab", 4), ("abc", 3), ("abcdefg", 2)])
def test_processes_that_differ_seldom_make_a_false_winner(backends: str, processes: int) -> None:
    """Whatever looks are taken on the way, and whoever is dropped early."""
    pairs = list(zip(backends[::2], backends[1::2], strict=False))
    found: list[Speed] = []
    for seed in range(300):
        simulated = Simulated(
            dict.fromkeys(backends, 1.0), 0.03, processes=processes, spread=0.05, seed=seed
        )
        blocks = simulated.run(budget=4.0)
        found += [blocks.ratio(*pair).verdict(FINAL) for pair in pairs]
    assert found.count("slower") + found.count("faster") <= 0.02 * len(found)


def test_the_best_is_looked_for_among_those_that_stayed() -> None:
    rows = [{"a": 1.0, "b": 1.1, "early": 0.9}] * 8 + [{"a": 0.5, "b": 0.6}] * 4
    blocks = Blocks([{name: [time] * 2 for name, time in row.items()} for row in rows])
    assert blocks.best(["a", "b", "early"]) == "a"
    assert blocks.best(["b", "early"]) == "b"


def test_ratios_are_taken_in_common_blocks_alone() -> None:
    blocks = Blocks([{"a": [1.0] * 2, "b": [2.0] * 2}] * 8 + [{"a": [100.0] * 2}] * 8)
    assert blocks.ratio("b", "a").ratio == pytest.approx(2.0)
    assert blocks.ratio("b", "a").blocks == 8
    with pytest.raises(ValueError, match="no turn in the same block"):
        blocks.ratio("a", "c")
