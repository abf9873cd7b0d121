"""Standard streams that take any text, whatever the terminal can show."""

from __future__ import annotations

import io
import sys


def take_any_text(encoding: str | None = None) -> None:
    """Let what cannot be encoded be printed as an escape, not raise.

    Args:
        encoding: another one for both streams from here on; None: that of each stays.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors="backslashreplace")
