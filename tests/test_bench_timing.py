"""What is timed, how often, and what becomes of it; by clocks that the tests move."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fullattention.backends import UnsupportedError, standard
from fullattention.backends.precision import flash
from fullattention.bench.calls import Calls, build_layer
from fullattention.bench.inputs import SEED, random_inputs
from fullattention.bench.limits import TooLargeError, require_memory, require_time
from fullattention.bench.timing import Effort, time_subject
from fullattention.bench.workloads import Workload, parse_shape
from fullattention.conformance.subject import Subject
from fullattention.records import Result, Timing
from tests.bench_fakes import (
    BRIEF,
    ENVIRONMENT,
    FakeClock,
    FakeMeasure,
    subject,
    verdict,
)

SMALL = parse_shape("2,5,7,3,4,6")


def timed(
    candidate: Subject,
    workload: Workload = SMALL,
    *,
    measure: FakeMeasure | None = None,
    **options: Any,
) -> Timing:
    defaults: dict[str, Any] = {
        "verdict": verdict(),
        "environment": ENVIRONMENT,
        "measure": measure or FakeMeasure(),
        "effort": BRIEF,
    }
    return time_subject(candidate, workload, **defaults | options)


def raising(error: Exception) -> Subject:
    def spoil(*_: object) -> Any:
        raise error

    return subject(spoil)


# What a timing says


def test_a_timing_has_the_quartiles_of_the_samples_and_what_was_timed() -> None:
    timing = timed(subject())
    assert timing.status == "timed"
    assert (timing.lower_quartile, timing.median, timing.upper_quartile) == (2.0, 3.0, 4.0)
    assert timing.minimum == 1.0
    assert timing.shape == (2, 5, 7, 3, 4, 6)
    assert (timing.workload, timing.dtype, timing.mask) == (SMALL.name, "float32", "none")
    assert (timing.verdict_level, timing.conformant) == ("quick", True)
    assert timing.error_over_bound is not None
    assert 0 < timing.error_over_bound <= 1
    assert timing.seed == SEED


def test_a_small_error_in_a_timed_call_makes_it_wrong_and_says_how_much() -> None:
    timing = timed(subject(lambda result, *_: (result[0] * 1.001, None)))
    assert timing.status == "wrong"
    assert timing.error_over_bound is not None
    assert timing.error_over_bound > 1
    assert "times its bound" in timing.reason


def test_nan_makes_a_timing_wrong_and_leaves_no_number_that_json_lacks() -> None:
    timing = timed(subject(lambda result, *_: (result[0] * np.nan, None)))
    assert timing.status == "wrong"
    assert timing.error_over_bound is None
    assert "NaN" in timing.reason


@pytest.mark.parametrize(("before_the_end", "status"), [(0, "wrong"), (-1, "timed")])
def test_the_last_timed_call_is_looked_at_and_none_after_it(
    before_the_end: int, status: str
) -> None:
    measure = FakeMeasure()

    def spoil(result: Any, *_: object) -> Any:
        return result[0] * (2 if measure.before_the_end == before_the_end else 1), None

    assert timed(subject(spoil), measure=measure).status == status


def test_writing_into_the_inputs_makes_a_timing_wrong() -> None:
    def spoil(result: Any, _q: np.ndarray, k: np.ndarray, _v: np.ndarray) -> Any:
        k[0, 0, 0, 0] += 1
        return result

    timing = timed(subject(spoil))
    assert timing.status == "wrong"
    assert timing.reason == "it changed its keys"


# What is not run


def test_a_candidate_that_is_not_conformant_is_not_timed() -> None:
    failed = [
        Result(check=name, requirement="C1", section="core", dtype="float32", status="failed")
        for name in ("C1: a", "C1: b", "C1: c")
    ]
    bad = dataclasses.replace(verdict(conformant=False), results=tuple(failed))
    timing = timed(raising(AssertionError("it was called")), verdict=bad)
    assert timing.status == "not run"
    assert timing.conformant is False
    assert timing.reason == "not conformant: C1: a, 2 more"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnsupportedError("fake", "causal", "not written"), "lacks causal: not written"),
        (MemoryError(), "out of memory: MemoryError"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA\nmore"), "out of memory: CUDA"),
    ],
)
def test_a_refusal_is_no_error(error: Exception, reason: str) -> None:
    timing = timed(raising(error))
    assert (timing.status, timing.reason) == ("not run", reason)


def test_any_other_error_is_passed_on() -> None:
    with pytest.raises(ZeroDivisionError):
        timed(raising(ZeroDivisionError()))


def test_what_does_not_fit_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullattention.machine.hardware.memory_free", lambda: 1000)
    timing = timed(raising(AssertionError("it was called")))
    assert timing.status == "not run"
    assert "GiB of memory" in timing.reason


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
    undeclared = subject(precision=online.precision, lacks={"wide_scores": "unknown"})
    with pytest.raises(TooLargeError):
        require_memory(undeclared, scores_dominate, free=10_000_000)


# How long a call would take


def per_query(clock: FakeClock, seconds: float, fixed: float = 0.0) -> Subject:
    """A candidate that takes so long for each query, and a fixed time for each call."""

    def spoil(result: Any, q: np.ndarray, *_: object) -> Any:
        clock.now += fixed + seconds * q.shape[0] * q.shape[1]
        return result

    return subject(spoil)


def refuses(candidate: Subject, clock: FakeClock, workload: Workload, longest: float) -> bool:
    try:
        require_time(candidate, workload, random_inputs(workload, SEED), longest, clock)
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


# How calls are made


def test_the_device_is_waited_for_once_a_round() -> None:
    waits: list[int] = []
    candidate = subject()
    arrays = dataclasses.replace(candidate.arrays, synchronize=lambda _: waits.append(calls.made))
    candidate = dataclasses.replace(candidate, arrays=arrays)
    calls = Calls(candidate, build_layer(candidate, SMALL), random_inputs(SMALL, SEED))
    calls.start(per_round=4, wanted=(0, 7))
    for _ in range(8):
        calls()
    assert waits == [4, 8]
    assert len(calls.kept) == 2
    assert calls.kept[0] is not calls.kept[1]


EFFORT = Effort(measuring=1.0, round=2**-5, warm_up=0.0, fewest_rounds=5, longest_call=10.0)
"""Binary fractions, which add up exactly."""


def test_rounds_last_long_enough_and_fill_the_time() -> None:
    clock, measure = FakeClock(), FakeMeasure()
    candidate = per_query(clock, 0.0, fixed=2**-10)
    timing = timed(candidate, clock=clock, measure=measure, effort=EFFORT)
    assert (timing.rounds, timing.calls_per_round) == measure.asked == (32, 32)


def test_slow_calls_still_get_some_rounds() -> None:
    clock, measure = FakeClock(), FakeMeasure()
    candidate = per_query(clock, 0.0, fixed=2.0)
    timing = timed(candidate, clock=clock, measure=measure, effort=EFFORT)
    assert (timing.rounds, timing.calls_per_round) == measure.asked == (5, 1)


def test_the_first_call_of_a_fresh_layer_is_told_apart() -> None:
    clock = FakeClock()
    fresh = True

    def build(**arguments: Any) -> Any:
        nonlocal fresh
        fresh = True
        layer = subject().build(**arguments)

        class Compiling:
            def eval(self) -> None:
                layer.eval()

            def __call__(self, *arrays: Any) -> Any:
                nonlocal fresh
                clock.now += 7.0 if fresh else 2**-10
                fresh = False
                return layer(*arrays)

        return Compiling()

    timing = timed(dataclasses.replace(subject(), build=build), clock=clock, effort=EFFORT)
    assert timing.first_call == 7.0
    assert timing.calls_per_round == 32
