"""Files that a command is to write, tried before it does the work."""

from __future__ import annotations

import os
from pathlib import Path


def require_writable(option: str, path: Path | None) -> None:
    """Require that a file can be written where an option says, if it says so.

    Raises:
        ValueError: it cannot; the message names the option.
    """
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{option} is {path}: a folder, not a file")
    if not path.parent.is_dir():
        raise ValueError(f"{option} is {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{option} is {path}: it cannot be written there")


def write(option: str, path: Path, text: str) -> None:
    """Write the file that an option asks for.

    Raises:
        ValueError: it cannot be written, as on a full disk; the message names the option.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{option} is {path}: {error.strerror}") from error
