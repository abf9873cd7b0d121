"""A run of the benchmarks: options, records as they come, exit statuses, interruption."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import threadpoolctl

from fullattention.backends import names
from fullattention.bench.ceilings import Rates
from fullattention.bench.inputs import InputPool
from fullattention.bench.measure import Measured, measure
from fullattention.bench.options import make_options, thread_counts
from fullattention.bench.run import new_folder, run
from fullattention.bench.session import BenchSession
from fullattention.bench.worker import Worker
from fullattention.bench.workloads import Workload
from fullattention.machine.hardware import usable_cores
from fullattention.records import (
    CEILINGS,
    COMPARISONS,
    TIMINGS,
    VERDICTS,
    Ceilings,
    Comparison,
    Environment,
    Timing,
    Verdict,
    read,
)
from fullattention.reports.folder import write_report
from tests.bench_fakes import BRIEF
from tests.little_effort import little_effort

CANDIDATES = """
import functools, os
import numpy as np
from fullattention.bench import server
from fullattention.conformance.suite import judge_subject
from tests.bench_fakes import GOOD, backend

# In the candidate's process: no verdict here depends on more than one check.
server.judge_subject = functools.partial(judge_subject, only="C1: shape=2,5,7,3,11,13 dtype=")

SHAPE = (3, 5, 1, 2)  # a workload's, and of no check

def spoiled(spoil):
    return lambda result, q, k, v: spoil(result) if q.shape == SHAPE else result

def die(result):
    os._exit(3)

def fail(result):
    raise RuntimeError("broken here\\nand there")

right = backend("right", lambda result, *_: result)
zeros = backend("zeros", lambda result, *_: (np.zeros_like(result[0]), result[1]))
late = backend("late", spoiled(lambda result: (1.01 * result[0], result[1])))
failing = backend("failing", spoiled(fail))
again = backend("again", lambda result, *_: result)
single = backend(
    "single", lambda result, *_: result, precision={"float32": GOOD.precision["float32"]}
)
dying = backend("dying", spoiled(die))
slow = backend("slow", lambda result, *_: result, compiles=True)
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

    def measured(self, timing: Timing, over_baseline: Comparison | None) -> None:
        assert over_baseline is None, "the baseline does not run here"
        self.timings.append(timing)


@pytest.fixture
def candidates(tmp_path: Path) -> Path:
    path = tmp_path / "candidates.py"
    path.write_text(CANDIDATES)
    return path


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Little effort, threads as they were, and however busy the machine is."""
    for limit in ("TAKEN", "EXCESS"):
        monkeypatch.setattr(f"fullattention.bench.conditions.{limit}", math.inf)
    # A run's own pytest ends with five of these, here over all libraries that tests have loaded.
    monkeypatch.setattr(
        "_pytest.unraisableexception.gc_collect_harder", lambda *_: None, raising=False
    )
    with threadpoolctl.threadpool_limits(), little_effort():
        yield


def bench(candidates: Path, *objects: str, **options: Any) -> tuple[int, Heard, Path]:
    heard, out = Heard(), candidates.parent / "out"
    chosen = make_options(**defaults(candidates, *objects) | options)
    return run(chosen, out=out, listener=heard, report=write_report), heard, out


def defaults(candidates: Path, *objects: str) -> dict[str, Any]:
    backends = [f"{candidates}:{name}" for name in objects]
    return {"backends": backends, "shapes": [SHAPE], "threads": 1}


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
        ("dying", "not run", "took its process down: exit status 3"),
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


@pytest.mark.parametrize(("crowded", "status"), [({"right"}, 0), ({"right", "again"}, 1)])
def test_to_be_crowded_out_is_no_failure_unless_nothing_is_timed(
    candidates: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    crowded: set[str],
    status: int,
) -> None:
    taken = property(lambda timing: 0.9 if timing.backend in crowded else 0.0)
    monkeypatch.setattr("fullattention.records.Timing.crowding", taken)
    monkeypatch.setattr("fullattention.bench.conditions.TAKEN", 0.5)
    found, heard, _ = bench(candidates, "right", "again")
    assert found == status
    assert {one.backend for one in heard.timings if one.status == "void"} == crowded
    printed = capsys.readouterr().out
    assert "FAILURES" not in printed
    assert "other processes took 0.9 of the 1 core" in " ".join(printed.split())


def test_one_that_dies_at_import_is_not_run_and_stops_nobody_else(
    candidates: Path, tmp_path: Path
) -> None:
    fatal = tmp_path / "fatal.py"
    fatal.write_text("import os\nos._exit(3)\n")
    status, heard, _ = bench(candidates, backends=[f"{fatal}:backend", f"{candidates}:right"])
    dead, right = heard.timings
    assert (dead.status, right.status, status) == ("not run", "timed", 0)
    assert dead.reason == "took its process down: exit status 3, at import"


def test_an_interruption_keeps_and_reports_what_was_measured(
    candidates: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = BenchSession.measure
    second = "2,2,2,2,2,2"

    def measure(self: BenchSession, workload: Workload) -> Measured:
        if workload.name.endswith("2x2x2x2x2x2"):
            raise KeyboardInterrupt
        return whole(self, workload)

    monkeypatch.setattr(BenchSession, "measure", measure)
    status, heard, out = bench(candidates, "right", shapes=[SHAPE, second])
    assert status == 130
    assert [timing.backend for timing in heard.timings] == ["right"]
    assert read(out / TIMINGS, Timing) == heard.timings
    assert "right" in (out / "report.md").read_text()
    assert "Fastest" in capsys.readouterr().out


def test_runs_of_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Stopped:
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datetime, "datetime", Stopped)
    made = [new_folder() for _ in range(3)]
    assert [folder.name for folder in made] == [
        "2026-01-02T030405",
        "2026-01-02T030405-2",
        "2026-01-02T030405-3",
    ]
    assert all(folder.is_dir() for folder in made)


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
        ({"modes": ["sideways"]}, "no mode is called 'sideways'"),
        ({"seconds": -1.0}, "seconds is -1: a finite number from 0 on"),
        ({"seconds": math.nan}, "seconds is nan: a finite number from 0 on"),
        ({"threads": 9999}, "the cores this process may use"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises((LookupError, ValueError), match=says):
        make_options(**options)


def test_a_backend_that_does_not_exist_exits_2_and_leaves_no_folder(
    candidates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, out = bench(candidates, backends=["nonsense"])
    assert status == 2
    assert "no backend is called 'nonsense'" in capsys.readouterr().err
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
    candidates: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fullattention.bench.session.Worker", None)  # to start one would raise
    out = candidates.parent / "out"
    out.mkdir()
    (out / TIMINGS).write_text("precious")
    status, _, _ = bench(candidates, "right")
    assert status == 2
    assert "holds the timings of another run" in capsys.readouterr().err
    assert (out / TIMINGS).read_text() == "precious"


def test_a_folder_that_cannot_be_made_is_named(
    candidates: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fullattention.bench.session.Worker", None)  # to start one would raise
    out = candidates.parent / "out"
    out.write_text("a file")
    status, _, _ = bench(candidates, "right")
    assert status == 2
    assert f"out is {out}: nothing can be written there: Not a directory" in capsys.readouterr().err
    assert out.read_text() == "a file"


# Sessions


@pytest.fixture
def session(candidates: Path) -> Iterator[Callable[..., BenchSession]]:
    made: list[BenchSession] = []

    def make(*objects: str, out: Path | None = None, **options: Any) -> BenchSession:
        made.append(BenchSession(make_options(**defaults(candidates, *objects) | options), out))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_contest_is_held_once_and_a_verdict_reached_once_for_each_dtype(
    session: Callable[..., BenchSession], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    made = session("right", shapes=[SHAPE, "2,2,2,2,2,2"], dtypes=["float32", "float64"], out=out)
    for workload in made.options.workloads:
        measured = made.measure(workload)
        assert measured.timings["right"].status == "timed"
        assert made.measure(workload) is measured
    verdicts = read(out / VERDICTS, Verdict)
    assert [verdict.dtypes for verdict in verdicts] == [("float32",), ("float64",)]
    assert len(read(out / TIMINGS, Timing)) == 4


@pytest.mark.parametrize(
    ("shape", "disk", "reason"),
    [
        ("1000000,1000,1000,100,10,10", 2**60, "GiB of memory"),
        (SHAPE, 0, "0 KiB are free in"),
    ],
)
def test_what_is_too_large_is_not_run_and_no_inputs_are_written(
    session: Callable[..., BenchSession],
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    disk: int,
    reason: str,
) -> None:
    def refuse(pool: InputPool, seed: int) -> None:
        raise AssertionError("inputs are written")

    monkeypatch.setattr(InputPool, "write", refuse)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=disk))
    made = session("right", shapes=[shape])
    (workload,) = made.options.workloads
    timing = made.measure(workload).timings["right"]
    assert timing.status == "not run"
    assert reason in timing.reason
    assert not made.verdicts, "nothing is judged that cannot be timed"


@pytest.mark.parametrize(
    ("asked", "status"),
    [({}, "not run"), ({"full": True}, "timed"), ({"backends": ["all"]}, "timed")],
    ids=["default", "full", "all"],
)
def test_one_that_compiles_for_minutes_takes_part_only_if_asked_for(
    asked: dict[str, Any],
    status: str,
    session: Callable[..., BenchSession],
    candidates: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = [f"{candidates}:{name}" for name in ("right", "slow")]
    monkeypatch.setattr("fullattention.bench.options.names", lambda: known)
    monkeypatch.setattr("fullattention.bench.session.THOROUGH", BRIEF)
    made = session(**{"backends": [], "modes": ["forward"]} | asked)
    timings = made.measure(made.options.workloads[0]).timings
    assert [timing.status for timing in timings.values()] == ["timed", status]
    assert status == "timed" or "use --full" in list(timings.values())[1].reason


@pytest.mark.parametrize(("named", "status"), [(True, "timed"), (False, "not run")])
def test_a_call_beyond_the_limit_is_made_of_what_was_asked_for_by_name(
    named: bool,
    status: str,
    session: Callable[..., BenchSession],
    candidates: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    effort = dataclasses.replace(BRIEF, longest_call=1e-9)
    monkeypatch.setattr("fullattention.bench.session.Effort", lambda: effort)
    monkeypatch.setattr("fullattention.bench.options.names", lambda: [f"{candidates}:right"])
    made = session("right") if named else session(backends=["all"])
    timing = made.measure(made.options.workloads[0]).timings["right"]
    assert timing.status == status
    assert named or "the limit is 1e-09 s" in timing.reason


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("no_such_module:backend", "there is no module 'no_such_module'"),
        ("math:pi", "neither a Backend nor a function of a device"),
    ],
)
def test_a_broken_one_that_is_merely_installed_stops_nobody_else(
    broken: str,
    reason: str,
    session: Callable[..., BenchSession],
    candidates: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "fullattention.bench.options.names", lambda: [broken, f"{candidates}:right"]
    )
    made = session(backends=["all"])
    timings = made.measure(made.options.workloads[0]).timings
    assert reason in timings[broken].reason
    assert timings["right"].status == "timed"
    with pytest.raises((LookupError, TypeError), match=reason):
        session(backends=[broken])


def test_the_load_is_read_before_the_run_adds_to_it(
    session: Callable[..., BenchSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    start = BenchSession._start  # noqa: SLF001

    def noted(self: BenchSession, spec: str, count: int) -> list[Worker]:
        started.append(spec)
        return start(self, spec, count)

    monkeypatch.setattr(BenchSession, "_start", noted)
    monkeypatch.setattr("fullattention.machine.hardware.load_average", lambda: float(len(started)))
    assert session("right").environment.load == 0.0


def test_two_backends_are_compared_in_the_records(
    session: Callable[..., BenchSession], tmp_path: Path
) -> None:
    made = session("right", "again", out=tmp_path / "out")
    assert [len(workers) for workers in made.workers.values()] == [2, 2]
    (workload,) = made.options.workloads
    measured = made.measure(workload)
    (comparison,) = read(tmp_path / "out" / COMPARISONS, Comparison)
    assert [comparison] == measured.comparisons
    assert {comparison.backend, comparison.against} == {"right", "again"}
    assert (comparison.blocks, comparison.processes) == (4, 2)
    assert comparison.process_difference > 0
    assert comparison.shape == workload.shape


@pytest.mark.parametrize(
    ("later", "status", "contests"), [(1e12, "timed", 2), (2.0, "void", 1)], ids=["quiet", "busy"]
)
def test_before_a_time_is_void_as_too_fast_the_ceilings_are_measured_again(
    later: float,
    status: str,
    contests: int,
    session: Callable[..., BenchSession],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds = iter([1.0, later])

    def rates(device: str, threads: int) -> Rates:
        speed = next(speeds)
        return Rates({"16384": speed}, speed, speed)

    held: list[Workload] = []

    def counted(pool: InputPool, *arguments: Any, **options: Any) -> Measured:
        held.append(pool.workload)
        return measure(pool, *arguments, **options)

    monkeypatch.setattr("fullattention.bench.session.measure_apart", rates)
    monkeypatch.setattr("fullattention.bench.session.measure", counted)
    made = session("right", out=tmp_path / "out")
    timing = made.measure(made.options.workloads[0]).timings["right"]
    assert (timing.status, len(held)) == (status, contests)
    assert read(tmp_path / "out" / CEILINGS, Ceilings)[-1].matmul == later


def test_what_would_not_fit_into_memory_is_not_run_and_never_judged(
    session: Callable[..., BenchSession],
) -> None:
    made = session("right", shapes=["1,999999,999999,1,1,1"])
    timing = made.measure(made.options.workloads[0]).timings["right"]
    assert timing.status == "not run"
    assert timing.reason.startswith("needs about ")
    assert not made.verdicts


@pytest.mark.parametrize("full", [False, True])
def test_a_contest_takes_the_seconds_that_were_asked_for(
    full: bool, session: Callable[..., BenchSession]
) -> None:
    assert session("right", full=full, seconds=2.5, modes=["forward"]).effort.contest == 2.5


def test_a_session_that_cannot_write_leaves_no_process(
    session: Callable[..., BenchSession], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Worker] = []
    start = BenchSession._start  # noqa: SLF001 - what it starts is shown nowhere else

    def noted(self: BenchSession, spec: str, count: int) -> list[Worker]:
        workers = start(self, spec, count)
        started.extend(workers)
        return workers

    monkeypatch.setattr(BenchSession, "_start", noted)
    rates = Rates(copy={"16384": 1e9}, matmul=2e9, exp=3e9)
    monkeypatch.setattr("fullattention.bench.session.measure_apart", lambda device, threads: rates)
    (tmp_path / "out" / CEILINGS).mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        session("right", out=tmp_path / "out")
    assert started
    assert not any(worker.process.alive for worker in started)


def test_an_interruption_while_processes_are_ended_leaves_none(
    session: Callable[..., BenchSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, stop = session("right"), Worker.stop
    (workers,) = made.workers.values()
    ended: list[Worker] = []

    def interrupted(worker: Worker) -> None:
        stop(worker)
        ended.append(worker)
        if len(ended) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.close()
    assert len(workers) > 1
    assert not any(worker.process.alive for worker in workers)


def test_few_that_can_be_loaded_have_more_processes_each(
    session: Callable[..., BenchSession], candidates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many were asked for; all of them take turns."""
    effort = dataclasses.replace(BRIEF, differences=3)
    monkeypatch.setattr("fullattention.bench.session.Effort", lambda: effort)
    names = [f"{candidates}:right", f"{candidates}:again", "cupy-matmul"]
    made = session(backends=names)
    (workload,) = made.options.workloads
    found = made.measure(workload)
    assert [found.timings[name].processes for name in ("right", "again")] == [3, 3]
    assert found.timings["cupy-matmul"].status == "not run"


def test_one_that_died_takes_part_again_until_it_died_too_often(
    session: Callable[..., BenchSession],
) -> None:
    made = session("dying", dtypes=["float32", "float64", "float16", "bfloat16"])
    found = [made.measure(workload).timings["dying"] for workload in made.options.workloads]
    assert [timing.status for timing in found] == ["not run"] * 4
    assert ["exit status 3" in timing.reason for timing in found] == [True, True, True, False]
    assert found[3].reason == "3 processes hung or were taken down before"


def test_a_dtype_that_a_candidate_does_not_take_is_not_run_with_the_reason(
    session: Callable[..., BenchSession],
) -> None:
    made = session("single")
    (workload,) = made.options.workloads
    timing = made.measure(workload.in_dtype("float16")).timings["single"]
    assert (timing.status, timing.reason) == ("not run", "float16: it takes float32")
    assert (timing.library, timing.library_version) == ("numpy", np.__version__)
    assert not made.verdicts


def test_the_machines_ceilings_are_measured_and_kept(
    session: Callable[..., BenchSession], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = Rates(copy={"16384": 1e9}, matmul=2e9, exp=3e9)
    monkeypatch.setattr("fullattention.bench.session.measure_apart", lambda device, threads: rates)
    made = session("right", out=tmp_path / "out")
    (found,) = read(tmp_path / "out" / CEILINGS, Ceilings)
    assert (found.copy, found.matmul, found.exp) == rates
    assert found.environment == made.environment


def test_the_environment_names_the_blas_of_the_workers(
    session: Callable[..., BenchSession],
) -> None:
    made = session("right", threads=usable_cores())
    assert made.environment.threads == usable_cores()
    assert made.environment.blas == tuple(sorted(set(made.environment.blas)))
    assert any("blas" in name for name in made.environment.blas)


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


def test_modes_apply_to_every_workload_that_can_be_run_in_them() -> None:
    chosen = make_options(
        workloads=["transformer/cross", "transformer/decoder-self"],
        modes=["forward", "weights", "causal", "padding", "host"],
    ).workloads
    assert [workload.title for workload in chosen] == [
        "transformer/cross",
        "transformer/cross/weights",
        "transformer/cross/padding",
        "transformer/decoder-self/causal",
        "transformer/decoder-self/causal/weights",
        "transformer/decoder-self/padding",
    ]


def test_host_arrays_are_a_mode_of_devices_alone() -> None:
    on_gpu = make_options(workloads=["toy"], modes=["forward", "host"], device="cuda").workloads
    assert [workload.title for workload in on_gpu] == ["toy", "toy/host"]
    with pytest.raises(LookupError, match="host is for none"):
        make_options(workloads=["toy"], modes=["host"])


def test_a_full_run_has_all_modes_and_the_usual_one_only_forward() -> None:
    assert {w.mode for w in make_options().workloads} == {"forward"}
    full = make_options(full=True).workloads
    assert {w.mode for w in full} == {"forward", "weights", "training"}
    assert {w.mask for w in full} == {"none", "causal", "padding"}


def test_numbers_of_threads_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullattention.machine.hardware.usable_cores", lambda: 4)
    assert thread_counts("1,2,all") == [1, 2, 4]
    assert thread_counts("4,all") == [4]
    for wrong in ("0", "-1", "two", "1,,2", ""):
        with pytest.raises(ValueError, match="threads is"):
            thread_counts(wrong)


def test_no_thread_of_the_run_outlives_it(candidates: Path) -> None:
    before = set(threading.enumerate())
    bench(candidates, "right")
    assert set(threading.enumerate()) == before
