"""Checks and benchmarks under pytest, in a process of its own as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fullattention.records import TIMINGS, Timing, read
from tests.test_cli import BACKEND


def run_pytest(
    *arguments: str, folder: Path, package: str = "fullattention.conformance"
) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "fullattention.pytest_plugin"),
            *("-p", "no:cacheprovider", "-q", "-r", "fs"),
            *("-p", "no:hypothesispytest"),  # it takes a second, and no user needs it here
            *("--pyargs", package, *arguments),
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_backends_take_turns_at_each_check(tmp_path: Path) -> None:
    names = ("numpy-matmul", "numpy-reference")
    options = ("--collect-only", "--level", "quick", "--dtype", "float32")
    chosen = (part for name in names for part in ("--backend", name))
    done = run_pytest(*options, *chosen, folder=tmp_path)
    ids = [line.partition("[")[2] for line in done.stdout.splitlines() if "requirement[" in line]
    assert len(ids) > 100
    for one, other in zip(ids[::2], ids[1::2], strict=True):
        assert one.removeprefix(names[0]) == other.removeprefix(names[1])


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


@pytest.mark.parametrize("call", [1, 2])
def test_a_backend_does_not_end_pytest_unseen(call: int, tmp_path: Path) -> None:
    leaving = """
import os
calls = [0]

def attend(q, k, v, **options):
    calls[0] += 1
    if calls[0] == CALL:
        os._exit(0)
    return whole(q, k, v, **options)
""".replace("CALL", str(call))
    text = BACKEND.replace("HIDDEN", "-np.inf").replace("def attend", "def whole")
    path = tmp_path / "leaving.py"
    path.write_text(text.replace("\nbackend = ", f"{leaving}\nbackend = "))
    done = run_pytest("--backend", str(path), "--level", "quick", "-k", "C1", folder=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "os._exit(0) would end the process" in done.stdout


def test_a_backend_does_not_end_pytest_at_import(tmp_path: Path) -> None:
    path = tmp_path / "leaving.py"
    path.write_text("import os\nos._exit(0)\n")
    done = run_pytest("--backend", str(path), folder=tmp_path)
    assert done.returncode != 0
    assert "os._exit(0) would end the process" in done.stdout + done.stderr


UNAVAILABLE = """
from fullattention.backends import UnavailableError

def backend(device):
    raise UnavailableError("mine", "its library is not installed")
"""


BRIEF = """
from fullattention.bench import session

effort = session.Effort(contest=0.0, warm_up=0.0)
session.Effort = lambda: effort
session.measure_apart = lambda device, threads: None
"""


def test_benchmarks_keep_their_records(tmp_path: Path) -> None:
    (tmp_path / "brief.py").write_text(BRIEF)
    options = ("--backend", "numpy-matmul", "--shape", "2,3,3,1,2,2", "--out", "records")
    done = run_pytest("-p", "brief", *options, folder=tmp_path, package="fullattention.bench")
    assert done.returncode == 0, done.stdout
    # On a busy machine the figure may be void; it is kept all the same.
    (timing,) = read(tmp_path / "records" / TIMINGS, Timing)
    assert timing.backend == "numpy-matmul"


def test_a_named_backend_that_cannot_run_fails_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(UNAVAILABLE)
    done = run_pytest("--backend", str(path), folder=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "its library is not installed" in done.stdout


def test_a_backend_on_which_nothing_can_be_tried_fails(tmp_path: Path) -> None:
    path = tmp_path / "right.py"
    path.write_text(BACKEND.replace("HIDDEN", "-np.inf"))
    arguments = ("--backend", str(path), "--level", "quick", "--dtype", "float64")
    done = run_pytest(*arguments, folder=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "no check could be tried" in done.stdout


def run_all(folder: Path, *known: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
    """`--backend all` where these backends are known and no others: exit status and output."""
    (folder / "known.py").write_text(
        f"import fullattention.backends\nfullattention.backends.names = lambda: {list(known)}\n"
    )
    only = ("-p", "known", "-k", "runs_here", "--level", "quick")
    done = run_pytest("--backend", "all", *only, *options, folder=folder)
    return done.returncode, done.stdout + done.stderr


def test_one_of_all_is_skipped_where_it_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(UNAVAILABLE)
    status, output = run_all(tmp_path, "numpy-matmul", "mine.py")
    assert status == 0, output
    assert "its library is not installed" in output
    assert "1 passed, 1 skipped" in output


def test_one_of_all_is_skipped_where_it_takes_no_such_dtype(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BACKEND.replace("HIDDEN", "-np.inf"))
    float64 = ("--dtype", "float64")
    status, output = run_all(tmp_path, "numpy-matmul", "mine.py", options=float64)
    assert status == 0, output
    assert "it takes float32" in output


def test_one_of_all_that_is_broken_fails_and_the_others_are_checked(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("1 / 0")
    status, output = run_all(tmp_path, "numpy-matmul", "mine.py")
    assert status == 1, output
    assert "1 failed, 1 passed" in output
    assert "does not import: ZeroDivisionError" in output


def test_all_of_nothing_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(UNAVAILABLE)
    status, output = run_all(tmp_path, "mine.py")
    assert status not in (0, 1, 5), output
    assert "none of 1 backends runs on 'cpu'" in output


def test_a_missing_or_unknown_backend_is_a_usage_error(tmp_path: Path) -> None:
    for arguments, says in (([], "--backend is missing"), (["--backend", "nonsense"], "nonsense")):
        done = run_pytest(*arguments, folder=tmp_path)
        assert done.returncode not in (0, 1, 5), done.stdout
        assert says in done.stdout + done.stderr
