"""A report as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fullattention.reports.blocks import Block, Command, Heading, Lines, Table
from fullattention.reports.visible import visible

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, p { overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.3; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p { margin: .5rem 0; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; }
th, td { padding: .25rem .75rem; border-bottom: 1px solid #8886; text-align: left; }
thead th { border-bottom-width: 2px; white-space: nowrap; }
.figure { text-align: right; font-variant-numeric: tabular-nums; }
.nothing { opacity: .45; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
pre { padding: .75rem; background: #8882; border-radius: 4px; }
"""


NOTHING = ("0", "-")
"""Cells that are shown fainter, so that the others stand out."""


def as_html(blocks: Sequence[Block], picture: str = "") -> str:
    """The report as a page, under an SVG picture; its title is the first heading."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Report")
    body = "\n".join(map(_html, blocks))
    return visible(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{picture}{body}\n</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Lines(lines):
            return "\n".join(f"<p>{escape(line)}</p>" for line in lines)
        case Command(line):
            return f"<pre>{escape(line)}</pre>"
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    def cell(tag: str, column: str, text: str) -> str:
        classes = ["figure"] * (column in table.right) + ["nothing"] * (text in NOTHING)
        attribute = f' class="{" ".join(classes)}"' if classes else ""
        return f"<{tag}{attribute}>{escape(text)}</{tag}>"

    def row(tag: str, cells: Sequence[str]) -> str:
        parts = (cell(tag, *pair) for pair in zip(table.columns, cells, strict=True))
        return f"<tr>{''.join(parts)}</tr>"

    rows = "\n".join(row("td", cells) for cells in table.rows)
    return (
        f'<div class="wide"><table>\n<thead>{row("th", table.columns)}</thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>"
    )
