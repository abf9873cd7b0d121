"""A candidate in a warm process of its own, one of several, which lives through a whole run.

Where one candidate crashes, hangs, or leaves a thread spinning, the others neither end nor become
slower unseen.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from fullattention.backends import UnsupportedError
from fullattention.backends.errors import is_out_of_memory
from fullattention.bench.limits import TooLargeError
from fullattention.bench.server import Server
from fullattention.conformance.candidate_process import INTERRUPTIONS, CandidateProcess, lead
from fullattention.conformance.subject import Declaration, declaration_of, load_subject
from fullattention.machine.blas import blas

LOADING = 300.0
"""Seconds that loading may take: all candidates import their libraries at once."""

JUDGING = 900.0
"""Seconds; a backend may compile anew for each kind of call that the checks make."""

PREPARING = 300.0
"""Seconds; the first call may compile."""

TURNING = 60.0
"""Seconds of a turn, beyond which its candidate counts as hung."""

FIGURING = 300.0
"""Seconds for what a GPU tells beside the times: some turns' worth of calls, and a capture."""


class OutError(Exception):
    """A candidate cannot take part, or no longer; the message says why."""


class RefusedError(OutError):
    """It says so itself: it lacks something, or the workload is too large."""


class Worker:
    """The parent's side: a process with one candidate.

    Starting does not wait; `declaration` does, and says what the candidate is.
    """

    def __init__(self, spec: str, device: str, threads: int) -> None:
        self.blas: tuple[str, ...] = ()
        """The BLAS and OpenMP libraries that the candidate has loaded."""
        self.process = CandidateProcess(_serve, spec, device, threads)

    def declaration(self) -> Declaration:
        """What the candidate says of itself, once it is loaded; `blas` is known from then on.

        Raises:
            OutError: it hung or died meanwhile.
            UnavailableError, LookupError, TypeError: as `backends.load`, from the process.
        """
        answer = self._answer(LOADING)
        if isinstance(answer, Exception):
            self.stop()
            raise answer
        declaration: Declaration
        declaration, self.blas = answer
        return declaration

    def ask(self, name: str, *arguments: Any, seconds: float) -> Any:
        """Let the worker do what `Server` has by this name.

        Raises:
            RefusedError: it cannot do it.
            OutError: it raised, hung for so long, or died; in the last two cases it has ended.
        """
        if not self.process.alive:
            raise OutError("its process had ended before")
        with contextlib.suppress(OSError):  # it has just died, as its answer will tell
            self.process.send((name, arguments))
        outcome, value = self._answer(seconds)
        if outcome == "refused":
            raise RefusedError(value)
        if outcome == "raised":
            raise OutError(value)
        return value

    def stop(self) -> None:
        """End the process, and what it started."""
        self.process.stop()

    def _answer(self, seconds: float) -> Any:
        try:
            if self.process.answered(seconds):
                return self.process.answer()
        except (EOFError, OSError):
            ended = self.process.ending()
            self.stop()  # and what it left
            raise OutError(f"took its process down: {ended}") from None
        self.stop()
        raise OutError(f"hung: no answer within {seconds:g} s")


def _serve(connection: Connection, spec: str, device: str, threads: int) -> None:
    """The process: load the candidate, then do what is asked for."""
    _leave_interruptions_to_the_parent()
    lead(os.open(os.devnull, os.O_WRONLY))  # what is printed would break up the report
    try:
        subject = load_subject(spec, device)
        server = Server(subject, threads)
        connection.send((declaration_of(subject), blas()))
    except Exception as error:  # noqa: BLE001 - it is raised where the candidate was asked for
        connection.send(error)
        return
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        connection.send(_outcome(getattr(server, name), arguments))


def _leave_interruptions_to_the_parent() -> None:
    """Ignore what would end the process, but not for what a candidate starts and ends by it."""
    for interruption in INTERRUPTIONS:
        # A handler of one's own is not inherited by other programs, as ignoring is.
        before = signal.signal(interruption, lambda number, frame: None)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                after_in_child=functools.partial(signal.signal, interruption, before)
            )


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "done", function(*arguments)
    except TooLargeError as error:
        return "refused", str(error)
    except UnsupportedError as error:
        return "refused", f"lacks {error.capability}: {error.reason}"
    except BaseException as error:  # noqa: BLE001 - whatever a candidate raises is its own
        if is_out_of_memory(error):
            return "refused", f"out of memory: {first_line(error)}"
        return "raised", f"raised {type(error).__name__}: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """The error's message without its details; its class where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]
