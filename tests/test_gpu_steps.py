"""The steps of `tools/gpu_check.py` on the CPU: what is wrong is called so, and what was left."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import time
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
from fullattention.bench.workloads import CATALOGUE, Workload
from fullattention.conformance import check
from fullattention.conformance.subject import from_backend
from tools import gpu_steps

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


def test_host_mode_starts_and_ends_on_the_host(tmp_path: Path) -> None:
    pool = InputPool(tmp_path / "inputs", MODES["host"](TOY))
    pool.write(SEED)
    torch = pytest.importorskip("torch")
    from fullattention.backends import torch_einsum

    subject = from_backend(torch_einsum.backend("cpu"))
    assert isinstance(gpu_steps.placed(subject, pool)[0].q, np.ndarray)
    record = gpu_steps._timed(subject, TOY, "host", {})  # noqa: SLF001
    assert record["status"] == "timed", record
    assert record["floor_seconds"] is None
    assert torch.is_tensor(gpu_steps.placed(subject, dataclasses.replace(pool, workload=TOY))[0].q)


def test_every_mode_is_among_the_jobs() -> None:
    modes = {mode for _, mode in JOBS("cuda")}
    assert modes == set(MODES)


# Conformance.


@pytest.mark.parametrize("compiles", [False, True])
def test_what_compiles_for_minutes_is_checked_quickly(
    compiles: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def noted(name: str, **options: Any) -> Any:
        asked.append(options)
        return check(GOOD, only="C1")

    give(monkeypatch, dataclasses.replace(GOOD, compiles=compiles))
    monkeypatch.setattr(gpu_steps, "check", noted)
    status, _ = gpu_steps.conformance("any", tmp_path)
    assert status == gpu_steps.RIGHT
    quick = {"level": "quick", "dtypes": ("float32",)}
    assert asked == [{"device": "cpu", **(quick if compiles else {"level": "standard"})}]


@pytest.fixture
def torch_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """A backend for torch's tensors, of which a few checks are made; torch is left as it was."""
    torch = pytest.importorskip("torch")
    from fullattention.backends import torch_einsum

    monkeypatch.setattr(gpu_steps, "check", functools.partial(check, only="C1: shape=2,5,7"))
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
