"""Each workload on each backend, as pytest-benchmark shows and keeps it.

`pytest -p fullattention.pytest_plugin --pyargs fullattention.bench --backend torch-sdpa`

The first test of a workload holds the contest of all its backends; each test hands the turns of its
own backend to pytest-benchmark.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from fullattention.bench.conditions import crowded_out
from fullattention.bench.session import BenchSession, bench_session
from fullattention.records import Timing


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All backends on one workload before the next: they take turns."""
    options = bench_session(metafunc.config).options
    pairs = [(workload.title, spec) for workload in options.workloads for spec in options.backends]
    metafunc.parametrize(("workload", "spec"), pairs, ids=["-".join(pair) for pair in pairs])


class Replay:
    """A clock by which the n-th thing that is timed takes the n-th of the given times."""

    __name__ = "replay"

    def __init__(self, seconds: Sequence[float]) -> None:
        self.readings = [reading for one in seconds for reading in (0.0, one)]

    def __call__(self) -> float:
        """Seconds since the present thing began."""
        return self.readings.pop(0) if self.readings else 0.0


@pytest.fixture(scope="session")
def session(request: pytest.FixtureRequest) -> BenchSession:
    """The run that this test is part of."""
    return bench_session(request.config)


@dataclass(frozen=True)
class Part:
    """What a contest gave for one backend."""

    timing: Timing
    turns: Sequence[float]
    """Seconds per call of each."""
    broken: str
    """How it raised, hung or died; empty if it did not."""


@pytest.fixture
def part(
    session: BenchSession,
    workload: str,
    spec: str,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> Part:
    """The backend's part; it lets pytest-benchmark, which comes after it, replay the turns."""
    if request.config.getoption("benchmark_disable") or "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("pytest-benchmark is switched off, by --benchmark-disable or by pytest-xdist")
    measured = session.measure(session.options.workload(workload))
    name = session.name(spec)
    found = Part(
        measured.timings[name], measured.turns.get(name, ()), measured.broken.get(name, "")
    )
    request.applymarker(pytest.mark.benchmark(group=workload, timer=Replay(found.turns)))
    record_property("measured", (found.timing, measured.over_baseline(name)))
    return found


def test_speed(
    part: Part,  # before pytest-benchmark's fixture, which reads the clock that it sets
    benchmark: Any,  # pytest-benchmark has no types
) -> None:
    """The backend is conformant, and right while it is timed."""
    if part.broken:
        pytest.fail(part.broken, pytrace=False)
    timing = part.timing
    if timing.status == "not run":
        pytest.skip(timing.reason)
    benchmark.extra_info.update(_extra_info(timing))
    benchmark.pedantic(lambda: None, rounds=len(part.turns))
    if timing.status != "timed":
        benchmark.has_error = True  # keeps it out of pytest-benchmark's files
        if timing.status == "void" and timing.reason == crowded_out(timing):
            pytest.skip(timing.reason)  # that is no fault of the backend
        pytest.fail(timing.reason, pytrace=False)


def _extra_info(timing: Timing) -> dict[str, str | float | bool | None]:
    return {
        "verdict": timing.verdict_level,
        "conformant": timing.conformant,
        "error_over_bound": timing.error_over_bound,
        "first_call": timing.first_call,
        "seed": timing.seed,
    }
