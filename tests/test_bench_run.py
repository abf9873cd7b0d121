"""A run of the benchmarks: options, records as they come, exit statuses, interruption."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import threadpoolctl

from fullattention.backends import names
from fullattention.bench.options import make_options
from fullattention.bench.run import run
from fullattention.bench.session import TIMINGS, VERDICTS, BenchSession
from fullattention.conformance.suite import judge_subject
from fullattention.machine.hardware import usable_cores
from fullattention.records import Environment, Timing, Verdict, read
from fullattention.reports.folder import write_report
from tests.bench_fakes import BRIEF, FakeMeasure

CANDIDATES = """
import numpy as np
from tests.bench_fakes import backend

SHAPE = (3, 5, 1, 2)  # a workload's, and of no check

def spoiled(spoil):
    return lambda result, q, k, v: spoil(result) if q.shape == SHAPE else result

def interrupt(result):
    raise KeyboardInterrupt

def fail(result):
    raise RuntimeError("broken here\\nand there")

right = backend("right", lambda result, *_: result)
zeros = backend("zeros", lambda result, *_: (np.zeros_like(result[0]), result[1]))
late = backend("late", spoiled(lambda result: (1.01 * result[0], result[1])))
failing = backend("failing", spoiled(fail))
interrupted = backend("interrupted", spoiled(interrupt))
"""

SHAPE = "3,5,5,1,2,2"


class Heard:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.count = 0
        self.environment: Environment | None = None
        self.timings: list[Timing] = []

    def started(self, environment: Environment, count: int) -> None:
        self.environment, self.count = environment, count

    def measured(self, timing: Timing) -> None:
        self.timings.append(timing)


@pytest.fixture
def candidates(tmp_path: Path) -> Path:
    path = tmp_path / "candidates.py"
    path.write_text(CANDIDATES)
    return path


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Little effort, no trace of the pytest that runs this test, threads as they were."""
    monkeypatch.setattr("fullattention.bench.session.Effort", lambda: BRIEF)
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    with threadpoolctl.threadpool_limits():
        yield


def bench(candidates: Path, *objects: str, **options: Any) -> tuple[int, Heard, Path]:
    heard, out = Heard(), candidates.parent / "out"
    defaults: dict[str, Any] = {
        "backends": [f"{candidates}:{name}" for name in objects],
        "shapes": [SHAPE],
        "threads": 1,
        "out": out,
    }
    return run(**defaults | options, listener=heard, report=write_report), heard, out


# Whole runs


def test_a_right_run_exits_0_and_leaves_records_and_report(
    candidates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, heard, out = bench(candidates, "right")
    assert status == 0
    assert heard.count == 1
    assert heard.environment is not None
    assert heard.environment.threads == 1
    assert read(out / TIMINGS, Timing) == heard.timings
    (timing,) = heard.timings
    assert timing.status == "timed"
    (verdict,) = read(out / VERDICTS, Verdict)
    assert verdict.conformant
    assert verdict.level == timing.verdict_level == "quick"
    printed = capsys.readouterr().out
    assert "right" in printed
    assert "seconds" not in printed, "pytest's own summary is left out"
    assert (out / "report.md").read_text().startswith("# ")
    assert (out / "report.csv").read_text().count("\n") == 2


def test_pytest_benchmarks_own_file_is_strict_and_carries_the_verdict(candidates: Path) -> None:
    _, heard, out = bench(candidates, "right", "late")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text = (out / "pytest-benchmark.json").read_text()
    (benchmark,) = json.loads(text, parse_constant=refuse)["benchmarks"]
    assert benchmark["extra_info"]["conformant"] is True
    assert benchmark["extra_info"]["error_over_bound"] == heard.timings[0].error_over_bound
    assert benchmark["params"]["workload"] == heard.timings[0].workload
    assert benchmark["stats"]["median"] == pytest.approx(heard.timings[0].median)


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("late", "wrong", "times its bound"),
        ("zeros", "not run", "not conformant"),
        ("failing", "not run", "raised RuntimeError: broken here"),
    ],
)
def test_a_wrong_candidate_makes_the_run_exit_1_and_stops_nobody_else(
    candidates: Path, name: str, status: str, reason: str
) -> None:
    exit_status, heard, out = bench(candidates, name, "right")
    assert exit_status == 1
    wrong, right = heard.timings
    assert wrong.status == status
    assert reason in wrong.reason
    assert right.status == "timed"
    assert read(out / TIMINGS, Timing) == heard.timings


def test_an_interruption_keeps_and_reports_what_was_measured(
    candidates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, heard, out = bench(candidates, "right", "interrupted", "late")
    assert status == 130
    assert [timing.backend for timing in heard.timings] == ["right"]
    assert read(out / TIMINGS, Timing) == heard.timings
    assert "right" in (out / "report.md").read_text()
    assert "Fastest" in capsys.readouterr().out


def test_a_run_that_times_nothing_does_not_succeed(candidates: Path) -> None:
    status, heard, _ = bench(candidates, backends=["cupy-matmul"])
    assert status == 1
    reason = heard.timings[0].reason
    assert "cupy is not installed" in reason or "CuPy runs on" in reason


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workloads": ["toi"]}, "no workload fits 'toi'"),
        ({"shapes": ["1,2"]}, "shape is '1,2'"),
        ({"dtypes": ["int8"]}, "dtype is 'int8'"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": 9999}, "the cores this process may use"),
        ({"backends": ["nonsense"]}, "no backend is called 'nonsense'"),
    ],
)
def test_an_argument_that_makes_no_sense_exits_2_and_leaves_no_folder(
    candidates: Path,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, object],
    says: str,
) -> None:
    status, _, out = bench(candidates, "right", **options)
    assert status == 2
    assert says in capsys.readouterr().err
    assert not out.exists()


def test_candidates_that_share_a_name_are_refused(
    candidates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.py"
    other.write_text(candidates.read_text())
    backends = [f"{candidates}:right", f"{other}:right"]
    status, heard, _ = bench(candidates, backends=backends)
    assert status == 2
    assert not heard.timings
    assert "both called 'right'" in capsys.readouterr().err


def test_another_runs_folder_is_refused_and_left_alone(
    candidates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = candidates.parent / "out"
    out.mkdir()
    (out / TIMINGS).write_text("precious")
    status, _, _ = bench(candidates, "right")
    assert status == 2
    assert "holds the timings of another run" in capsys.readouterr().err
    assert (out / TIMINGS).read_text() == "precious"


# Sessions


def session(candidates: Path, *objects: str, **options: Any) -> BenchSession:
    backends = [f"{candidates}:{name}" for name in objects]
    defaults: dict[str, Any] = {"backends": backends, "shapes": [SHAPE], "threads": 1}
    made = BenchSession(make_options(**defaults | options))
    made.effort = BRIEF
    return made


@pytest.mark.parametrize("threads", sorted({1, usable_cores()}))
def test_a_session_sets_the_threads_that_it_records(candidates: Path, threads: int) -> None:
    made = session(candidates, "right", threads=threads)
    assert made.environment.threads == threads
    assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info()} == {threads}


def test_a_verdict_is_reached_once_for_each_dtype(
    candidates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[tuple[str, ...]] = []

    def counted(*arguments: Any, dtypes: tuple[str, ...], **options: Any) -> Verdict:
        judged.append(dtypes)
        return judge_subject(*arguments, dtypes=dtypes, **options)

    monkeypatch.setattr("fullattention.bench.session.judge_subject", counted)
    made = session(
        candidates, "right", shapes=[SHAPE, "2,2,2,2,2,2"], dtypes=["float32", "float64"]
    )
    (spec,) = made.options.backends
    for workload in made.options.workloads:
        assert made.time(spec, workload, FakeMeasure(), lambda _: None).status == "timed"
    assert judged == [("float32",), ("float64",)]


def test_a_record_is_on_disk_before_anything_else_can_happen(
    candidates: Path, tmp_path: Path
) -> None:
    made = session(candidates, "failing", out=tmp_path / "out")
    (spec,), (workload,) = made.options.backends, made.options.workloads
    on_disk: list[list[Timing]] = []

    def tell(timing: Timing) -> None:
        on_disk.append(read(tmp_path / "out" / TIMINGS, Timing))
        assert on_disk[-1] == [timing]

    with pytest.raises(RuntimeError, match="broken here"):
        made.time(spec, workload, FakeMeasure(), tell)
    assert len(on_disk) == 1


def test_a_dtype_that_a_candidate_does_not_take_is_not_run_with_the_reason(
    candidates: Path,
) -> None:
    made = session(candidates, "right")
    (spec,), (workload,) = made.options.backends, made.options.workloads
    subject = made.subjects[spec]
    assert not isinstance(subject, Exception)
    only = {"float32": subject.precision["float32"]}
    made.subjects[spec] = dataclasses.replace(subject, precision=only)
    timing = made.time(spec, workload.in_dtype("float16"), FakeMeasure(), lambda _: None)
    assert (timing.status, timing.reason) == ("not run", "float16: it takes float32")
    assert not made.verdicts


# Options


def test_by_default_every_known_backend_is_tried_and_the_baseline_first() -> None:
    options = make_options()
    assert options.backends[0] == "torch-sdpa"
    assert sorted(options.backends) == sorted(names())
    assert make_options(backends=["all"]).backends == options.backends
    assert make_options(backends=["b", "a", "b"]).backends == ("b", "a")


def test_a_shape_alone_replaces_the_default_set() -> None:
    assert [w.name for w in make_options(shapes=["1,1,1,1,1,1"]).workloads] == ["shape/1x1x1x1x1x1"]
    both = make_options(shapes=["1,1,1,1,1,1"], workloads=["toy"]).workloads
    assert [w.name for w in both] == ["toy", "shape/1x1x1x1x1x1"]


def test_dtypes_replace_the_workloads_own() -> None:
    options = make_options(workloads=["toy", "vit/b16*"], dtypes=["float16", "float32"])
    assert [w.name for w in options.workloads] == [
        "toy/float16",
        "toy",
        "vit/b16/float16",
        "vit/b16",
    ]
    assert options.workload("toy/float16").dtype == "float16"


def test_no_thread_of_the_run_outlives_it(candidates: Path) -> None:
    before = set(threading.enumerate())
    bench(candidates, "right")
    assert set(threading.enumerate()) == before
