"""`tools/gpu_check.py` where there is no GPU, and that no step can spoil the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fullattention.bench.graph import Graph
from fullattention.bench.workloads import CATALOGUE
from fullattention.conformance.subject import load_subject
from tests.living import living
from tools import gpu_check, gpu_steps
from tools.gpu_check import NO_DEVICE, NOT_RUN, Outcome, Run, Step, table

SCRIPT = Path(gpu_check.__file__)


def test_without_a_device_it_ends_with_a_table_and_exit_status_3(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, SCRIPT, "--out", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == NO_DEVICE, done.stderr
    lines = [line for line in done.stdout.splitlines() if "no CUDA device" in line]
    for name in ("torch-sdpa", "cupy-matmul", "numpy-matmul"):
        assert any(name in line for line in lines)
    assert json.loads((tmp_path / "backends.json").read_text())["torch-sdpa"]
    assert json.loads((tmp_path / "environment.json").read_text())["libraries"]["numpy"]
    assert [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]


# All steps, where there is a device: a stand-in notes them in their order.

BUDGET = 60_000
"""Seconds: so many that a busy machine's delays are nothing."""

COMPILING, OTHER, OURS = "torch-compile", "torch-sdpa", "cupy-fused"
LISTED = {
    COMPILING: {"reason": "", "compiles": True},
    OTHER: {"reason": "", "compiles": False},
    "xformers": {"reason": "not installed", "compiles": False},
    OURS: {"reason": "", "compiles": False},
}


def run_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, devices: int = 1, **statuses: int
) -> tuple[int, list[list[str]]]:
    """The exit status of the whole, and the steps in their order: name, backend and seconds."""
    plan = {"backends": LISTED, "statuses": {k.replace("__", " "): v for k, v in statuses.items()}}
    (folder / "plan.json").write_text(json.dumps(plan))
    stand_in = Path(__file__).parent / "gpu_steps_stand_in.py"
    monkeypatch.setattr(gpu_check, "STEPS", (sys.executable, str(stand_in)))
    monkeypatch.setattr(gpu_check, "devices", lambda: devices)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    status = gpu_check.main(["--out", str(folder), "--budget", f"{BUDGET}"])
    lines = (folder / "order.txt").read_text().splitlines()
    return status, [line.split(" ") for line in lines]


def sanitizer(folder: Path) -> str:
    """A program that runs what it is to watch."""
    path = folder / "compute-sanitizer"
    path.write_text('#!/bin/sh\nshift 4\nexec "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_our_own_backends_come_first_and_timing_has_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: sanitizer(tmp_path))
    status, steps = run_all(tmp_path, monkeypatch)
    assert status == gpu_check.RIGHT
    each = [OURS, OTHER, COMPILING]
    assert [(name, backend) for name, backend, _ in steps] == [
        ("backends", ""),
        ("ceilings", ""),
        *[("conformance", backend) for backend in each],
        *[(n, b) for n in ("nan-allocations", "side-stream", "graph") for b in each],
        *[("small-set", OURS)] * len(gpu_check.SANITIZER_TOOLS),
        *[("times", backend) for backend in each],
    ]
    seconds = [int(given) for name, _, given in steps if name == "times"]
    # The first has a third of what is left, which is at least the share that was kept for it.
    kept, most = gpu_check.TIMED * BUDGET, BUDGET
    assert kept / 3 * gpu_check.AT_WORK - 60 <= seconds[0] <= most / 3 * gpu_check.AT_WORK
    assert seconds == sorted(seconds)  # who takes less leaves it to the others
    printed = capsys.readouterr().out.rpartition("\n\n")[2]
    assert "load             xformers       not run" in printed
    assert "memcheck         cupy-fused     ok" in printed
    assert printed.strip().endswith(f"{len(steps)} ok, 1 not run")


@pytest.mark.parametrize("step", [f"times__{OURS}", f"graph__{OTHER}", "ceilings", "backends"])
def test_one_step_that_fails_makes_the_whole_wrong(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, steps = run_all(tmp_path, monkeypatch, **{step: 1})
    assert status == gpu_check.WRONG
    assert steps[-1][:2] == ["times", COMPILING]  # the others go on


def test_without_a_list_of_backends_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "STEPS", (sys.executable, "-c", "raise SystemExit(1)"))
    monkeypatch.setattr(gpu_check, "devices", lambda: 1)
    assert gpu_check.main(["--out", str(tmp_path)]) == gpu_check.WRONG
    assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == 1


def test_a_step_that_cannot_be_tried_is_not_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _ = run_all(tmp_path, monkeypatch, **{f"graph__{OTHER}": NOT_RUN})
    assert status == gpu_check.RIGHT


@pytest.mark.parametrize(("crashed", "wanted"), [(0, NO_DEVICE), (1, gpu_check.WRONG)])
def test_without_a_device_only_what_looks_for_backends_can_be_wrong(
    crashed: int, wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, steps = run_all(tmp_path, monkeypatch, devices=0, backends=crashed)
    assert status == wanted
    assert {name for name, _, _ in steps} == {"backends"}


def test_proofs_leave_the_share_of_the_timing_alone(tmp_path: Path) -> None:
    run = Run(tmp_path, budget=60)
    run.kept = 60
    (outcome,) = run.together(steps_of(works="print('fine')"))
    assert outcome.status == "not run"
    run.kept = 0
    (outcome,) = run.together(steps_of(works="print('fine')"))
    assert outcome.status == "ok"


def steps_of(**programs: str) -> list[Step]:
    return [
        Step(name, "", (sys.executable, "-c", program), 2 if name == "hangs" else 30)
        for name, program in programs.items()
    ]


def test_steps_go_on_after_one_that_fails_hangs_or_crashes(tmp_path: Path) -> None:
    run = Run(tmp_path, budget=60)
    steps = steps_of(
        fails="print('why'); raise SystemExit(1)",
        crashes="import os; os.abort()",
        hangs="import time; time.sleep(60)",
        lacks=f"print('no such thing'); raise SystemExit({NOT_RUN})",
        works="print('fine')",
    )
    run.together([*steps, Step("missing", "", (str(tmp_path / "no-such-program"),), 5)])
    assert {one.step: one.status for one in run.outcomes} == {
        "fails": "failed",
        "crashes": "failed",
        "hangs": "timed out",
        "lacks": "not run",
        "works": "ok",
        "missing": "failed",
    }
    assert run.outcomes[0].detail == "why"
    printed = table(run)
    assert "3 failed" in printed
    assert all(one.step in printed for one in run.outcomes)


def test_what_a_step_has_started_ends_with_it(tmp_path: Path) -> None:
    """A sanitizer that is ended would leave the process that it watches."""
    program = "import subprocess, sys, time; subprocess.Popen({}); time.sleep({})"
    child = repr([sys.executable, "-c", f"import time; {str(tmp_path)!r}; time.sleep(60)"])
    environment = {"FULLATTENTION_MARK": str(tmp_path)}
    run = Run(tmp_path, budget=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*environment.popitem())
        run.together(steps_of(hangs=program.format(child, 60), works=program.format(child, 0)))
    assert [one.status for one in run.outcomes] == ["timed out", "ok"]
    assert living(tmp_path) == []


def test_a_step_that_is_ended_tells_how_far_it_came(tmp_path: Path) -> None:
    run = Run(tmp_path, budget=60)
    (outcome,) = run.together(
        steps_of(hangs="import time; print('half', flush=True); time.sleep(60)")
    )
    assert outcome.status == "timed out"
    assert outcome.detail.endswith(": half")


def test_a_step_that_the_budget_ends_is_not_taken_to_hang(tmp_path: Path) -> None:
    run = Run(tmp_path, budget=3)
    (outcome,) = run.together(steps_of(slow="import time; time.sleep(60)"))
    assert outcome.status == "not run"
    assert outcome.detail.startswith("the budget was spent after ")


def test_a_paced_step_is_told_how_long_it_may_begin_something(tmp_path: Path) -> None:
    run = Run(tmp_path, budget=1000)
    program = "import sys; print(*sys.argv[1:])"
    plain = Step("plain", "", (sys.executable, "-c", program), 100)
    run.together([plain, *(replace(plain, name=f"{pace}", pace=pace) for pace in (50, 99))])
    told = [one.detail for one in run.outcomes]
    assert told == ["", "--seconds 50", f"--seconds {gpu_check.AT_WORK * 100:.0f}"]


@pytest.mark.parametrize("writable", [True, False])
def test_libraries_find_a_place_for_what_they_compile(
    writable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    if writable:
        home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    run = Run(tmp_path / "out", budget=60)
    (outcome,) = run.together(steps_of(works="import os; print(os.environ['HOME'])"))
    assert outcome.detail == str(home if writable else tmp_path / "out")


def test_a_spent_budget_leaves_the_rest_undone(tmp_path: Path) -> None:
    run = Run(tmp_path, budget=0)
    (outcome,) = run.together(steps_of(works="print('fine')"))
    assert outcome == Outcome("works", "", "not run", "the budget is spent", outcome.seconds)


@pytest.mark.parametrize("name", ["torch-einsum", "numpy-matmul"])
def test_every_mode_is_timed_or_says_why_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_steps, "DEVICE", "cpu")
    known = {"copy_bytes_per_second": 1e9, "matmul_float32_operations_per_second": 1e9}
    subject = load_subject(name)
    records: dict[str, dict[str, Any]] = {
        mode: gpu_steps._timed(subject, CATALOGUE["toy"], mode, known, tmp_path)  # noqa: SLF001
        for mode in ("forward", "weights", "causal", "padding", "training")
    }
    for mode, record in records.items():
        json.dumps(record, allow_nan=False)
        if mode == "training" and name.startswith("numpy"):
            assert record["reason"] == "NumPy does not differentiate"
            continue
        assert record["status"] == "timed", record
        assert record["wall_seconds"] > 0
    assert records["forward"]["error_over_bound"] <= 1
    # q, k, v and V of 8 x 6 x 2 x 8 in float32 take longer to move than 2 x 2 x 8 x 2 x 6 x 6 x 8
    # operations take at these speeds.
    assert records["forward"]["floor_seconds"] == pytest.approx(18432e-9)


def test_a_wrong_result_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_steps, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_steps, "_error", lambda *arguments: float("nan"))
    record = gpu_steps._timed(  # noqa: SLF001
        load_subject("numpy-matmul"), CATALOGUE["toy"], "forward", {}, tmp_path
    )
    assert record["status"] == "wrong"
    json.dumps(record, allow_nan=False)


def test_a_captured_call_is_judged_by_what_its_replay_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays = []

    def captured(library: str, call: Callable[[], Any]) -> Graph[Any]:
        given = call()

        def replay() -> None:
            replays.append(library)
            given.copy_(call())

        return Graph(replay, given)

    monkeypatch.setattr(gpu_steps, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_steps, "capture", captured)
    status, line = gpu_steps.graph("torch-einsum", tmp_path)
    assert status == gpu_steps.RIGHT
    assert float(line.rpartition(" ")[2]) <= 1
    assert replays == ["torch"]


def test_a_call_that_cannot_be_captured_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def captured(library: str, call: object) -> Graph[Any]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(gpu_steps, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_steps, "capture", captured)
    status, line = gpu_steps.graph("torch-einsum", tmp_path)
    assert status == gpu_steps.NOT_RUN
    assert line == "not capturable: operation not permitted when stream is capturing"


def test_conformance_of_a_backend_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_steps, "DEVICE", "cpu")
    status, line = gpu_steps.small_set("numpy-matmul", tmp_path)
    assert status == gpu_steps.RIGHT
    assert "passed" in line
    assert json.loads((tmp_path / "small-set-numpy-matmul.jsonl").read_text())["conformant"]
