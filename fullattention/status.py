"""How a command ends: its exit statuses, and what asks it to end early."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

RIGHT, WRONG, USAGE = 0, 1, 2
"""Right, or done; a candidate is wrong, or none could be timed; an argument makes no sense, or
nothing could be run."""

INTERRUPTED, TERMINATED = 130, 143
"""Ctrl-C; SIGTERM. By custom 128 and the signal's number."""

UNREAD = 141
"""Nobody reads the output any more, as after `| head`; by that custom SIGPIPE's."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came; whoever cleans up after Ctrl-C does so after this."""


def status_of(interruption: type[BaseException]) -> int:
    """The exit status after Ctrl-C or SIGTERM."""
    return TERMINATED if issubclass(interruption, Terminated) else INTERRUPTED


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` once, so that what was begun is cleaned up.

    It stays as it is where somebody handles or ignores it already, and off the main thread.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def terminate(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # cleaning up is under way
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
