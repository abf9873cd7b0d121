"""Each workload on each backend, as pytest-benchmark runs it.

`pytest -p fullattention.pytest_plugin --pyargs fullattention.bench --backend torch-sdpa`
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fullattention.bench.session import BenchSession, bench_session
from fullattention.records import Timing


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Time all backends on one workload before the next: what is compared is close in time."""
    options = bench_session(metafunc.config).options
    pairs = [(workload.name, spec) for workload in options.workloads for spec in options.backends]
    metafunc.parametrize(("workload", "spec"), pairs, ids=["-".join(pair) for pair in pairs])


@pytest.fixture(scope="session")
def session(request: pytest.FixtureRequest) -> BenchSession:
    """The run that this test is part of."""
    return bench_session(request.config)


def test_speed(
    session: BenchSession,
    workload: str,
    spec: str,
    benchmark: Any,  # pytest-benchmark has no types
    record_property: Callable[[str, object], None],
) -> None:
    """The backend is conformant, and right while it is timed."""
    if benchmark.disabled:
        pytest.skip("pytest-benchmark is switched off, by --benchmark-disable or by pytest-xdist")
    benchmark.group = workload
    timing = session.time(
        spec,
        session.options.workload(workload),
        measure=functools.partial(_pedantic, benchmark),
        tell=functools.partial(record_property, "timing"),
    )
    if timing.status == "not run":
        pytest.skip(timing.reason)
    benchmark.extra_info.update(_extra_info(timing))
    if timing.status == "wrong":
        benchmark.has_error = True  # keeps it out of pytest-benchmark's files
        pytest.fail(timing.reason, pytrace=False)


def _pedantic(
    benchmark: Any,  # pytest-benchmark has no types
    function: Callable[[], None],
    rounds: int,
    calls: int,
) -> Sequence[float]:
    """Seconds per call of each round, by pytest-benchmark's clock."""
    benchmark.pedantic(function, rounds=rounds, iterations=calls)
    return tuple(benchmark.stats.stats.data)


def _extra_info(timing: Timing) -> dict[str, str | float | bool | None]:
    return {
        "verdict": timing.verdict_level,
        "conformant": timing.conformant,
        "error_over_bound": timing.error_over_bound,
        "first_call": timing.first_call,
        "seed": timing.seed,
    }
