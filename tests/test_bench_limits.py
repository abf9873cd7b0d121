"""What is too large to be run, and what is refused before it is tried; by clocks the tests move."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import multiprocessing
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fullattention.backends import UnavailableError, UnsupportedError, standard
from fullattention.backends.interface import Sizes
from fullattention.backends.precision import flash
from fullattention.bench.device import peak_bytes
from fullattention.bench.inputs import InputPool
from fullattention.bench.limits import (
    TooLargeError,
    memory_needed,
    require_disk,
    require_memory,
    require_time,
)
from fullattention.bench.modes import MODES, Inputs, make_call
from fullattention.bench.workloads import Workload, parse_shape
from fullattention.conformance.subject import Subject, from_backend, load_subject
from tests.bench_fakes import FakeClock, subject


def test_memory_counts_the_scores_where_they_are_stored() -> None:
    scores_dominate = parse_shape("1,1000,1000,1,1,1")
    silent = functools.partial(subject, score_copies=None)
    stored, online = silent(), silent(precision={"float32": flash("float32")})
    double = silent(precision={"float32": standard("float64")})
    with pytest.raises(TooLargeError):
        require_memory(stored, scores_dominate, free=10_000_000)
    require_memory(online, scores_dominate, free=10_000_000)
    require_memory(stored, scores_dominate, free=20_000_000)
    with pytest.raises(TooLargeError):
        require_memory(double, scores_dominate, free=20_000_000)
    with pytest.raises(TooLargeError):  # returned weights are stored
        require_memory(online, MODES["weights"](scores_dominate), free=10_000_000)
    undeclared = silent(precision=online.precision, lacks={"wide_scores": "unknown"})
    with pytest.raises(TooLargeError):
        require_memory(undeclared, scores_dominate, free=10_000_000)


def test_a_backend_tells_itself_how_many_copies_of_the_scores_it_holds() -> None:
    asked: list[tuple[Sizes, set[str]]] = []

    def copies(sizes: Sizes, uses: Collection[str]) -> float:
        asked.append((sizes, set(uses)))
        return 2.5

    workload = parse_shape("1,1000,1000,1,1,1")
    needed = memory_needed(subject(score_copies=copies), workload)
    none = memory_needed(subject(score_copies=lambda sizes, uses: 0.0), workload)
    assert needed - none == 2.5 * 1000 * 1000 * 4
    for mode in ("padding", "causal", "training", "weights"):
        memory_needed(subject(score_copies=copies), MODES[mode](workload))
    uses = [{"mask"}, {"causal"}, {"gradient", "dropout"}, {"weights"}]
    assert asked == [(workload.shape, one) for one in (set(), *uses)]


def test_torch_picks_a_kernel_that_holds_no_scores_where_there_is_one() -> None:
    torch_sdpa = pytest.importorskip("fullattention.backends.torch_sdpa")
    subject = from_backend(torch_sdpa.backend("cpu"))
    square, oblong = parse_shape("1,1000,1000,1,8,8"), parse_shape("1,1000,1000,1,8,4")
    scores = 1000 * 1000 * 4
    assert memory_needed(subject, square) < scores < memory_needed(subject, oblong)
    assert memory_needed(subject, MODES["training"](square)) > 5 * scores


def test_blocks_of_scores_count_where_they_are_all_that_is_held() -> None:
    torch_bmm = pytest.importorskip("fullattention.backends.torch_bmm")
    subject = from_backend(torch_bmm.backend("cpu"))
    one, many = parse_shape("1,1000,1000,1,1,1"), parse_shape("64,1000,1000,1,1,1")
    scores = 1000 * 1000 * 4
    assert 3 * scores < memory_needed(subject, one) < 4 * scores
    assert 3 * scores < memory_needed(subject, many) < 5 * scores
    assert memory_needed(subject, MODES["weights"](many)) > 64 * 2 * scores


HELD = Sizes(16, 512, 512, 8, 16, 16)
"""Of which the scores take 128 MiB, and all else hardly anything."""

KEPT = 2**26
"""Bytes that an allocator may keep beside what a call needs, whatever its size."""


def peaks(name: str) -> dict[str, tuple[int, int]]:
    """By mode, the bytes that a call took and those that were foreseen; without what it lacks."""
    try:
        candidate = load_subject(name)
    except UnavailableError:
        return {}
    random, found = np.random.default_rng(1), {}
    for mode in ("forward", "weights", "causal", "padding", "training"):
        workload = MODES[mode](Workload("held", HELD, "a test"))
        B, L, _, H, E, _ = HELD
        numbers = (random.standard_normal((B, L, H, E), np.float32) for _ in Inputs._fields)
        inputs = Inputs(*(candidate.arrays.put(one, "cpu") for one in numbers))
        first = Inputs(*(one[:1] for one in inputs))
        small = dataclasses.replace(workload, shape=HELD._replace(B=1))
        try:
            make_call(candidate, small)(first)  # loads and starts what a first call needs
        except UnsupportedError:
            continue
        call = functools.partial(make_call(candidate, workload), inputs)
        peak = peak_bytes(candidate.library, "cpu", call)
        assert peak is not None
        found[mode] = (peak, memory_needed(candidate, workload))
    return found


@pytest.mark.proof
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "name",
    [
        *("numpy-reference", "numpy-matmul", "torch-einsum", "torch-bmm"),
        *("torch-sdpa", "torch-sdpa-math", "torch-sdpa-flash", "numba-cpu", "numba-cpu-torch"),
        *("onnxruntime", "onnxruntime-attention", "openvino"),
    ],
)
def test_no_call_takes_more_memory_than_was_foreseen(name: str) -> None:
    spawning = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawning) as processes:
        found = processes.submit(peaks, name).result()
    if not found:
        pytest.skip(f"{name} does not run here")
    over = {mode: figures for mode, figures in found.items() if figures[0] > figures[1] + KEPT}
    assert not over


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
