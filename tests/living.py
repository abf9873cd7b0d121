"""Processes that a test has begun, wherever they are in the tree of processes."""

from __future__ import annotations

import os
import time
from pathlib import Path


def living(mark: Path, seconds: float = 10.0) -> list[str]:
    """Commands of the processes whose environment holds a path, but not this one.

    One that is gone after some seconds counts not.
    """
    deadline = time.monotonic() + seconds
    while True:
        others = (one for one in Path("/proc").glob("[0-9]*") if one.name != str(os.getpid()))
        found = [command for one in others if (command := _command(one, str(mark)))]
        if not found or time.monotonic() >= deadline:
            return found
        time.sleep(0.05)


def _command(process: Path, mark: str) -> str:
    """A process's command; empty if its environment is another, or it has ended."""
    try:
        marked = mark.encode() in (process / "environ").read_bytes()  # a zombie's is empty
        return (process / "cmdline").read_text() if marked else ""
    except OSError:
        return ""
