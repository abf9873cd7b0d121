"""What the machine was like during a contest, and which times are void."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fullattention.bench import conditions
from fullattention.bench.conditions import Conditions, Watch, by_chance, void_reason
from fullattention.bench.entry import untimed
from fullattention.bench.workloads import parse_shape
from fullattention.machine import hardware
from fullattention.records import Timing
from tests.bench_fakes import ENVIRONMENT


def timing(threads: int = 2, **fields: Any) -> Timing:
    """On four cores."""
    here = dataclasses.replace(ENVIRONMENT, threads=threads)
    return untimed(parse_shape("1,1,1,1,1,1"), here, backend="a", device="cpu", **fields)


def told(monkeypatch: pytest.MonkeyPatch, device: str, *paces: float) -> Conditions:
    left = list(paces)
    counts = [5, 7]
    monkeypatch.setattr(conditions, "pace", lambda: left.pop(0))
    monkeypatch.setattr("fullattention.machine.hardware.throttlings", lambda: counts.pop(0))
    monkeypatch.setattr("fullattention.machine.hardware.others_on_gpus", lambda: 3)
    return Watch(device).conditions()


def test_what_changed_during_a_contest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, "cpu", 0.5, 0.75) == Conditions(2, 0.5, None)
    assert told(monkeypatch, "cuda", 0.5, 0.25) == Conditions(2, -0.5, 3)


def test_a_clock_too_coarse_for_the_work_tells_no_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, "cpu", 0.0, 0.5).clock_drift is None


def test_the_pace_is_that_of_the_fastest_try(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [0.0, 5.0, 5.0, 7.0, 7.0, 10.0]
    monkeypatch.setattr(conditions, "TRIES", 3)
    monkeypatch.setattr("time.thread_time", lambda: readings.pop(0))
    assert conditions.pace() == 2.0


@pytest.mark.parametrize(
    ("threads", "own", "others", "reason"),
    [
        (1, 1.4, 0.0, ""),
        (1, 1.6, 0.0, "it kept 1.6 cores busy, and was told to use 1"),
        (2, 2.0, 3.0, ""),  # two are spare
        (
            2,
            2.0,
            3.2,
            (
                "other processes took 1.1 of the 2 cores it was told to use: "
                "run again on a quieter machine"
            ),
        ),
        (4, 4.0, 2.0, ""),
        (
            4,
            4.0,
            2.2,
            (
                "other processes took 2.1 of the 4 cores it was told to use: "
                "run again on a quieter machine"
            ),
        ),
        (4, None, None, ""),
    ],
)
def test_a_time_taken_with_far_other_cores_is_void(
    threads: int, own: float | None, others: float | None, reason: str
) -> None:
    assert void_reason(timing(threads, own_load=own, other_load=others)) == reason


def test_ticks_alone_hardly_ever_look_like_others() -> None:
    """Cores that only the candidate keeps busy, counted in whole ticks as Linux counts."""
    random, tick, turns, cores = np.random.default_rng(5), hardware.TICK, 50, 2
    wall = 2.3 * tick

    def counted(counters: int) -> np.ndarray:
        start = random.uniform(0, 1000 * tick, size=(1000, counters, turns))
        ticks = np.floor((start + wall) / tick) - np.floor(start / tick)
        counts: np.ndarray = tick * ticks.sum(axis=(1, 2))
        return counts

    others = counted(cores) - counted(2)  # all that ran was the candidate
    assert (np.abs(others) > by_chance(turns, cores)).mean() < 0.01
    assert (others + 0.5 * turns * wall > by_chance(turns, cores)).all()
