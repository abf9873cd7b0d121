"""Figures in a document that a command writes: what stands between two markers is its own."""

from __future__ import annotations

from pathlib import Path


def replace_marked(path: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- begin NAME -->` and `<!-- end NAME -->` in a file.

    Raises:
        ValueError: the file lacks a marker.
    """
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    whole = path.read_text(encoding="utf-8")
    before, found, rest = whole.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{path} lacks {begin.strip()} or {end} after it")
    path.write_text(f"{before}{begin}\n{text.strip()}\n\n{end}{after}", encoding="utf-8")
