"""`fullattention bench`: runs the benchmarks by pytest, shows them as they come, and reports."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from fullattention.bench.options import Options
from fullattention.bench.session import SESSION, BenchSession
from fullattention.records import (
    RUNS,
    TIMINGS,
    VERDICTS,
    Comparison,
    Environment,
    Timing,
    Verdict,
    read,
)
from fullattention.status import RIGHT, USAGE, WRONG, status_of

PYTEST_VARIABLES = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS")
"""By which a pytest speaks to the one that it starts."""


class Listener(Protocol):
    """Shows what a run does while it does it."""

    def started(self, environment: Environment, count: int) -> None:
        """So many timings are to be made, on this machine."""

    def measured(self, timing: Timing, over_baseline: Comparison | None) -> None:
        """One timing is done, or it is known why there is none."""


def run(options: Options, *, out: Path, listener: Listener, report: Callable[[Path], str]) -> int:
    """Time workloads on backends, and print and write the report, after an interruption too.

    Args:
        options: what to time, and how.
        out: folder for records and report; it must not hold those of another run.
        listener: shows each timing as it is made.
        report: writes the report of a folder of records, and returns it as text.

    Returns:
        The exit status: 0 if all that was timed is right, 1 if a backend was wrong or nothing was
        timed, 2 if a backend or the folder cannot be used, 130 after Ctrl-C, 143 after SIGTERM.
    """
    try:
        session = BenchSession(options, out)
    except (LookupError, OSError, TypeError, ValueError) as error:
        print(f"fullattention bench: {error}", file=sys.stderr)
        return USAGE
    relay = _Relay(session, listener)
    with contextlib.closing(session), _alone(), warnings.catch_warnings():
        # What pytest-benchmark says where nothing was timed; the report says why.
        warnings.filterwarnings("ignore", "Not saving anything|Benchmark fixture was not used")
        ended = pytest.main(_arguments(out), plugins=[relay])
    if (out / TIMINGS).exists():
        print(f"\n{report(out)}", end="")
    if relay.interruption:
        return status_of(relay.interruption)
    return RIGHT if ended == pytest.ExitCode.OK and _all_right(out) else WRONG


def new_folder() -> Path:
    """A folder for a run's records that nobody else gets, named by the time."""
    time = datetime.datetime.now().strftime("%Y-%m-%dT%H%M%S")
    for name in itertools.chain([time], (f"{time}-{number}" for number in itertools.count(2))):
        folder = RUNS / name
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError("there is always one more number")


def _arguments(out: Path) -> list[str]:
    """Pytest's arguments: nobody else's settings, no files but in `out`, no output but failures."""
    return [
        *("--pyargs", "fullattention.bench"),
        *("-c", os.devnull, f"--rootdir={Path(__file__).parent}", "--noconftest"),
        *("-p", "no:cacheprovider", "-qq", "-rN", "--tb=short", "--disable-warnings"),
        *("-o", "console_output_style=classic"),
        *("--benchmark-quiet", f"--benchmark-json={out / 'pytest-benchmark.json'}"),
    ]


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hide a pytest that runs us: pytest-benchmark times nothing under pytest-xdist's."""
    outer = {name: os.environ.pop(name) for name in PYTEST_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(outer)


def _all_right(out: Path) -> bool:
    """Whether something was timed and all candidates conform; pytest tells of wrong results."""
    verdicts = read(out / VERDICTS, Verdict) if (out / VERDICTS).exists() else []
    timings = read(out / TIMINGS, Timing) if (out / TIMINGS).exists() else []
    timed = any(timing.status == "timed" for timing in timings)
    return timed and all(verdict.conformant for verdict in verdicts)


class _Relay:
    """A pytest plugin that hands in the session, and tells a listener instead of pytest's dots."""

    def __init__(self, session: BenchSession, listener: Listener) -> None:
        self.session = session
        self.listener = listener
        self.interruption: type[BaseException] | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[SESSION] = self.session

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.listener.started(self.session.environment, len(session.items))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            for name, value in report.user_properties:
                if name == "measured" and isinstance(value, tuple):
                    self.listener.measured(*value)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        return report.outcome, "", ""

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self.interruption = excinfo.type
