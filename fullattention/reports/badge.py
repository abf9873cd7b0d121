"""A badge: the verdict in one small picture."""

from __future__ import annotations

from html import escape

from fullattention.records import Verdict
from fullattention.reports.outcome import outcome, restrictions
from fullattention.reports.visible import visible

LABEL = "FullAttention"
GREEN, AMBER, RED, GREY = "#2e7d32", "#a65e00", "#c62828", "#455a64"
CHARACTER = 6.6
"""Width of a character of the 11 px font, in px; the text is stretched to fit it."""


def badge(verdict: Verdict) -> str:
    """An SVG picture that says whether the backend is conformant, and by which contract."""
    text = f"{outcome(verdict)} (contract {verdict.contract}, {verdict.level})"
    left, right = (round(len(part) * CHARACTER + 12) for part in (LABEL, text))
    title = escape(visible(f"{verdict.backend}: {LABEL} {text}"))
    color = _color(verdict)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{title}">\n'
        f"<title>{title}</title>\n"
        f'<rect width="{left}" height="20" fill="{GREY}"/>\n'
        f'<rect x="{left}" width="{right}" height="20" fill="{color}"/>\n'
        '<g fill="#fff" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" '
        'text-anchor="middle">\n'
        f"{_text(LABEL, left / 2, left - 12)}\n"
        f"{_text(text, left + right / 2, right - 12)}\n"
        "</g>\n</svg>\n"
    )


def _color(verdict: Verdict) -> str:
    """Green is for all checks of a level alone."""
    if not verdict.judged:
        return GREY
    if not verdict.conformant:
        return RED
    return AMBER if restrictions(verdict) else GREEN


def _text(text: str, center: float, width: float) -> str:
    return f'<text x="{center:g}" y="14" textLength="{width:g}">{escape(visible(text))}</text>'
