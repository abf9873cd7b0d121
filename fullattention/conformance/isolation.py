"""Runs a candidate's checks in a process of its own: it may hang, crash or print.

Backends are other people's code. What one does to its process ends with that process, and is shown
at the check that it did it in.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import gc
import os
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

from fullattention.backends.errors import UnavailableError, described
from fullattention.backends.precision import DTYPES
from fullattention.conformance.candidate_process import CandidateProcess, flush, lead
from fullattention.conformance.catalogue import catalogue
from fullattention.conformance.check import Check
from fullattention.conformance.diagnosis import diagnose
from fullattention.conformance.subject import Declaration, Subject, declaration_of, load_subject
from fullattention.conformance.trial import result_of, run_check
from fullattention.records import Environment, Result

TIMEOUT = 60.0
"""Seconds a check may take before its candidate counts as hung."""

SLOW = 4
"""Factor on that for checks that the full level alone has: they may compile code."""

LOADING = 120.0
"""Seconds that loading a candidate may take, or as many as a check if those are more."""

LOSSES = 5
"""Processes that a candidate may take down before the rest of its checks are given up."""

LAST_WORDS = 4000
"""Characters of what a check printed that are kept."""


class IsolatedCandidate:
    """A candidate in a process of its own, started anew after each one that it takes down.

    Raises:
        UnavailableError, LookupError, TypeError: as `backends.load`, from the process.
    """

    def __init__(self, spec: str, device: str, *, timeout: float = TIMEOUT) -> None:
        self.spec = spec
        self.device = device
        self.timeout = timeout
        self.losses = 0
        self.folder = tempfile.TemporaryDirectory(prefix="fullattention-")
        self.log = Path(self.folder.name) / "printed"
        try:
            self.declaration, self.environment = self._start()
        except BaseException:
            self.folder.cleanup()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.stop()
        self.folder.cleanup()

    def run(self, check: Check) -> Result:
        """Run one check; a hang or a crash becomes its failure."""
        if self.losses >= LOSSES:
            reason = f"{LOSSES} processes hung or were taken down before"
            return result_of(check, "not run", reason)
        if not self.process.alive:
            self.process.stop()  # and what it left
            try:
                self._start()
            except (UnavailableError, LookupError, TypeError) as error:
                self.losses = LOSSES
                return result_of(check, "failed", f"could not be loaded again: {error}")
        try:
            self.process.send(check.id)
            patience = SLOW * self.timeout if check.full else self.timeout
            if self.process.answered(patience):
                result: Result = self.process.answer()
                return result
            return self._lost(check, f"hung: no answer within {patience:g} s")
        except (EOFError, OSError):
            return self._lost(check, f"took the process down: {self.process.ending()}")

    def diagnose(self, results: Sequence[Result]) -> Sequence[str]:
        """What the candidate computes instead, or where it is wrong, or why nothing is known."""
        if self.losses or not self.process.alive:
            return ()  # what hangs or crashes is named by its checks
        try:
            self.process.send(tuple(results))
            if self.process.answered(self.timeout):
                lines: Sequence[str] = self.process.answer()
                return lines
        except (EOFError, OSError):
            ended = self.process.ending()
            return (f"none: it took the process down while it was asked: {ended}",)
        return (f"none: it did not come within {self.timeout:g} s",)

    def _start(self) -> tuple[Declaration, Environment | None]:
        self.process = CandidateProcess(_serve, self.spec, self.device, str(self.log))
        try:
            # Loading may take longer than a check: frameworks are imported, kernels compiled.
            came = self.process.answered(max(self.timeout, LOADING))
            answer = self.process.answer() if came else LookupError(f"{self.spec!r} hung at import")
        except (EOFError, OSError):
            ended = self.process.ending()
            answer = LookupError(f"{self.spec!r} took the process down at import: {ended}")
        except BaseException:
            self.process.stop()
            raise
        if isinstance(answer, Exception):
            self.process.stop()
            raise answer
        declaration, environment = answer
        return declaration, environment

    def _lost(self, check: Check, detail: str) -> Result:
        self.losses += 1
        self.process.stop()
        return dataclasses.replace(result_of(check, "failed", detail), output=_last_words(self.log))


def _serve(connection: Connection, spec: str, device: str, log: str) -> None:
    """The process: load the candidate, then run the checks whose ids come."""
    sink = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    lead(sink)
    faulthandler.enable(file=sink, all_threads=False)
    # OpenMP's threads wait for each other by spinning: for many times as long as they work, where
    # other processes use the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    gc.disable()  # what is imported stays: to search it for garbage takes a tenth of the time
    try:
        subject = load_subject(spec, device)
        # The checks of each dtype as the primary one hold those of every choice of dtypes.
        checks = {check.id: check for one in DTYPES for check in catalogue((one,), "full")}
        gc.freeze()
        gc.enable()
        connection.send((declaration_of(subject), environment_here()))
    except Exception as error:  # noqa: BLE001 - it is raised where the candidate was asked for
        connection.send(error)
        return
    except BaseException as error:  # noqa: BLE001 - none of them is Ctrl-C; see `lead`
        connection.send(LookupError(f"{spec!r} does not load: {described(error)}"))
        return
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        if not isinstance(asked, str):
            connection.send(_diagnosed(subject, asked))
            continue
        check = checks[asked]
        os.ftruncate(sink, 0)
        os.lseek(sink, 0, os.SEEK_SET)
        try:
            result = run_check(subject, check)
        except BaseException as error:  # noqa: BLE001 - none of them is Ctrl-C; see `lead`
            result = result_of(check, "failed", f"raised {described(error)}")
        flush()
        connection.send(dataclasses.replace(result, output=_last_words(Path(log))))


def _diagnosed(subject: Subject, results: Sequence[Result]) -> Sequence[str]:
    try:
        return diagnose(subject, results)
    except BaseException as error:  # noqa: BLE001 - none of them is Ctrl-C; see `lead`
        return (f"none: it raised {described(error)} while it was asked",)


def _last_words(log: Path) -> str:
    """The end of what was printed, in whole lines if there is more than one."""
    printed = log.read_text(encoding="utf-8", errors="replace")
    # Python names every module of compiled code at a crash, after the stack.
    lines = [x for x in printed.splitlines(True) if not x.startswith("Extension modules: ")]
    words = "".join(lines)
    if len(words) <= LAST_WORDS:
        return words
    end = words[-LAST_WORDS:]
    return end.partition("\n")[2] or end


def environment_here() -> Environment | None:
    """This process's environment; None where the libraries that read it are not installed."""
    try:
        from fullattention.machine.environment import environment
        from fullattention.machine.hardware import usable_cores
    except ModuleNotFoundError:
        return None
    return environment(usable_cores())
