"""Runs of the command line that end early, and stores that cannot be used: nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fullattention.choosing import Store
from fullattention.cli import main
from fullattention.records import Timing
from fullattention.status import Terminated, terminable
from tests.bench_fakes import ENVIRONMENT
from tests.living import living
from tests.test_bench_run import CANDIDATES, SHAPE
from tests.timings import timing

SLOW = """
import pathlib, time

calls = 0

def linger(result):
    global calls
    calls += 1
    time.sleep(0.03)  # so that a turn is one call, and another before it
    if calls > PATIENCE:
        pathlib.Path(__file__).with_name("reached").touch()
        time.sleep(60)
    return result

lingering = backend(
    "lingering", lambda result, q, k, v: linger(result) if q.shape == (7, 5, 1, 2) else result
)
"""

BEFORE_TURNS = 3
"""Calls of a process before its first turn, at most: the first, one to warm up, one for a peak."""

IN_TURNS = 4
"""Calls of a process in two turns: there are four at least."""


def begun(command: list[str], scratch: Path, *path: object) -> subprocess.Popen[str]:
    """A command in a group of its own, its temporary files in a folder that marks its processes."""
    environment = {"TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join(map(str, path))}
    # A shell's background job ignores Ctrl-C, and so would what it starts.
    inherited = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(
            command,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, inherited)


INTERRUPTING = """
import os, pathlib, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy" and "--multiprocessing-fork" in sys.orig_argv:
            try:
                pathlib.Path(__file__).with_name("interrupted").touch(exist_ok=False)
            except FileExistsError:
                return None
            for process in (os.getpid(), os.getppid()):
                os.kill(process, signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""
"""Ctrl-C comes as the first process that another one begins imports NumPy: to it, then to that."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "command",
    [
        ["check", "numpy-matmul"],
        ["bench", "--backend", "numpy-matmul", "--workload", "toy", "--no-store", "--out", "out"],
    ],
    ids=lambda command: str(command[0]),
)
def test_ctrl_c_while_a_process_begins_is_told_in_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    (scratch := tmp_path / "scratch").mkdir()
    path = (tmp_path, *map(Path.absolute, map(Path, sys.path)))
    monkeypatch.chdir(tmp_path)
    process = begun([sys.executable, "-m", "fullattention", *command], scratch, *path)
    try:
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (tmp_path / "interrupted").exists()
    assert printed == "fullattention: interrupted\n"
    assert process.returncode == 130
    assert not living(scratch), "a process is left"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("number", "status", "patience", "incomplete"),
    [
        (signal.SIGTERM, 143, BEFORE_TURNS + IN_TURNS, [False, True]),
        (signal.SIGINT, 130, 0, [False]),
    ],
    ids=["SIGTERM in a contest", "Ctrl-C before a contest"],
)
def test_a_terminated_bench_keeps_its_records_and_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, status: int, patience: int, incomplete: list[bool]
) -> None:
    (tmp_path / "candidates.py").write_text(CANDIDATES + SLOW.replace("PATIENCE", str(patience)))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "tests.little_effort", "bench", "--threads", "1"]
    command += ["--backend", f"{tmp_path}/candidates.py:lingering"]
    command += ["--shape", SHAPE, "--shape", "7,5,5,1,2,2"]
    command += ["--out", str(tmp_path / "out"), "--store", str(tmp_path / "store")]
    process = begun(command, scratch, *sys.path)
    try:
        deadline = time.monotonic() + 200
        while not (tmp_path / "reached").exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert living(scratch, seconds=0), "or none could be found to be left"
        process.send_signal(number)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == status, printed
    assert "kept for `fullattention choose`" in printed
    store = Store(tmp_path / "store")
    found = [one for key in store.hardware() for one in store.timings(key).records]
    assert [one.status == "incomplete" for one in found] == incomplete
    assert {one.backend for one in found} == {"lingering"}
    assert all(one.median for one in found)
    assert not list(scratch.glob("fullattention-*"))
    assert not living(scratch), "a worker is left"


def test_sigterm_is_raised_once_and_then_as_it_was() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(Terminated):
            _be_terminated_twice()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def _be_terminated_twice() -> None:
    with terminable():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)  # cleaning up goes on


def test_a_handler_that_is_there_already_stays() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with terminable():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "command",
    [["bench", "--workload", "toy"], ["choose", "--workload", "toy", "--measure"]],
    ids=lambda command: str(command[0]),
)
def test_a_store_that_cannot_be_used_is_refused_before_anything_is_measured(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "store"
    store.write_text("a file")
    monkeypatch.setattr("fullattention.bench.run.run", None)  # to call it would raise
    assert main([*command, "--store", str(store)]) == 2
    assert f"store is {store}: nothing can be written there" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("command", ["bench", "choose"])
def test_where_the_records_stay_is_said_if_they_cannot_be_kept(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = timing("numpy-matmul", environment=ENVIRONMENT)

    def measure(options: object, *, out: Path, **listeners: object) -> int:
        Store(out).add([made])
        (place,) = out.rglob("timings.jsonl")
        place.rename(out / "timings.jsonl")
        return 0

    def fail(store: Store, records: object) -> int:
        raise OSError("No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("fullattention.bench.run.run", measure)
    monkeypatch.setattr(Store, "add", _first_goes_then(fail))
    options = ["--measure"] if command == "choose" else []
    store = ["--store", str(tmp_path / "store")]
    assert main([command, "--workload", "toy", *options, *store]) == 2
    said = capsys.readouterr().err
    assert "No space left on device: the records stay in" in said
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    folder = Path(said.split("results merge ")[1].split("`")[0])
    assert Store(tmp_path / "other").merge(folder).new == 1


def _first_goes_then(fail: object) -> object:
    whole, calls = Store.add, iter(range(2))

    def add(store: Store, records: list[Timing]) -> object:
        return whole(store, records) if next(calls) == 0 else fail(store, records)  # type: ignore[operator]

    return add
