"""The steps of `tools/gpu_check.py` on the CPU: what is wrong is called so, and what was left."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

from fullattention.backends import Backend, UnsupportedError, numpy_matmul
from fullattention.backends.interface import Sizes
from fullattention.bench.inputs import SEED, SETS, InputPool
from fullattention.bench.modes import MODES, Results, make_call
from fullattention.bench.workloads import CATALOGUE, Workload, select
from fullattention.conformance import check
from fullattention.conformance.subject import from_backend
from fullattention.records import Verdict
from tools import gpu_steps

ROOT = Path(__file__).resolve().parents[1]
GOOD = numpy_matmul.backend("cpu")
TOY = CATALOGUE["toy"]
JOBS = gpu_steps.jobs


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what there is to time, one workload in one mode."""
    monkeypatch.setattr(gpu_steps, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_steps, "jobs", lambda device: [(TOY, "forward")])


def give(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    monkeypatch.setattr(gpu_steps, "load", lambda name, device: backend)


def raising(error: Exception) -> Backend:
    def attend(*arrays: Any, **options: Any) -> NoReturn:
        raise error

    return dataclasses.replace(GOOD, attend=attend)


# Figures.


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (RuntimeError("illegal address"), gpu_steps.WRONG, "1 raised"),
        (MemoryError("8 bytes"), gpu_steps.NOT_RUN, "1 not run"),
        (UnsupportedError("any", "mask", "why"), gpu_steps.NOT_RUN, "1 not run"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_raises_is_wrong_unless_it_lacks_support_or_memory(
    error: Exception, status: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, raising(error))
    assert gpu_steps.times("any", tmp_path) == (status, told)
    (line,) = (tmp_path / "times-any.jsonl").read_text().splitlines()
    assert json.loads(line)["reason"]


def test_a_right_backend_is_timed_until_there_is_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, GOOD)
    assert gpu_steps.times("any", tmp_path) == (gpu_steps.RIGHT, "1 timed")
    spent = time.monotonic() - 1
    left = (gpu_steps.NOT_RUN, "1 left for lack of time")
    assert gpu_steps.times("any", tmp_path, end=spent) == left


@pytest.mark.parametrize("copies", [1, 3, 16])
def test_calls_take_other_inputs_in_turn(
    copies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each at another address, and each judged by what it took."""
    monkeypatch.setattr(gpu_steps, "COPIES", copies)
    pool = InputPool(tmp_path / "inputs", TOY)
    pool.write(SEED)
    subject = from_backend(GOOD)
    sets = gpu_steps.placed(subject, pool)
    assert len({inputs.q.ctypes.data for inputs in sets}) == len(sets) >= max(copies, SETS)
    assert len(sets) % SETS == 0
    call = gpu_steps.Rotating(lambda inputs: Results(inputs.q), sets)
    for turn in range(2 * len(sets)):
        assert call().out is sets[turn % len(sets)].q
        wanted = pool.sets(pool.read_only())[call.number]
        assert np.array_equal(sets[turn % len(sets)].k, wanted.k)


def test_a_right_result_is_right_whichever_inputs_it_is_of(tmp_path: Path) -> None:
    """Of more heads and queries than are looked at: the same ones are sampled and judged."""
    pool = InputPool(tmp_path / "inputs", Workload("large", Sizes(9, 20, 20, 4, 8, 8), "test"))
    pool.write(SEED)
    subject = from_backend(GOOD)
    sets = gpu_steps.placed(subject, pool)
    call = gpu_steps.Rotating(make_call(subject, pool.workload), sets)
    for _ in sets:
        results = call()
        assert gpu_steps._error(subject, pool, results, call.number) <= 1  # noqa: SLF001


def test_a_result_that_goes_wrong_while_it_is_timed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a result is kept, and given again for other inputs."""
    results: list[Any] = []

    def attend(*arrays: Any, **options: Any) -> Any:
        results.append(GOOD.attend(*arrays, **options))
        return results[0]

    give(monkeypatch, dataclasses.replace(GOOD, attend=attend))
    assert gpu_steps.times("any", tmp_path) == (gpu_steps.WRONG, "1 wrong")
    record = json.loads((tmp_path / "times-any.jsonl").read_text())
    assert record["reason"].endswith("after it was timed")


def test_a_right_result_is_right_where_only_a_part_of_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = dataclasses.replace(TOY, shape=TOY.shape._replace(B=4 * TOY.shape.B))
    monkeypatch.setattr(gpu_steps, "jobs", lambda device: [(many, "forward")])
    give(monkeypatch, GOOD)
    assert gpu_steps.times("any", tmp_path) == (gpu_steps.RIGHT, "1 timed")
    assert json.loads((tmp_path / "times-any.jsonl").read_text())["error_over_bound"] <= 1


@pytest.mark.parametrize(("seconds", "samples"), [(1.0, 1), (1e-6, gpu_steps.CALLS)])
def test_calls_that_take_long_are_few(
    seconds: float, samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, calls = [0.0], [0]

    def attend(*arrays: Any, **options: Any) -> Any:
        now[0] += seconds
        calls[0] += 1
        return GOOD.attend(*arrays, **options)

    clock = SimpleNamespace(perf_counter=lambda: now[0], monotonic=time.monotonic)
    monkeypatch.setattr(gpu_steps, "time", clock)
    give(monkeypatch, dataclasses.replace(GOOD, attend=attend))
    assert gpu_steps.times("any", tmp_path) == (gpu_steps.RIGHT, "1 timed")
    record = json.loads((tmp_path / "times-any.jsonl").read_text())
    assert record["wall_seconds"] == pytest.approx(seconds)
    assert calls[0] == 3 + 5 * samples  # those that are judged or tried, and five samples


def test_a_dtype_that_the_host_has_no_numbers_of_is_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from fullattention.backends import torch_einsum

    monkeypatch.setattr(gpu_steps, "jobs", lambda device: [(TOY.in_dtype("bfloat16"), "forward")])
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    give(monkeypatch, torch_einsum.backend("cpu"))
    assert gpu_steps.times("any", tmp_path) == (gpu_steps.NOT_RUN, "1 not run")
    record = json.loads((tmp_path / "times-any.jsonl").read_text())
    assert record["reason"] == "ml_dtypes is not installed"


def test_host_mode_starts_and_ends_on_the_host(tmp_path: Path) -> None:
    pool = InputPool(tmp_path / "inputs", MODES["host"](TOY))
    pool.write(SEED)
    torch = pytest.importorskip("torch")
    from fullattention.backends import torch_einsum

    subject = from_backend(torch_einsum.backend("cpu"))
    assert isinstance(gpu_steps.placed(subject, pool)[0].q, np.ndarray)
    record = gpu_steps._timed(subject, TOY, "host", {}, tmp_path)  # noqa: SLF001
    assert record["status"] == "timed", record
    assert record["floor_seconds"] is None
    assert torch.is_tensor(gpu_steps.placed(subject, dataclasses.replace(pool, workload=TOY))[0].q)


def test_every_mode_is_among_the_jobs_and_the_goals_come_first() -> None:
    found = list(JOBS("cuda"))
    assert {mode for _, mode in found} == set(MODES)
    assert len(found) == len(set(found))
    forward = [workload for workload, mode in found if mode == "forward"]
    goals = {workload.name for workload in select(gpu_steps.GOALS)}
    first = forward[: 3 * len(goals)]
    assert {workload.dtype for workload in first} == {"float32", "float16", "bfloat16"}
    assert {workload.name.removesuffix(f"/{workload.dtype}") for workload in first} == goals


# The list of backends.


def test_a_backend_that_ends_the_process_costs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(name: str, device: str) -> Backend:
        if name == "crashes":
            raise SystemExit  # stands for a signal, which would end the tests too
        return GOOD

    monkeypatch.setattr(gpu_steps, "names", lambda: ["first", "crashes", "last"])
    monkeypatch.setattr(gpu_steps, "load", loaded)
    with pytest.raises(SystemExit):
        gpu_steps.backends("", tmp_path)
    status, line = gpu_steps.backends("", tmp_path)
    assert status == gpu_steps.RIGHT
    assert line == "2 of 3 run on 'cpu': first, last"
    listed = json.loads((tmp_path / "backends.json").read_text())
    assert "came to no end" in listed["crashes"]["reason"]


# Conformance.


@pytest.mark.parametrize("compiles", [False, True])
def test_what_compiles_for_minutes_is_checked_quickly(
    compiles: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def noted(name: str, *, level: str, dtypes: tuple[str, ...], **options: Any) -> Verdict:
        asked.append((level, dtypes))
        return check(GOOD, only="C1: contiguous")

    give(monkeypatch, dataclasses.replace(GOOD, compiles=compiles))
    monkeypatch.setattr(gpu_steps, "check", noted)
    status, _ = gpu_steps.conformance("any", tmp_path)
    assert status == gpu_steps.RIGHT
    first = ("quick", ("float32",))
    assert asked == ([first] if compiles else [first, ("quick", ()), ("standard", ())])


def test_conformance_ends_in_time_with_a_verdict_on_what_it_has_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 30 ticks of a clock that ticks whenever it is looked at."""
    ticks = itertools.count()
    monkeypatch.setattr(gpu_steps, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    give(monkeypatch, GOOD)
    status, line = gpu_steps.conformance("numpy-matmul", tmp_path, end=30)
    (record,) = (tmp_path / "verdict-numpy-matmul.jsonl").read_text().splitlines()
    results = json.loads(record)["results"]
    assert status == gpu_steps.RIGHT
    assert 0 < sum(one["status"] == "passed" for one in results) <= 31
    left = [one for one in results if one["detail"] == f"skipped: {gpu_steps.SPENT}"]
    assert line.endswith(f"{len(left)} left for lack of time")
    assert len(results) - 31 <= len(left) < len(results)


def test_conformance_without_any_time_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, GOOD)
    status, line = gpu_steps.conformance("numpy-matmul", tmp_path, end=time.monotonic() - 1)
    assert status == gpu_steps.NOT_RUN
    assert line.startswith("0 passed")


def test_what_fails_is_told_at_once_and_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = raising(RuntimeError("illegal address"))
    give(monkeypatch, wrong)
    few = functools.partial(check, wrong, only="C1: shape=2,5,7")
    monkeypatch.setattr(gpu_steps, "check", lambda name, **options: few(**_without_only(options)))
    status, line = gpu_steps.conformance("any", tmp_path)
    assert status == gpu_steps.WRONG
    told = [text for text in capsys.readouterr().out.splitlines() if "illegal address" in text]
    assert len(told) > len({text.partition(": raised")[0] for text in told})  # at each level
    assert line.startswith(f"{len(set(told))} failed, 0 passed")


def _without_only(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in ("only", "device")}


@pytest.fixture
def torch_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """A backend for torch's tensors, of which a few checks are made; torch is left as it was."""
    torch = pytest.importorskip("torch")
    from fullattention.backends import torch_einsum

    def few(candidate: Any, **options: Any) -> Verdict:
        return check(candidate, **options | {"only": "C1: shape=2,5,7"})

    monkeypatch.setattr(gpu_steps, "check", few)
    before = torch.are_deterministic_algorithms_enabled()
    yield torch_einsum.backend("cpu")
    torch.use_deterministic_algorithms(before)


def forgetful(backend: Backend) -> Backend:
    """Leaves the last row of its result unwritten, and is lucky unless memory starts as NaN."""

    def attend(*arrays: Any, **options: Any) -> Any:
        import torch

        out, weights = backend.attend(*arrays, **options)
        written = torch.empty_like(out)
        written[:, :-1] = out[:, :-1]
        if not written[:, -1].isnan().all():
            written[:, -1] = out[:, -1]
        return written, weights

    return dataclasses.replace(backend, attend=attend)


@pytest.mark.parametrize("forgets", [False, True])
def test_what_is_not_written_shows_where_memory_starts_as_nan(
    forgets: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch_backend: Backend
) -> None:
    give(monkeypatch, forgetful(torch_backend) if forgets else torch_backend)
    status, line = gpu_steps.nan_allocations("any", tmp_path)
    assert status == (gpu_steps.WRONG if forgets else gpu_steps.RIGHT), line


@pytest.mark.parametrize("late", [False, True])
def test_on_a_side_stream_a_backend_sees_the_copies_that_come_late(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch_backend: Backend
) -> None:
    def copies(*tensors: Any) -> tuple[Any, ...]:
        return tuple(x * float("nan") if late else x.clone() for x in tensors)

    give(monkeypatch, torch_backend)
    monkeypatch.setattr(
        gpu_steps, "_side_stream", lambda backend: (contextlib.nullcontext(), copies)
    )
    status, line = gpu_steps.side_stream("any", tmp_path)
    assert status == (gpu_steps.WRONG if late else gpu_steps.RIGHT), line


def test_a_library_that_the_steps_cannot_steer_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    give(monkeypatch, GOOD)
    for step in (gpu_steps.nan_allocations, gpu_steps.side_stream, gpu_steps.graph):
        with pytest.raises(UnsupportedError, match="not tried with arrays of numpy"):
            step("any", tmp_path)


def test_what_compiles_for_each_kind_of_call_is_not_tried_on_many(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, torch_backend: Backend
) -> None:
    give(monkeypatch, dataclasses.replace(torch_backend, compiles=True))
    for step in (gpu_steps.nan_allocations, gpu_steps.side_stream):
        with pytest.raises(UnsupportedError, match="compiles for each kind of call"):
            step("any", tmp_path)


def test_on_a_side_stream_a_backend_of_half_types_is_checked_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch_backend: Backend
) -> None:
    halves = {"float16": torch_backend.precision["float16"]}
    give(monkeypatch, dataclasses.replace(torch_backend, precision=halves))
    side = (contextlib.nullcontext(), lambda *tensors: tensors)
    monkeypatch.setattr(gpu_steps, "_side_stream", lambda backend: side)
    status, line = gpu_steps.side_stream("any", tmp_path)
    assert status == gpu_steps.RIGHT, line


def test_ceilings_are_rates_of_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(gpu_steps, "GIB", 1024)
    monkeypatch.setattr(gpu_steps, "MATRIX", 8)
    monkeypatch.setattr(gpu_steps, "_event_seconds", lambda call: 0.5 if call() is not None else 0)
    device = SimpleNamespace(total_memory=7)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda name: device)
    status, line = gpu_steps.ceilings("", tmp_path)
    assert status == gpu_steps.RIGHT
    found = json.loads((tmp_path / "ceilings.json").read_text())
    assert found["copy_bytes_per_second"] == 2 * 4 * 1024 / 0.5
    assert found["matmul_float16_operations_per_second"] == 2 * 8**3 / 0.5
    assert found["device_bytes"] == 7
    assert "copy_bytes_per_second" in line


# Bare machines.

BARE = """
import importlib.machinery, json, runpy, sys

missing = set(json.loads(sys.argv[1]))

class Bare(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in missing:
            return super().find_spec(name, path, target)

sys.meta_path = [Bare if one is importlib.machinery.PathFinder else one for one in sys.meta_path]
from tools import gpu_steps

gpu_steps.DEVICE = "cpu"
gpu_steps.jobs = lambda device: [(gpu_steps.select(("toy",))[0], "forward")]
sys.argv = ["gpu_steps.py", *sys.argv[2:]]
sys.exit(gpu_steps.main())
"""
"""Runs a step on the CPU where some libraries are not installed."""


@pytest.mark.parametrize("step", ["backends", "small-set", "times"])
def test_steps_need_no_library_of_the_suite(step: str, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    required = (*project["dependencies"], *project["optional-dependencies"]["suite"])
    names = {re.split(r"[^\w-]", one)[0].replace("-", "_") for one in required} - {"numpy"}
    backend = () if step == "backends" else ("--backend", "numpy-matmul")
    done = subprocess.run(
        [sys.executable, "-c", BARE, json.dumps([*names]), step, "--out", tmp_path, *backend],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == gpu_steps.RIGHT, done.stderr
    assert "ml_dtypes is not installed: bfloat16 is not checked" in done.stdout
