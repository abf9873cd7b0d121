"""A candidate that hangs, crashes or prints does so in a process of its own."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fullattention import UnavailableError
from fullattention.conformance import check_isolated
from fullattention.conformance.catalogue import catalogue
from fullattention.conformance.isolation import LOSSES, IsolatedCandidate
from fullattention.conformance.subject import load_subject
from fullattention.conformance.suite import judge_subject
from fullattention.records import Result, Verdict, read_one
from tests.living import living

CANDIDATE = """
import ctypes, sys, time
from fullattention.backends import Backend, standard
from fullattention.backends.numpy_arrays import ARRAYS
from fullattention.backends.numpy_matmul import attend as matmul

def attend(q, k, v, **options):
    ACT
    return matmul(q, k, v, **options)

backend = Backend(
    name="mine", attend=attend, arrays=ARRAYS, precision={"float32": standard("float32")}
)
"""

ONLY = "C1: shape=2,5,7,3,11,13 dtype=float32"


def written(folder: Path, act: str) -> str:
    path = folder / "mine.py"
    path.write_text(CANDIDATE.replace("ACT", act))
    return str(path)


def only_result(spec: str, timeout: float = 60.0) -> Result:
    (result,) = check_isolated(spec, only=ONLY, timeout=timeout).results
    return result


def test_a_crash_is_the_failure_of_its_check(tmp_path: Path) -> None:
    result = only_result(written(tmp_path, "print('last words', flush=True); ctypes.string_at(0)"))
    assert result.status == "failed"
    assert "SIGSEGV" in result.detail
    assert "last words" in result.output


def test_an_exit_is_the_failure_of_its_check(tmp_path: Path) -> None:
    result = only_result(written(tmp_path, "import os; os._exit(7)"))
    assert result.status == "failed"
    assert "exit status 7" in result.detail


def test_a_crash_shows_where_the_candidate_was(tmp_path: Path) -> None:
    result = only_result(written(tmp_path, "ctypes.string_at(0)"))
    assert "mine.py" in result.output
    assert " in attend" in result.output


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "GeneratorExit", "SystemExit", "Odd"])
def test_whatever_is_raised_is_the_failure_of_its_check(kind: str, tmp_path: Path) -> None:
    path = Path(written(tmp_path, f"raise {kind}"))
    odd = "class Odd(Exception):\n    def __str__(self): raise ValueError\n"
    path.write_text(odd + path.read_text())
    result = only_result(str(path))
    assert result.status == "failed"
    assert result.detail.startswith(f"raised {kind}")


def test_printed_text_is_cut_at_the_end_of_a_line(tmp_path: Path) -> None:
    result = only_result(written(tmp_path, "[print(f'line {i:05}') for i in range(1000)]"))
    assert len(result.output.splitlines()[0]) == len("line 00000")
    assert result.output.endswith("line 00999\n")


def test_a_candidate_may_have_processes_of_its_own(tmp_path: Path) -> None:
    act = (
        "from multiprocessing import get_context\n"
        "    with get_context('fork').Pool(1) as pool: assert pool.map(abs, [-1]) == [1]"
    )
    result = only_result(written(tmp_path, act))
    assert result.status == "passed", result.detail


ORPHANS = "import subprocess; subprocess.Popen(['sleep', '600']); "


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("end", ["time.sleep(600)", "import os; os._exit(3)", "pass"])
def test_what_a_candidate_starts_ends_with_it(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    only_result(written(tmp_path, ORPHANS + end), timeout=2.0)
    assert not living(tmp_path / "mark")


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_an_end_is_seen_though_a_child_holds_the_connection(tmp_path: Path) -> None:
    act = "import os; os.fork() and os._exit(5) or time.sleep(600)"
    result = only_result(written(tmp_path, act))
    assert "exit status 5" in result.detail


@pytest.mark.skipif(sys.platform == "win32", reason="closes by a shell")
@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_standard_streams_may_be_closed(closed: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fullattention", "check"]
    command += [written(tmp_path, "print('said')"), "--only", ONLY]
    command += ["--json", str(tmp_path / "verdict.json")]
    shell = f"exec {shlex.join(command)} {closed}"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = read_one(tmp_path / "verdict.json", Verdict).results
    assert result.status == "passed"
    assert result.output.startswith("said\n")


def test_a_hang_is_the_failure_of_its_check(tmp_path: Path) -> None:
    result = only_result(written(tmp_path, "time.sleep(600)"), timeout=0.5)
    assert result.status == "failed"
    assert "hung: no answer within 0.5 s" in result.detail


def test_a_declared_deviation_excuses_no_crash_and_no_hang(tmp_path: Path) -> None:
    path = Path(written(tmp_path, "q.shape[2] == 3 and (ctypes.string_at(0), time.sleep(600))"))
    declared = 'deviates={"C1": "rounds"}, precision={'
    path.write_text(path.read_text().replace("precision={", declared))
    crash = only_result(str(path))
    path = path.rename(path.with_name("hangs.py"))
    path.write_text(path.read_text().replace("ctypes.string_at(0), ", ""))
    hang = only_result(str(path), timeout=0.5)
    assert (crash.status, hang.status) == ("failed", "failed")


@pytest.mark.parametrize(
    ("act", "timeout", "says"),
    [
        ("time.sleep(600)", 2.0, "none: it did not come within 2 s"),
        ("import os; os._exit(3)", 60.0, "none: it took the process down while it was asked: exit"),
    ],
)
def test_a_diagnosis_that_does_not_come_is_a_line(
    tmp_path: Path, act: str, timeout: float, says: str
) -> None:
    """Its questions come after the check's one call, which is answered wrongly."""
    first = "calls = attend.calls = getattr(attend, 'calls', 0) + 1"
    wrong = "return matmul(q, k, v, **options)[0] + 1, None"
    spec = written(tmp_path, f"{first}\n    if calls > 1: {act}\n    {wrong}")
    verdict = check_isolated(spec, only=ONLY, timeout=timeout)
    assert not verdict.conformant
    (line,) = verdict.diagnosis
    assert line.startswith(says)


def test_what_is_printed_is_kept_with_the_check_and_out_of_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = only_result(written(tmp_path, "print('hello'); print('there', file=sys.stderr)"))
    assert result.status == "passed"
    assert "hello" in result.output
    assert "there" in result.output
    assert "hello" not in capfd.readouterr().out


def test_what_is_printed_may_be_any_text_whatever_the_terminal_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    act = r"print('right \u2713'); print('\udcff', file=sys.stderr)"
    result = only_result(written(tmp_path, act))
    assert result.status == "passed", result.detail
    assert "right \u2713" in result.output


def test_its_threads_sleep_while_they_wait_unless_they_are_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = written(tmp_path, "import gc, os; print(os.environ['OMP_WAIT_POLICY'], gc.isenabled())")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert "passive True" in only_result(spec).output
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert "active True" in only_result(spec).output


def test_the_next_check_runs_in_a_new_process_until_too_many_were_lost(tmp_path: Path) -> None:
    spec = written(tmp_path, "q.shape[1] == 5 and ctypes.string_at(0)")
    checks = [one for one in catalogue(("float32",), "standard") if one.requirement == "C4"]
    with IsolatedCandidate(spec, "cpu") as candidate:
        crashing = [one for one in checks if "shape=2,5," in one.id][: LOSSES + 1]
        (sound,) = [one for one in checks if "shape=2,40," in one.id][:1]
        assert candidate.run(crashing[0]).status == "failed"
        assert candidate.run(sound).status == "passed"
        statuses = [candidate.run(one).status for one in crashing[1:]]
    assert statuses == ["failed"] * (LOSSES - 1) + ["not run"]


def test_errors_at_loading_cross_the_process(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"cupy is not installed|CuPy runs on"):
        check_isolated("cupy-matmul")
    with pytest.raises(LookupError, match="nonsense"):
        check_isolated("nonsense")
    path = tmp_path / "crashes.py"
    path.write_text("import os; os._exit(3)")
    with pytest.raises(LookupError, match="exit status 3"):
        check_isolated(str(path))


def test_the_verdict_is_that_of_this_process_too() -> None:
    from fullattention.conformance import check

    here, there = check("numpy-matmul", only="M5"), check_isolated("numpy-matmul", only="M5")
    assert here.results == there.results
    assert there.spec == "numpy-matmul"
    assert there.environment is not None
    assert any("openblas" in name or "mkl" in name.lower() for name in there.environment.blas)


def test_a_hang_at_import_ends_with_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fullattention.conformance.isolation.LOADING", 0.5)
    path = tmp_path / "hangs.py"
    path.write_text("import time; time.sleep(600)")
    with pytest.raises(LookupError, match="hung at import"):
        check_isolated(str(path), timeout=0.1)


def test_a_process_that_dies_between_checks_is_a_failure_of_the_next(tmp_path: Path) -> None:
    act = "import os, threading; threading.Timer(0.2, os._exit, (9,)).start()"
    checks = [one for one in catalogue(("float32",), "standard") if one.requirement == "C4"]
    with IsolatedCandidate(written(tmp_path, act), "cpu") as candidate:
        candidate.run(checks[0])
        candidate.process.ending()
        assert candidate.run(checks[1]).status in ("passed", "failed")


def test_a_candidate_that_cannot_be_loaded_again_keeps_the_results_so_far(tmp_path: Path) -> None:
    spec = written(tmp_path, "open(__file__, 'w').write('1/0'); ctypes.string_at(0)")
    verdict = check_isolated(spec, only="C4")
    assert verdict.results[0].status == "failed"
    assert any("could not be loaded again" in result.detail for result in verdict.results)
    assert verdict.results[-1].status == "not run"


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    check_isolated("numpy-matmul", only="C1: contiguous")
    with pytest.raises(LookupError):
        check_isolated("nonsense")
    assert list((tmp_path / "scratch").glob("fullattention-*")) == []


FUNCTION = """
def attend(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    a = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
    return (a @ v).transpose(1, 2).contiguous()
"""


@pytest.mark.parametrize(
    "imported",
    [
        "import torch",
        "import torch as t",
        "from torch.nn.functional import pad",
        "import torch.nn as nn",
    ],
)
def test_a_function_is_of_torch_if_its_module_has_anything_of_it(
    tmp_path: Path, imported: str
) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "mine.py"
    path.write_text(imported + FUNCTION)
    subject = load_subject(f"{path}:attend")
    assert subject.library == "torch"
    assert judge_subject(subject, only="C1: shape", dtypes=("float32",)).conformant


def test_a_function_of_torch_is_one_in_its_own_process_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "mine.py"
    path.write_text("import torch" + FUNCTION)
    verdict = check_isolated(f"{path}:attend", only="C1: shape", dtypes=("float32",))
    assert verdict.library == "torch"
    assert verdict.conformant


def test_the_process_that_asks_does_not_import_the_candidates_library() -> None:
    code = f"""
import sys
from fullattention.conformance import check_isolated
if __name__ == "__main__":
    verdict = check_isolated("torch-sdpa", only={ONLY!r})
    assert verdict.conformant, verdict
    assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
