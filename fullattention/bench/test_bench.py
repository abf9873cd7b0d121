"""Each workload on each backend, as pytest-benchmark shows and keeps it.

`pytest -p fullattention.pytest_plugin --pyargs fullattention.bench --backend torch-sdpa`

The first test of a workload holds the contest of all its backends; each test hands the turns of its
own backend to pytest-benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fullattention.bench.session import BenchSession, bench_session
from fullattention.bench.workloads import Workload
from fullattention.records import Timing


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All backends on one workload before the next: they take turns."""
    options = bench_session(metafunc.config).options
    pairs = {
        f"{workload.title}-{spec}": (workload, spec)
        for workload in options.workloads
        for spec in options.backends
    }
    metafunc.parametrize(("workload", "spec"), pairs.values(), ids=pairs.keys())


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


@pytest.fixture
def timing(
    session: BenchSession,
    workload: Workload,
    spec: str,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> Timing:
    """The backend's timing; it lets pytest-benchmark, which comes after it, replay the turns."""
    if request.config.getoption("benchmark_disable") or request.config.getoption("benchmark_skip"):
        pytest.skip("pytest-benchmark is switched off")
    measured = session.measure(workload)
    name = session.name(spec)
    replay = Replay(measured.turns.get(name, ()))
    request.applymarker(pytest.mark.benchmark(group=workload.title, timer=replay))
    record_property("measured", (measured.timings[name], measured.over_baseline(name)))
    return measured.timings[name]


def test_speed(
    timing: Timing,
    benchmark: Any,  # pytest-benchmark has no types
    session: BenchSession,
    workload: Workload,
    spec: str,
) -> None:
    """The backend is conformant, and right while it is timed."""
    if benchmark.disabled:
        pytest.skip("pytest-benchmark is switched off, by pytest-xdist")
    if broken := session.measure(workload).broken.get(session.name(spec)):
        pytest.fail(broken, pytrace=False)
    if timing.status == "not run":
        pytest.skip(timing.reason)
    benchmark.extra_info.update(_extra_info(timing))
    benchmark.pedantic(lambda: None, rounds=len(session.measure(workload).turns[timing.backend]))
    if timing.status != "timed":
        benchmark.has_error = True  # keeps it out of pytest-benchmark's files
        pytest.fail(timing.reason, pytrace=False)


def _extra_info(timing: Timing) -> dict[str, str | float | bool | None]:
    return {
        "verdict": timing.verdict_level,
        "conformant": timing.conformant,
        "error_over_bound": timing.error_over_bound,
        "first_call": timing.first_call,
        "seed": timing.seed,
    }
