"""What cannot be written is refused before anything is done for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fullattention.outputs import require_file, require_folder, write
from fullattention.reports.marked import require_marked
from tests.test_import import packages_loaded_by

HEAVY = {"jax", "numba", "onnxruntime", "openvino", "pandas", "pytest", "torch"}

IS_ROOT = not hasattr(os, "geteuid") or os.geteuid() == 0


@pytest.mark.parametrize(
    "command",
    [
        ["bench", "--out", "FILE"],
        ["bench", "--threads", "1,all", "--out", "FILE/deeper/still"],
        ["bench", "--out", "new", "--store", "FILE"],
        ["check", "numpy-matmul", "--json", "FILE/verdict.json"],
        ["choose", "--workload", "toy", "--measure", "--store", "FILE"],
        ["results", "merge", "new", "--store", "FILE"],
        ["results", "export", "FILE/table.csv"],
        ["results", "regret", "--write", "FILE"],
        ["pack", "FILE/deeper"],
    ],
    ids=" ".join,
)
def test_a_command_loads_no_library_for_what_it_cannot_write(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("precious")
    given = [part.replace("FILE", f"{tmp_path}/file") for part in command]
    run = f"import os; from fullattention.cli import main; os.chdir({str(tmp_path)!r})"
    assert not packages_loaded_by(f"{run}; assert main({given!r}) == 2") & HEAVY
    assert f"is {tmp_path}/file" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("tool", ["aa", "drop_in"])
def test_a_tool_measures_nothing_for_a_document_that_is_not_there(
    tool: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = pytest.importorskip(f"tools.{tool}")
    monkeypatch.setattr(module, "environment", None)  # to call it would raise
    monkeypatch.setattr(sys, "argv", [tool, "--write", "no/such.md"])
    with pytest.raises(SystemExit):
        module.main()
    assert "--write is no/such.md: there is no folder no" in capsys.readouterr().err


def test_a_document_without_the_marker_is_told(tmp_path: Path) -> None:
    path = tmp_path / "document.md"
    path.write_text("<!-- begin one --><!-- end one -->")
    require_marked("--write", path, "one")
    with pytest.raises(ValueError, match=r"--write is .*\.md: the document lacks <!-- begin two"):
        require_marked("--write", path, "one", "two")
    with pytest.raises(ValueError, match=r"--write is .*none\.md: .*No such file"):
        require_marked("--write", tmp_path / "none.md", "one")


def test_a_folder_that_may_be_made_is_not_made(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, tmp_path / "new" / "newer", Path("new"), Path()):
        require_folder("out", folder)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("file", "Not a directory"),
        ("file/deeper/still", "Not a directory"),
        ("nowhere", "No such file or directory"),
        ("n" * 1000, "File name too long"),
    ],
    ids=["a file", "in a file", "a link to nowhere", "too long"],
)
def test_a_folder_that_cannot_be_made_is_told(place: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    folder = tmp_path / place
    with pytest.raises(ValueError, match=f"out is {folder}: nothing can be written there: {says}"):
        require_folder("out", folder)


@pytest.mark.skipif(IS_ROOT, reason="root may write there")
def test_a_folder_that_is_read_only_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match=r"--json is .*: it cannot be written there"):
        require_file("--json", tmp_path / "x.json")
    with pytest.raises(ValueError, match=r"out is .*: nothing can be written there: Permission"):
        require_folder("out", tmp_path / "new")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file that is always full")
def test_a_full_disk_is_an_error_that_names_the_option() -> None:
    with pytest.raises(ValueError, match="--html is /dev/full: No space left on device"):
        write("--html", Path("/dev/full"), "page")
