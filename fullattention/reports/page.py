"""A report as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fullattention.reports.blocks import Block, Command, Heading, Lines, Table

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; }
th, td { padding: .25rem .75rem; border-bottom: 1px solid #8886; text-align: left; }
.figure { text-align: right; font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; padding: .75rem; background: #8882; border-radius: 4px; }
"""


def as_html(blocks: Sequence[Block]) -> str:
    """The report as a page; its title is the first heading."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Report")
    body = "\n".join(map(_html, blocks))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
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
    def row(tag: str, cells: Sequence[str]) -> str:
        parts = (
            f"<{tag}{' class=figure' if column in table.right else ''}>{escape(cell)}</{tag}>"
            for column, cell in zip(table.columns, cells, strict=True)
        )
        return f"<tr>{''.join(parts)}</tr>"

    rows = "\n".join(row("td", cells) for cells in table.rows)
    return (
        f"<table>\n<thead>{row('th', table.columns)}</thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
    )
