"""What becomes of a command whose output is not read, or cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fullattention.cli import main
from fullattention.records import Verdict, read_one
from fullattention.status import UNREAD

BUFFERING = pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["on", "off"])

CHECK = ("check", "numpy-matmul", "--level", "quick", "--only", "C1", "--dtype", "float32")


def run(
    *arguments: str, output: int, buffering: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-m", "fullattention", *arguments],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=inherited | buffering,
    )


@BUFFERING
def test_a_reader_who_leaves_ends_a_command_quietly_and_costs_no_file(
    tmp_path: Path, buffering: dict[str, str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    kept = tmp_path / "verdict.json"
    done = run(*CHECK, "--json", str(kept), output=writer, buffering=buffering)
    os.close(writer)
    assert (done.returncode, done.stderr) == (UNREAD, "")
    assert read_one(kept, Verdict).conformant


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file that is always full")
@BUFFERING
def test_output_that_cannot_be_written_is_told_in_one_line(buffering: dict[str, str]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = run(*CHECK, output=full.fileno(), buffering=buffering)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith("fullattention: ")
    assert line.endswith("No space left on device")


def test_a_file_that_is_not_there_is_named_without_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.json"
    assert main(["verify", str(missing)]) == 2
    assert capsys.readouterr().err == f"fullattention: {missing}: No such file or directory\n"
