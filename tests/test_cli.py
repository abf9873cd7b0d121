"""The command line, called as a user calls it."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path

import pytest

from fullattention.cli import main
from fullattention.records import Verdict, read_one

BACKEND = """
import numpy as np
from fullattention.backends import Backend, standard
from fullattention.backends.numpy_arrays import ARRAYS

def attend(q, k, v, *, hidden, causal, scale, dropout, weights):
    scores = scale * np.einsum("blhe,bshe->bhls", q, k)
    if causal:
        hidden = np.triu(np.ones(scores.shape[-2:], bool), 1)
    if hidden is not None:
        scores = np.where(hidden, HIDDEN, scores)
    a = np.exp(scores - scores.max(-1, keepdims=True))
    a /= a.sum(-1, keepdims=True)
    return np.einsum("bhls,bshd->blhd", a, v), a if weights else None

backend = Backend(
    name="mine",
    attend=attend,
    arrays=ARRAYS,
    precision={"float32": standard("float32")},
    lacks={"dropout": "not written yet"},
)
"""


@pytest.fixture
def right(tmp_path: Path) -> str:
    path = tmp_path / "right.py"
    path.write_text(BACKEND.replace("HIDDEN", "-np.inf"))
    return str(path)


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    path = tmp_path / "wrong.py"
    path.write_text(BACKEND.replace("HIDDEN", "-1e9"))
    return str(path)


def test_check_of_a_right_backend_exits_0(right: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", right, "--level", "quick"]) == 0
    printed = capsys.readouterr().out
    assert "conformant" in printed
    assert "NOT CONFORMANT" not in printed
    assert "not written yet" in printed


def test_check_of_a_wrong_backend_exits_1_and_says_what_where_and_how_to_repeat_it(
    wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", wrong, "--level", "quick"]) == 1
    printed = capsys.readouterr().out
    assert "M7 FAILED" in printed
    assert "first at b=" in printed
    assert "expected" in printed
    (command,) = [
        line
        for line in printed.splitlines()
        if line.startswith("  fullattention check") and "--only" in line
    ]
    check_id = shlex.split(command)[-1]
    assert main(["check", wrong, "--only", check_id]) == 1
    assert "1 standard check" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "nonsense"], "no backend is called 'nonsense'"),
        (["check", "numpy-matmul", "--timeout", "-1"], "timeout is -1: a finite number of seconds"),
        (["check", "numpy-matmul", "--timeout", "inf"], "timeout is inf: a finite number of"),
        (["check", "numpy-matmul", "--timeout", "nan"], "timeout is nan: a finite number of"),
        (["fuzz", "numpy-matmul", "--count", "0"], "count is 0: at least 1"),
        (["fuzz", "numpy-matmul", "--seed", "-1"], "seed is -1: at least 0"),
        (["check", "no/such/file.py"], "there is no file"),
        (["check", "no_such_module:thing"], "there is no module 'no_such_module'"),
        (["check", "cupy-matmul"], "unavailable"),
        (["check", "numpy-matmul", "--device", "cuda"], "NumPy runs on 'cpu'"),
        (["check", "numpy-matmul", "--only", "Z9"], "begins with 'Z9'"),
        (["check", "math:sqrt"], "no function of a device"),
        (["workloads", "no-such-workload"], "no-such-workload"),
        (["report", "no-such-folder"], "no-such-folder"),
        (["bench", "--shape", "1,2,3"], "1,2,3"),
        (["bench", "--dtype", "float7"], "float7"),
        (["bench", "--threads", "1,many"], "threads is 'many'"),
        (["bench", "--threads", "1,9999"], "threads is 9999"),
        (["bench", "--seconds", "inf"], "seconds is inf: a finite number from 0 on"),
    ],
)
def test_wrong_usage_exits_2_with_one_line_that_says_why(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("option", ["--json", "--markdown", "--html", "--badge"])
@pytest.mark.parametrize(
    ("place", "says"), [("no/x", "there is no folder"), (".", "a folder, not a file")]
)
def test_where_nothing_can_be_written_is_said_before_anything_is_checked(
    option: str,
    place: str,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fullattention.conformance.check_isolated", None)  # to call it would raise
    path = tmp_path / place
    assert main(["check", "numpy-matmul", option, str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fullattention: {option} is {path}: {says}")


def test_what_a_candidate_says_changes_no_terminal_and_loses_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.py"
    text = BACKEND.replace("HIDDEN", "-np.inf").replace("lacks=", 'version="\\ud800", lacks=')
    raising = r'    raise RuntimeError("\ud800 \x1b[31m \u2028 bad")'
    path.write_text(text.replace("    scores = ", f"{raising}\n    scores = "))
    files = {name: tmp_path / name for name in ("json", "markdown", "html", "badge")}
    options = [part for name, file in files.items() for part in (f"--{name}", str(file))]
    assert main(["check", str(path), "--only", "C1: shape", *options]) == 1
    for shown in (capsys.readouterr().out, files["markdown"].read_text("utf-8")):
        assert r"raised RuntimeError: \ud800 \x1b[31m \u2028 bad" in shown
        assert "\x1b" not in shown
        assert "\u2028" not in shown
    assert r"\ud800" in files["html"].read_text("utf-8")
    assert files["badge"].read_text("utf-8")
    verdict = read_one(files["json"], Verdict)
    assert verdict.library_version == r"\ud800"
    assert verdict.results[0].detail == "raised RuntimeError: \\ud800 \x1b[31m \u2028 bad"


def test_where_nothing_could_be_tried_nothing_is_judged(
    right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", right, "--only", "C1", "--dtype", "float64"]) == 2
    printed = capsys.readouterr().out
    assert "not judged: no check could be tried" in printed
    assert "CONFORMANT" not in printed


def test_a_file_that_does_not_import_is_named_with_its_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def (")
    assert main(["check", str(path)]) == 2
    assert "SyntaxError" in capsys.readouterr().err


def test_check_writes_a_record_that_reads_back(right: str, tmp_path: Path) -> None:
    msgspec = pytest.importorskip("msgspec")
    target = tmp_path / "verdict.json"
    main(["check", right, "--level", "quick", "--json", str(target)])
    verdict = msgspec.json.decode(target.read_bytes(), type=Verdict)
    assert verdict.backend == "mine"
    assert verdict.conformant
    assert {result.status for result in verdict.results} == {"passed", "unsupported"}


def test_backends_lists_every_name_with_capabilities_or_reasons(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["backends", "--json"]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert entries["numpy-matmul"]["devices"] == ["cpu"]
    assert "weights" in entries["numpy-matmul"]["capabilities"]
    assert entries["numpy-matmul"]["version"]
    for name in ("cupy-matmul", "cupy-fused", "numba-cuda", "triton"):
        assert entries[name]["devices"] == []
        assert entries[name]["reasons"]["cpu"]
        assert "float32" in entries[name]["dtypes"]
        assert "weights" in entries[name]["capabilities"]
        assert entries[name]["lacks"]["double_backward"]
    assert main(["backends"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in entries)


def test_workloads_lists_shapes_by_glob(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workloads", "toy"]) == 0
    assert "8,6,6,2,8,8" in capsys.readouterr().out


def test_a_verdict_is_printed_whatever_the_terminal_shows(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud = "\n\ndef loud(q, k, v):\n    print('\\u2713')\n    return v\n"
    Path(wrong).write_text(Path(wrong).read_text() + loud)
    terminal = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(terminal, encoding="ascii"))
    assert main(["check", f"{wrong}:loud", "--only", "C1: shape=2,5,7", "--dtype", "float32"]) == 1
    sys.stdout.flush()
    assert b"\\u2713" in terminal.getvalue()
