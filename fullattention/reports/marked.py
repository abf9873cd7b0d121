"""Figures in a document that a command writes: what stands between two markers is its own."""

from __future__ import annotations


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
