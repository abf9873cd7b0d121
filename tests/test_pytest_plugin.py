"""The conformance checks under pytest, in a process of their own as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.test_cli import BACKEND


def run_pytest(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "fullattention.pytest_plugin"),
            *("-p", "no:cacheprovider", "-q", "-r", "fs"),
            *("--pyargs", "fullattention.conformance", *arguments),
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_right_backend_passes(tmp_path: Path) -> None:
    path = tmp_path / "right.py"
    path.write_text(BACKEND.replace("HIDDEN", "-np.inf"))
    done = run_pytest("--backend", str(path), "--level", "quick", folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
    assert "not written yet" in done.stdout


def test_a_wrong_backend_fails_with_the_detail(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(BACKEND.replace("HIDDEN", "-1e9"))
    done = run_pytest("--backend", str(path), "--level", "quick", folder=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "M7" in done.stdout
    assert "first at b=" in done.stdout


def test_an_unavailable_backend_is_skipped_with_its_reason(tmp_path: Path) -> None:
    done = run_pytest("--backend", "cupy-matmul", folder=tmp_path)
    assert "cupy is not installed" in done.stdout or "CuPy runs on" in done.stdout


def test_a_missing_or_unknown_backend_is_a_usage_error(tmp_path: Path) -> None:
    for arguments, says in (([], "--backend is missing"), (["--backend", "nonsense"], "nonsense")):
        done = run_pytest(*arguments, folder=tmp_path)
        assert done.returncode not in (0, 1, 5), done.stdout
        assert says in done.stdout + done.stderr
