"""Runs a candidate's checks in a process of its own: it may hang, crash or print.

Backends are other people's code. What one does to its process ends with that process, and is shown
at the check that it did it in.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

from fullattention.backends.errors import UnavailableError
from fullattention.backends.precision import DTYPES
from fullattention.conformance.catalogue import catalogue
from fullattention.conformance.check import Check
from fullattention.conformance.diagnosis import diagnose
from fullattention.conformance.subject import Declaration, declaration_of, load_subject
from fullattention.conformance.trial import result_of, run_check
from fullattention.records import Environment, Result

TIMEOUT = 60.0
"""Seconds a check may take before its candidate counts as hung."""

SLOW = 4
"""How many times that a check may take that the full level alone has: it may compile code."""

LOADING = 120.0
"""Seconds that loading a candidate may take, if a check may not take longer."""

LOSSES = 5
"""Processes that a candidate may take down before the rest of its checks are given up."""

LAST_WORDS = 2000
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
        self._stop()
        self.folder.cleanup()

    def run(self, check: Check) -> Result:
        """Run one check; a hang or a crash becomes its failure."""
        if self.losses >= LOSSES:
            reason = f"{LOSSES} processes hung or were taken down before"
            return result_of(check, "not run", reason)
        if not self.process.is_alive():
            try:
                self._start()
            except (UnavailableError, LookupError, TypeError) as error:
                self.losses = LOSSES
                return result_of(check, "failed", f"could not be loaded again: {error}")
        try:
            self.connection.send(check.id)
            patience = SLOW * self.timeout if check.full else self.timeout
            if self.connection.poll(patience):
                result: Result = self.connection.recv()
                return result
            return self._lost(check, f"hung: no answer within {patience:g} s")
        except (EOFError, OSError):
            self.process.join()
            return self._lost(check, f"took the process down: {ending(self.process.exitcode)}")

    def diagnose(self, results: Sequence[Result]) -> Sequence[str]:
        """What the candidate computes instead, or where it is wrong, or why nothing is known."""
        if self.losses or not self.process.is_alive():
            return ()  # what hangs or crashes is named by its checks
        try:
            self.connection.send(tuple(results))
            if self.connection.poll(self.timeout):
                lines: Sequence[str] = self.connection.recv()
                return lines
        except (EOFError, OSError):
            self.process.join()
            ended = ending(self.process.exitcode)
            return (f"none: it took the process down while it was asked: {ended}",)
        return (f"none: it did not come within {self.timeout:g} s",)

    def _start(self) -> tuple[Declaration, Environment | None]:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, self.spec, self.device, str(self.log)), daemon=True
        )
        self.process.start()
        theirs.close()
        try:
            # Loading may take longer than a check: frameworks are imported, kernels compiled.
            if not self.connection.poll(max(self.timeout, LOADING)):
                self._stop()
                raise LookupError(f"{self.spec!r} hung at import")
            answer = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            self.connection.close()
            ended = ending(self.process.exitcode)
            raise LookupError(f"{self.spec!r} took the process down at import: {ended}") from None
        if isinstance(answer, Exception):
            self._stop()
            raise answer
        declaration, environment = answer
        return declaration, environment

    def _lost(self, check: Check, detail: str) -> Result:
        self.losses += 1
        printed = self.log.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:]
        self._stop()
        return dataclasses.replace(result_of(check, "failed", detail), output=printed)

    def _stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(connection: Connection, spec: str, device: str, log: str) -> None:
    """The process: load the candidate, then run the checks whose ids come."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    sink = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):  # what compiled code prints is caught too
        os.dup2(sink, stream)
    try:
        subject = load_subject(spec, device)
        # The checks of each dtype as the primary one hold those of every choice of dtypes.
        checks = {check.id: check for one in DTYPES for check in catalogue((one,), "full")}
        connection.send((declaration_of(subject), environment_here()))
    except Exception as error:  # noqa: BLE001 - it is raised where the candidate was asked for
        connection.send(error)
        return
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        if not isinstance(asked, str):
            connection.send(diagnose(subject, asked))
            continue
        check = checks[asked]
        os.ftruncate(sink, 0)
        os.lseek(sink, 0, os.SEEK_SET)
        result = run_check(subject, check)
        sys.stdout.flush()
        sys.stderr.flush()
        printed = Path(log).read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:]
        connection.send(dataclasses.replace(result, output=printed))


def end_with_parent() -> None:
    """A hung candidate must not outlive the process that waits for it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def environment_here() -> Environment | None:
    """This process's environment; None where the libraries that read it are not installed."""
    try:
        from fullattention.machine.environment import environment
        from fullattention.machine.hardware import usable_cores
    except ModuleNotFoundError:
        return None
    return environment(usable_cores())


def ending(code: int | None) -> str:
    """How a process ended, in words."""
    if code is not None and code < 0:
        known = {one.value: one.name for one in signal.Signals}
        return known.get(-code, f"signal {-code}")
    return f"exit status {code}"
