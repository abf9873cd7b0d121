"""Files and folders that are to be written, tried before the work for them is done."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def require_file(name: str, path: Path | None) -> None:
    """Require that a file can be written, if one is asked for.

    Args:
        name: of the option or argument that says where.
        path: of the file, which may exist.

    Raises:
        ValueError: it cannot; the message names the option.
    """
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{name} is {path}: a folder, not a file")
    if not path.parent.is_dir():
        raise ValueError(f"{name} is {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{name} is {path}: it cannot be written there")


def require_folder(name: str, folder: Path) -> None:
    """Require that files can be written in a folder, and leave it as it is.

    Args:
        name: of the option or argument that says where.
        folder: which need not exist, nor those that it lies in.

    Raises:
        ValueError: they cannot; the message names the option.
    """
    try:
        tempfile.TemporaryFile(dir=_existing(folder.absolute())).close()
    except OSError as error:
        message = f"{name} is {folder}: nothing can be written there: {error.strerror}"
        raise ValueError(message) from error


def write(name: str, path: Path, text: str) -> None:
    """Write the file that an option asks for.

    Raises:
        ValueError: it cannot be written, as on a full disk; the message names the option.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{name} is {path}: {error.strerror}") from error


def _existing(path: Path) -> Path:
    """The path, or the innermost that exists of those that it lies in.

    Raises:
        OSError: it cannot be made: one of them is a file, or its name is too long.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return _existing(path.parent)
    return path
