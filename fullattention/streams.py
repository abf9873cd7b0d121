"""Standard streams that take any text, whatever the terminal can show."""

from __future__ import annotations

import io
import os
import sys


def take_any_text(encoding: str | None = None) -> None:
    """Let what cannot be encoded be printed as an escape, not raise.

    Args:
        encoding: another one for both streams from here on; None: that of each stays.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def deliver() -> None:
    """Write out what was printed, so that failing to is told before the process ends.

    Raises:
        OSError: it cannot be written. It is dropped: Python would try, and complain, once more.
    """
    if sys.stdout is None:  # closed from the start
        return
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise


def is_read() -> bool:
    """Whether somebody still reads what is printed, unlike after `| head`; prints a line break."""
    try:
        print(flush=True)
    except BrokenPipeError:
        return False
    return True
