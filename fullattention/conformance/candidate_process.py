"""A process for one candidate, and all that the candidate starts in it: begun and ended together.

It leads a session of its own, so that ending its group ends its children too, and Ctrl-C is its
parent's to act on. Until it does, what would interrupt it waits.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any

from fullattention.streams import take_any_text

PATIENCE = 0.2
"""Seconds between looks whether a process that owes an answer still lives: the connection does not
tell, as children that it leaves hold its end open."""

INTERRUPTIONS = frozenset({signal.SIGINT, signal.SIGTERM})
"""What asks a process to end."""

REAPING = 5.0
"""Seconds that a process which has closed its connection may take to end."""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait, in processes begun meanwhile until they `lead`.

    Nothing waits where the system has no masks of signals.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # as it begins, it lets through what waits
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class CandidateProcess:
    """The parent's side of a process; it is not waited for.

    Args:
        serve: what runs in it, with its end of the connection and the arguments; it calls `lead`.
        arguments: as they are pickled.
    """

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        _occupy_standard_streams()
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, *arguments), daemon=True)
        try:
            with uninterrupted():
                self.process.start()
        except KeyboardInterrupt:  # nobody else knows yet what there is to end
            self.stop()
            raise
        theirs.close()

    @property
    def pid(self) -> int:
        """Its number, which is its group's too."""
        assert self.process.pid is not None, "it was started when this was made"
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.process.is_alive()

    def send(self, question: object) -> None:
        """Ask something.

        Raises:
            OSError: it has ended.
        """
        self.connection.send(question)

    def answered(self, seconds: float) -> bool:
        """Whether an answer came, waiting for it.

        Raises:
            EOFError, OSError: it has ended.
        """
        end = time.monotonic() + seconds
        while not self.connection.poll(max(0.0, min(PATIENCE, end - time.monotonic()))):
            if not self.process.is_alive() and not self.connection.poll():
                raise EOFError
            if time.monotonic() >= end:
                return False
        return True

    def answer(self) -> Any:
        """The answer that came.

        Raises:
            EOFError, OSError: it has ended.
        """
        return self.connection.recv()

    def ending(self) -> str:
        """How it ended, in words."""
        self.process.join(REAPING)
        code = self.process.exitcode
        if code is None:
            return "it closed its connection"
        if code < 0:
            known = {one.value: one.name for one in signal.Signals}
            return known.get(-code, f"signal {-code}")
        return f"exit status {code}"

    def stop(self) -> None:
        """End it and all of its group."""
        if hasattr(os, "killpg"):
            # It may not lead a group yet, or nothing of the group is left.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.connection.close()


def lead(sink: int) -> None:
    """Begin a candidate's process: lead a session, end with the parent, print to a file.

    Args:
        sink: descriptor of what takes all that is printed, by compiled code too.
    """
    if hasattr(os, "setsid"):
        os.setsid()
    _take_interruptions()
    # The parent ends it if need be, and a candidate may have children.
    multiprocessing.current_process().daemon = False
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for stream in (1, 2):
        os.dup2(sink, stream)
    take_any_text("utf-8")  # a terminal's encoding, which the candidate is not asked for


def _take_interruptions() -> None:
    """End what `uninterrupted` began; a Ctrl-C that came meanwhile was the parent's."""
    if hasattr(signal, "pthread_sigmask"):
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which forgets it
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTIONS)


def flush() -> None:
    """Write out what was printed so far, where the streams are there still."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a candidate may have put anything in their place
            stream.flush()


def _end_with_parent() -> None:
    """A hung candidate and its children must not outlive the process that waits for it."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    parent.join()
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def _occupy_standard_streams() -> None:
    """Open those that are closed, or connections would take their numbers and be printed into."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # which is the lowest number that is free
            os.set_inheritable(opened, True)
