"""`tools/gpu_check.py` where there is no GPU, and that no step can spoil the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fullattention.bench.graph import Graph
from fullattention.bench.workloads import CATALOGUE
from fullattention.conformance.subject import load_subject
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
    assert [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]


def steps_of(**programs: str) -> list[Step]:
    return [
        Step(name, "", (sys.executable, "-c", program), 0.5 if name == "hangs" else 30)
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


def test_a_spent_budget_leaves_the_rest_undone(tmp_path: Path) -> None:
    run = Run(tmp_path, budget=0)
    (outcome,) = run.together(steps_of(works="print('fine')"))
    assert outcome == Outcome("works", "", "not run", "the budget is spent", outcome.seconds)


@pytest.mark.parametrize("name", ["torch-einsum", "numpy-matmul"])
def test_every_mode_is_timed_or_says_why_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_steps, "DEVICE", "cpu")
    known = {"copy_bytes_per_second": 1e9, "matmul_float32_operations_per_second": 1e9}
    subject = load_subject(name)
    records: dict[str, dict[str, Any]] = {
        mode: gpu_steps._timed(subject, CATALOGUE["toy"], mode, known)  # noqa: SLF001
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


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_steps, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_steps, "_error", lambda *arguments: float("nan"))
    record = gpu_steps._timed(  # noqa: SLF001
        load_subject("numpy-matmul"), CATALOGUE["toy"], "forward", {}
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
