"""What is too large to be run, and what is refused before it is tried; by clocks the tests move."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fullattention.backends import standard
from fullattention.backends.precision import flash
from fullattention.bench.inputs import InputPool
from fullattention.bench.limits import (
    TooLargeError,
    require_disk,
    require_memory,
    require_time,
)
from fullattention.bench.modes import MODES, Inputs
from fullattention.bench.workloads import Workload, parse_shape
from fullattention.conformance.subject import Subject
from tests.bench_fakes import FakeClock, subject


def test_memory_counts_the_scores_where_they_are_stored() -> None:
    scores_dominate = parse_shape("1,1000,1000,1,1,1")
    stored, online = subject(), subject(precision={"float32": flash("float32")})
    double = subject(precision={"float32": standard("float64")})
    with pytest.raises(TooLargeError):
        require_memory(stored, scores_dominate, free=10_000_000)
    require_memory(online, scores_dominate, free=10_000_000)
    require_memory(stored, scores_dominate, free=20_000_000)
    with pytest.raises(TooLargeError):
        require_memory(double, scores_dominate, free=20_000_000)
    with pytest.raises(TooLargeError):  # returned weights are stored
        require_memory(online, MODES["weights"](scores_dominate), free=10_000_000)
    undeclared = subject(precision=online.precision, lacks={"wide_scores": "unknown"})
    with pytest.raises(TooLargeError):
        require_memory(undeclared, scores_dominate, free=10_000_000)


def test_inputs_are_measured_against_the_disk_before_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = InputPool(tmp_path / "scratch" / "inputs", parse_shape("2,5,5,3,8,8"))
    pool.path.parent.mkdir()
    pool.write(1)
    assert pool.path.stat().st_size == pool.bytes
    free = SimpleNamespace(free=pool.bytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    require_disk(pool)
    free.free -= 1
    with pytest.raises(TooLargeError, match=f"are free in {tmp_path}"):
        require_disk(pool)


# How long a call would take


def per_query(clock: FakeClock, seconds: float, fixed: float = 0.0) -> Subject:
    """A candidate that takes so long for each query, and a fixed time for each call."""

    def spoil(result: Any, q: np.ndarray, *_: object) -> Any:
        clock.now += fixed + seconds * q.shape[0] * q.shape[1]
        return result

    return subject(spoil)


def zeros(workload: Workload) -> Inputs:
    B, L, S, H, E, D = workload.shape
    shapes = ((B, L, H, E), (B, S, H, E), (B, S, H, D))
    q, k, v = (np.zeros(shape, np.float32) for shape in shapes)
    return Inputs(q, k, v, None)


def refuses(candidate: Subject, clock: FakeClock, workload: Workload, longest: float) -> bool:
    try:
        require_time(candidate, workload, zeros(workload), longest, clock)
    except TooLargeError:
        return True
    return False


LONG = parse_shape("64,128,8,1,2,2")  # 8192 queries


@pytest.mark.parametrize(("seconds", "expected"), [(0.9, False), (1.1, True)])
def test_a_call_beyond_the_limit_is_refused(seconds: float, expected: bool) -> None:
    clock = FakeClock()
    assert refuses(per_query(clock, seconds / 8192), clock, LONG, 1.0) is expected


def test_a_call_beyond_the_limit_is_never_made_whole() -> None:
    clock = FakeClock()
    assert refuses(per_query(clock, 100.0 / 8192), clock, LONG, 1.0)
    assert clock.now < 20


@pytest.mark.parametrize("fixed", [0.01, 0.05, 0.15, 0.9])
def test_the_cost_of_a_call_is_not_taken_for_the_cost_of_its_size(fixed: float) -> None:
    clock = FakeClock()
    assert not refuses(per_query(clock, 0.0, fixed=fixed), clock, LONG, 1.0)


def test_the_cost_of_a_call_and_of_its_size_add_up() -> None:
    for seconds, expected in ((0.8, False), (0.95, True)):
        clock = FakeClock()
        candidate = per_query(clock, seconds / 8192, fixed=0.15)
        assert refuses(candidate, clock, LONG, 1.0) is expected


def test_a_causal_workload_is_never_cut_along_its_queries() -> None:
    clock = FakeClock()
    causal = Workload("causal", parse_shape("4,64,64,1,2,2").shape, "a test", mask="causal")
    assert refuses(per_query(clock, 1.0), clock, causal, 1.0)


@pytest.mark.parametrize("mode", ["weights", "padding"])
def test_parts_of_a_workload_are_tried_in_its_own_mode(mode: str) -> None:
    clock = FakeClock()
    assert not refuses(per_query(clock, 0.9 / 8192), clock, MODES[mode](LONG), 1.0)
    assert refuses(per_query(clock, 1.1 / 8192), clock, MODES[mode](LONG), 1.0)
