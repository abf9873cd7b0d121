"""Figures in a document that a command writes: what stands between two markers is its own."""

from __future__ import annotations

from pathlib import Path

from fullattention.outputs import require_file


def with_marked(document: str, name: str, text: str) -> str:
    """A document with the text between `<!-- begin NAME -->` and `<!-- end NAME -->` replaced.

    Raises:
        ValueError: the document lacks a marker.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, found, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the document lacks {begin} or {end} after it")
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"


def require_marked(option: str, path: Path | None, *names: str) -> None:
    """Require that a document can be written and has all markers of some names, if one is given.

    Raises:
        ValueError: it cannot, or lacks one; the message names the option.
    """
    if path is None:
        return
    require_file(option, path)
    try:
        document = path.read_text(encoding="utf-8")
        for name in names:
            with_marked(document, name, "")
    except (OSError, ValueError) as error:
        raise ValueError(f"{option} is {path}: {error}") from error


def write_marked(path: Path, name: str, text: str) -> None:
    """Replace what stands between the markers of a document.

    Raises:
        ValueError: the document lacks a marker.
    """
    document = path.read_text(encoding="utf-8")
    path.write_text(with_marked(document, name, text), encoding="utf-8")
