"""The parts of a report, and the two ways of writing them: for a terminal, and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tabulate

from fullattention.reports.visible import visible

WIDTH = 100
"""Columns of a terminal that the text keeps to."""


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the whole report's."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Lines:
    """Sentences, each on a line of its own."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    """Columns of figures, aligned right."""
    widest: int = WIDTH
    """Characters of a cell, beyond which a terminal wraps it."""
    wide: Sequence[str] = ()
    """Columns that a terminal has no room for."""


@dataclass(frozen=True)
class Command:
    """A line to type, which is never wrapped."""

    line: str


Block = Heading | Lines | Table | Command


def as_text(blocks: Sequence[Block]) -> str:
    """The report for a terminal of `WIDTH` columns, without colours."""
    return visible("\n\n".join(map(_text, blocks)) + "\n")


def as_markdown(blocks: Sequence[Block]) -> str:
    """The report as Markdown."""
    return visible("\n\n".join(map(_markdown, blocks)) + "\n")


def _text(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{text}\n{('=' if level == 1 else '-') * len(text)}"
        case Lines(lines):
            return "\n".join(textwrap.fill(x, WIDTH, subsequent_indent="  ") for x in lines)
        case Command(line):
            return textwrap.indent(line, "  ")
        case Table():
            return _table(_narrow(block), "simple", block.widest)


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}"
        case Lines(lines):
            return "\n".join(f"- {_escaped(line)}" for line in lines)
        case Command(line):
            return f"```\n{line}\n```"
        case Table():
            return _table(block, "pipe", None)


def _narrow(table: Table) -> Table:
    """The table without its wide columns."""
    kept = [place for place, column in enumerate(table.columns) if column not in table.wide]
    rows = [[row[place] for place in kept] for row in table.rows]
    return replace(table, columns=[table.columns[place] for place in kept], rows=rows)


def _table(table: Table, style: str, widest: int | None) -> str:
    escape = _escaped if style == "pipe" else str
    text: str = tabulate.tabulate(
        [[escape(cell) for cell in row] for row in table.rows],
        headers=list(table.columns),
        tablefmt=style,
        disable_numparse=True,
        colalign=["right" if column in table.right else "left" for column in table.columns],
        maxcolwidths=widest,
    )
    return text


def _escaped(text: str) -> str:
    """The text with what would end a Markdown cell, or open a tag, made harmless."""
    return text.replace("|", r"\|").replace("<", "&lt;").replace("\n", " ")
