"""Text from candidates, with what a terminal or a file would act on or choke on made visible."""

from __future__ import annotations

KEPT = "\n\t"
"""Characters that are not printable, and that lay text out."""


def visible(text: str) -> str:
    """The text with an escape in place of every other character that is not printable.

    These are control characters, marks of direction, line separators and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in KEPT else one.encode("unicode_escape").decode()
        for one in text
    )
