"""Workers: warm processes that judge, prepare, take turns, and may hang, raise or die."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fullattention.backends import UnavailableError, numpy_arrays, standard
from fullattention.bench.gpu_figures import GpuFigures
from fullattention.bench.inputs import DRAWN, SEED, InputPool, spot
from fullattention.bench.modes import MODES
from fullattention.bench.server import Server, Turn
from fullattention.bench.spot_check import SpotCheck
from fullattention.bench.worker import OutError, RefusedError, Worker
from fullattention.bench.workloads import parse_shape
from tests.bench_fakes import FakeClock, subject
from tests.living import living

CANDIDATES = """
import os, threading, time
import numpy as np
from fullattention.backends import UnsupportedError
from tests.bench_fakes import backend

def die(result, q):
    os._exit(3)

def fail(result, q):
    raise RuntimeError("broken here\\nand there")

def refuse(result, q):
    raise UnsupportedError("odd", "weights", "not today")

def interrupt(result, q):
    raise KeyboardInterrupt

def write(result, q):
    q[0, 0, 0, 0] += 1
    return result

until = 0.0

def spin():
    while time.perf_counter() < until:
        pass

def leave_a_thread(result, q):  # it spins for a while, in case another call follows
    global until
    idle, until = time.perf_counter() >= until, time.perf_counter() + 0.05
    if idle:
        threading.Thread(target=spin).start()
    return result

kept = {}

def by_address(result, q):
    return kept.setdefault(q.ctypes.data, result)

def by_value(result, q):  # the sum of a part, as a fingerprint
    return kept.setdefault(q[0].sum(), result)

ACTS = {
    22: die, 23: fail, 24: refuse, 25: interrupt, 26: write, 27: leave_a_thread, 29: by_address,
    30: by_value,
}

def act(result, q):  # by the batch's size, which no check has
    acts = ACTS
    return acts.get(q.shape[0], lambda result, q: result)(result, q)

odd = backend("odd", lambda result, q, k, v: act(result, q))
print("what candidates print is not shown")
"""

STARTING = """
import multiprocessing, subprocess
from tests.bench_fakes import backend

subprocess.Popen(["sleep", "600"])

def start(result):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(abs, [-1]) == [1]
    return result

starting = backend("starting", lambda result, q, k, v: start(result))
"""

ASKED = {"seconds": 60.0}
"""Far more than anything here takes."""


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("candidates") / "candidates.py"
    path.write_text(CANDIDATES)
    return path


@pytest.fixture
def worker(candidates: Path) -> Iterator[Worker]:
    made = Worker(f"{candidates}:odd", "cpu", 1)
    made.declaration()
    yield made
    made.stop()


def pool(folder: Path, B: int) -> InputPool:
    made = InputPool(folder / f"inputs{B}", parse_shape(f"{B},5,5,2,4,4"))
    made.write(SEED)
    return made


def test_a_worker_tells_what_its_candidate_is(worker: Worker) -> None:
    verdict = worker.ask("judge", "float32", **ASKED)
    assert (verdict.backend, verdict.level) == ("odd", "quick")
    assert any("blas" in name for name in worker.blas)


def test_turns_are_taken_on_inputs_that_both_sides_know(worker: Worker, tmp_path: Path) -> None:
    known = pool(tmp_path, 28)
    ready = worker.ask("prepare", known, 0.0, 1.0, **ASKED)
    assert ready.first_call is None, "parts of it were tried before"
    check = SpotCheck(known)
    for look in (7, 8, 9):
        turn: Turn = worker.ask("turn", look, **ASKED)
        assert turn.seconds > 0
        assert turn.sample is not None
        assert 0 < check.error(turn.sample, turn.inputs, standard("float32"), look) <= 1
    assert worker.ask("turn", DRAWN, **ASKED).sample is None
    assert worker.ask("changed_inputs", **ASKED) == ()


def cpu_nanoseconds(pid: int) -> int:
    return sum(
        int((task / "schedstat").read_text().split()[0])
        for task in Path(f"/proc/{pid}/task").iterdir()
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_turn_ends_once_the_candidates_threads_rest(worker: Worker, tmp_path: Path) -> None:
    worker.ask("prepare", pool(tmp_path, 27), 0.0, 1.0, **ASKED)
    worker.ask("turn", False, **ASKED)
    before = cpu_nanoseconds(worker.process.pid)
    time.sleep(0.03)
    assert cpu_nanoseconds(worker.process.pid) - before < 5e6, "a spinning thread takes 3e7"


def test_a_cpu_has_no_figures_of_a_gpu(worker: Worker, tmp_path: Path) -> None:
    worker.ask("prepare", pool(tmp_path, 28), 0.0, 1.0, **ASKED)
    assert worker.ask("gpu_figures", 1.0, **ASKED) == GpuFigures()
    assert worker.ask("turn", False, **ASKED).seconds > 0


@pytest.mark.parametrize("B", [29, 30])
def test_results_that_are_kept_by_addresses_or_by_some_values_are_found(
    B: int, worker: Worker, tmp_path: Path
) -> None:
    known = pool(tmp_path, B)
    worker.ask("prepare", known, 0.0, 1.0, **ASKED)
    look = next(n for n in range(1, 20) if 0 < spot(known.workload, n).b < 20)
    turn: Turn = worker.ask("turn", look, **ASKED)
    assert turn.sample is not None
    assert SpotCheck(known).error(turn.sample, turn.inputs, standard("float32"), look) > 1


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("immutable", [(), ("numpy",)], ids=["written to", "made anew"])
def test_inputs_change_for_a_look_on_a_device_of_their_own_too(
    immutable: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fullattention.bench.server.IMMUTABLE", immutable)
    apart = dataclasses.replace(numpy_arrays.ARRAYS, wrap=None)
    server, known = Server(subject(arrays=apart), 1), pool(tmp_path, 2)
    server.prepare(known, 0.0, None)
    check = SpotCheck(known)
    for look in (1, 2):
        turn = server.turn(look)
        assert turn.sample is not None
        assert 0 < check.error(turn.sample, turn.inputs, standard("float32"), look) <= 1
        assert check.error(turn.sample, turn.inputs, standard("float32"), look + 1) > 1
    assert server.changed_inputs() == ()


@pytest.mark.usefixtures("threads_restored")
def test_the_first_call_is_one_that_no_other_call_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, met = FakeClock(), set[tuple[int, ...]]()

    def compile_once(result: Any, q: np.ndarray, *_: object) -> Any:
        clock.now += 2.0**-8 if met else 5.0
        met.add(q.shape)
        return result

    monkeypatch.setattr("fullattention.bench.server.time", SimpleNamespace(perf_counter=clock))
    server = Server(subject(compile_once), 1)
    assert server.prepare(pool(tmp_path, 2), 0.0, None).first_call == 5.0
    met.clear()
    assert server.prepare(pool(tmp_path, 2), 0.0, 100.0).first_call is None


@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="JAX is not installed")
def test_jax_is_trained_too_and_its_arrays_change_for_a_look(tmp_path: Path) -> None:
    known = InputPool(tmp_path / "inputs", MODES["training"](parse_shape("4,24,24,3,8,8")))
    known.write(SEED)
    made = Worker("jax-einsum", "cpu", 1)
    try:
        made.declaration()
        made.ask("prepare", known, 0.0, None, **ASKED)
        turn: Turn = made.ask("turn", 1, **ASKED)
        assert made.ask("changed_inputs", **ASKED) == ()
    finally:
        made.stop()
    assert turn.sample is not None
    check, precision = SpotCheck(known), standard("float32")
    assert 0 < check.error(turn.sample, turn.inputs, precision, 1) <= 1
    assert check.error(turn.sample, turn.inputs, precision, 2) > 1


def test_writing_into_the_inputs_is_seen_and_reaches_nobody_else(
    worker: Worker, tmp_path: Path
) -> None:
    known = pool(tmp_path, 26)
    before = known.read_only().copy()
    worker.ask("prepare", known, 0.0, 1.0, **ASKED)
    worker.ask("turn", 3, **ASKED)
    assert worker.ask("changed_inputs", **ASKED) == ("queries",)
    assert (known.read_only() == before).all()


def test_a_candidates_error_is_told_and_the_worker_lives_on(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(OutError, match=r"^raised RuntimeError: broken here$"):
        worker.ask("prepare", pool(tmp_path, 23), 0.0, 1.0, **ASKED)
    with pytest.raises(OutError, match="raised KeyboardInterrupt"):
        worker.ask("prepare", pool(tmp_path, 25), 0.0, 1.0, **ASKED)
    with pytest.raises(RefusedError, match="lacks weights: not today"):
        worker.ask("prepare", pool(tmp_path, 24), 0.0, 1.0, **ASKED)
    with pytest.raises(RefusedError, match="the limit is 1e-09 s"):
        worker.ask("prepare", pool(tmp_path, 28), 0.0, 1e-9, **ASKED)
    worker.ask("prepare", pool(tmp_path, 28), 0.0, 1.0, **ASKED)


def test_a_worker_that_dies_is_out_with_how_it_died(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(OutError, match=r"^took its process down: exit status 3"):
        worker.ask("prepare", pool(tmp_path, 22), 0.0, 1.0, **ASKED)
    with pytest.raises(OutError, match="had ended before"):
        worker.ask("turn", DRAWN, **ASKED)


def test_a_worker_that_does_not_answer_is_ended(worker: Worker) -> None:
    with pytest.raises(OutError, match="hung: no answer within 0 s"):
        worker.ask("judge", "float32", seconds=0.0)
    assert not worker.process.alive


def test_one_that_hangs_at_import_is_ended(
    candidates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fullattention.bench.worker.LOADING", 0.0)
    made = Worker(f"{candidates}:odd", "cpu", 1)
    with pytest.raises(OutError, match="hung: no answer within 0 s"):
        made.declaration()
    assert not made.process.alive


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_candidate_starts_can_be_ended_by_it_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool ends its processes by the signal that the worker leaves to its parent."""
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    path = tmp_path / "starting.py"
    path.write_text(STARTING)
    made = Worker(f"{path}:starting", "cpu", 1)
    made.declaration()
    made.ask("prepare", pool(tmp_path, 23), 0.0, 60.0, **ASKED)
    made.stop()
    assert not living(tmp_path / "mark")


@pytest.mark.skipif(os.name == "nt", reason="sends a signal")
def test_an_interruption_is_the_parents_to_act_on(worker: Worker) -> None:
    os.kill(worker.process.pid, signal.SIGINT)
    assert worker.ask("release", **ASKED) is None


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        ("nonsense", LookupError, "no backend is called 'nonsense'"),
        ("cupy-matmul", UnavailableError, "cupy-matmul"),
        ("math:sqrt", TypeError, "no function of a device"),
    ],
)
def test_what_cannot_be_loaded_is_told_to_the_parent(
    spec: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Worker(spec, "cpu", 1).declaration()
