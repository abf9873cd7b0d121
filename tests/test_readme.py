"""The README's examples work as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fullattention.cli import main

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
USE, MODEL, BACKEND = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_layer_is_used_as_shown() -> None:
    names: dict[str, object] = {}
    exec(compile(USE, "README.md", "exec"), names)
    assert getattr(names["V"], "shape", None) == (8, 6, 2, 8)
    assert names["weights"] is None


def test_the_drop_in_module_is_used_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    exec(compile(MODEL, "README.md", "exec"), names)
    assert getattr(names["V"], "shape", None) == (32, 12, 8, 64)
    assert "torch-" in capsys.readouterr().out


def test_the_example_backend_is_conformant_as_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my_backend.py"
    path.write_text(BACKEND)
    assert main(["check", str(path)]) == 0
    assert "not written yet" in capsys.readouterr().out


def test_the_example_backend_with_the_fault_named_is_convicted_as_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my_backend.py"
    path.write_text(BACKEND.replace("-np.inf", "-1e9"))
    assert main(["check", str(path), "--only", "M7"]) == 1
    assert "M7 FAILED" in capsys.readouterr().out


def test_the_example_backend_is_about_twenty_lines() -> None:
    assert len([line for line in BACKEND.splitlines() if line.strip()]) <= 22
