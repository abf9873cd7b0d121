"""Proves on a machine with a GPU what none without one can: `python tools/gpu_check.py --out DIR`.

Runs in a bare checkout. Each step has a process of its own, a time limit and a log, so that what
hangs or crashes costs that step alone; the whole ends within the budget, of which timing has its
share whatever the proofs take, and prints one table last.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
STEPS = (sys.executable, str(HERE / "gpu_steps.py"))

RIGHT, WRONG, NO_DEVICE = 0, 1, 3
"""Exit statuses."""

NOT_RUN = 4
"""Exit status of a step that could not be tried; its last line says why."""

BUDGET = 460.0
"""Seconds for everything."""

TIMED = 0.5
"""Share of the budget that nothing but `times` may use."""

CHECKED = 0.4
"""Share of what is left to the proofs that one backend's conformance may take: kernels that are
compiled for each kind of call would take all of it."""

AT_WORK = 0.8
"""Share of a step's time after which it begins nothing more: the last thing takes a while."""

GRACE = 2.0
"""Times its share, after which a step that has a share of the time is taken to hang."""

OURS = ("cupy-", "numba-cuda", "triton")
"""Beginnings of the names of backends with kernels of our own: they come first, and the sanitizer
watches them."""

SANITIZER_TOOLS = ("memcheck", "racecheck")


@dataclass(frozen=True)
class Step:
    """One thing to try."""

    name: str
    backend: str
    """Empty: of no backend."""
    command: tuple[str, ...]
    timeout: float
    """Seconds."""
    pace: float = 0.0
    """Seconds after which it is told to begin nothing more; 0: it is told nothing."""


@dataclass(frozen=True)
class Outcome:
    """What came of a step."""

    step: str
    backend: str
    status: str
    """"ok", "failed", "not run" or "timed out"."""
    detail: str
    """The last line that the step printed."""
    seconds: float


class Run:
    """Runs steps within the budget and records what comes of them."""

    def __init__(self, out: Path, budget: float) -> None:
        self.out = out
        self.kept = 0.0
        """Seconds of the budget that steps leave alone."""
        self.end = time.monotonic() + budget
        self.outcomes: list[Outcome] = []
        (out / "logs").mkdir(parents=True, exist_ok=True)
        self.environment = os.environ | {"PYTHONPATH": _python_path(), "OMP_NUM_THREADS": "2"}
        if not os.access(os.environ.get("HOME", ""), os.W_OK):
            # Where Numba, CuPy and Triton keep what they have compiled, and fail if they cannot.
            self.environment["HOME"] = str(out)

    @property
    def left(self) -> float:
        """Seconds of the budget that steps may use."""
        return self.end - self.kept - time.monotonic()

    def together(self, steps: Iterable[Step], at_once: int = 1) -> list[Outcome]:
        """Run steps, so many at a time."""
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            outcomes = list(pool.map(self._run, steps))
        self.outcomes += outcomes
        with (self.out / "steps.jsonl").open("a", encoding="utf-8") as file:
            for outcome in outcomes:
                file.write(json.dumps(asdict(outcome), allow_nan=False) + "\n")
        return outcomes

    def _run(self, step: Step) -> Outcome:
        start = time.monotonic()
        status, detail = self._attempt(step)
        seconds = round(time.monotonic() - start, 1)
        outcome = Outcome(step.name, step.backend, status, detail, seconds)
        print(f"{step.name} {step.backend}: {status}, {seconds} s, {detail}", flush=True)
        return outcome

    def _attempt(self, step: Step) -> tuple[str, str]:
        timeout = min(step.timeout, self.left)
        if self.left < 1:
            return "not run", "the budget is spent"
        seconds = min(step.pace, AT_WORK * timeout)
        pace = ("--seconds", f"{seconds:.0f}") if step.pace else ()
        log = self.out / "logs" / f"{step.name}{'-' * bool(step.backend)}{step.backend}.txt"
        with log.open("w", encoding="utf-8") as file:
            try:
                code = _exit_status((*step.command, *pace), file, timeout, self.environment)
            except subprocess.TimeoutExpired:
                told = f"after {timeout:.0f} s: {_last_line(log)}"
                if timeout < step.timeout:  # which is no sign that it hangs
                    return "not run", f"the budget was spent {told}"
                return "timed out", told
            except OSError as error:
                return "failed", str(error)
        detail = _last_line(log)
        if code < 0:
            return "failed", f"signal {-code}: {detail}"
        return {0: "ok", NOT_RUN: "not run"}.get(code, "failed"), detail


def _exit_status(
    command: Sequence[str], log: IO[str], timeout: float, environment: Mapping[str, str]
) -> int:
    """How a command ends; what it has started ends with it, and disturbs no later step."""
    with subprocess.Popen(
        command,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(timeout)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


def _python_path() -> str:
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(HERE.parent), *([before] if before else [])])


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


def devices() -> int:
    """CUDA devices, as the driver itself tells."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def step(
    name: str, backend: str, out: Path, timeout: float, *before: str, pace: float = 0.0
) -> Step:
    """A step of `gpu_steps.py`, behind the command of a tool that watches it."""
    arguments = (name, "--out", str(out), *(("--backend", backend) if backend else ()))
    return Step(name, backend, (*before, *STEPS, *arguments), timeout, pace)


def sharing(name: str, backend: str, out: Path, share: float) -> Step:
    """A step that is to use a share of the time, in seconds."""
    return step(name, backend, out, GRACE * share, pace=AT_WORK * share)


def check(run: Run, backends: Sequence[str]) -> None:
    """All steps, in the order of what they are worth; what is timed has the machine to itself."""
    several = max(1, (os.cpu_count() or 2) // 2)
    run.kept = TIMED * run.left
    run.together([step("ceilings", "", run.out, 60)])
    longest = CHECKED * run.left
    run.together((sharing("conformance", name, run.out, longest) for name in backends), several)
    run.together(
        (
            sharing(kind, name, run.out, 30)
            for kind in ("nan-allocations", "side-stream", "graph")
            for name in backends
        ),
        several,
    )
    _sanitize(run, [name for name in backends if name.startswith(OURS)])
    run.kept = 0.0
    with tempfile.TemporaryDirectory() as inputs:
        for index, name in enumerate(backends):
            share = run.left / (len(backends) - index)
            timing = sharing("times", name, run.out, share)
            run.together([replace(timing, command=(*timing.command, "--inputs", inputs))])


def _sanitize(run: Run, backends: Sequence[str]) -> None:
    """Watch the kernels of our own on a small set."""
    sanitizer = shutil.which("compute-sanitizer")
    for tool in SANITIZER_TOOLS:
        if sanitizer is None:
            outcome = Outcome(tool, "", "not run", "compute-sanitizer is not installed", 0.0)
            run.outcomes.append(outcome)
            continue
        watch = (sanitizer, "--tool", tool, "--error-exitcode", "1")
        steps = (step("small-set", name, run.out, 60, *watch, pace=30) for name in backends)
        named = [replace(one, name=tool) for one in steps]
        run.together(named, len(named) or 1)


def table(run: Run) -> str:
    """Every outcome on a line, and how many there are of each kind."""
    rows = [("step", "backend", "status", "seconds", "")]
    rows += [
        (one.step, one.backend, one.status, f"{one.seconds:.1f}", one.detail)
        for one in run.outcomes
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4]]
        )
        for row in rows
    ]
    counts = Counter(one.status for one in run.outcomes)
    return "\n".join([*lines, ", ".join(f"{count} {kind}" for kind, count in counts.items())])


def main(arguments: Sequence[str] | None = None) -> int:
    """Check everything; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for the records")
    parser.add_argument("--budget", type=float, default=BUDGET, metavar="S", help="seconds")
    options = parser.parse_args(arguments)
    if not options.budget > 0:
        parser.error(f"budget is {options.budget:g}: a number of seconds above 0")
    try:
        run = Run(options.out.resolve(), options.budget)
    except OSError as error:
        parser.error(f"--out is {options.out}: {error.strerror}")
    count = devices()
    listed = listing(run)
    for name, one in listed.items():
        reason = one["reason"] if count else f"no CUDA device; {one['reason']}"
        if reason:
            run.outcomes.append(Outcome("load", name, "not run", reason, 0.0))
    if count and listed:
        check(run, in_order(listed))
    print(f"\n{table(run)}")
    if not listed or any(one.status in ("failed", "timed out") for one in run.outcomes):
        return WRONG
    return RIGHT if count else NO_DEVICE


def listing(run: Run) -> dict[str, Any]:
    """Every backend, and why it cannot run; what ends the process that loads it costs itself."""
    path = run.out / "backends.json"
    path.unlink(missing_ok=True)
    listed: dict[str, Any] = {}
    while True:
        (outcome,) = run.together([step("backends", "", run.out, 120)])
        known = len(listed)
        if path.exists():
            listed = json.loads(path.read_text("utf-8"))
        if outcome.status == "ok" or len(listed) == known:
            return listed


def in_order(listed: Mapping[str, Any]) -> list[str]:
    """The backends that run: our own first, and last those that compile for minutes."""
    usable = [name for name, one in listed.items() if not one["reason"]]
    return sorted(usable, key=lambda name: (not name.startswith(OURS), listed[name]["compiles"]))


if __name__ == "__main__":
    sys.exit(main())
