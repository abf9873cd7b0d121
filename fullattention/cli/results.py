"""`fullattention results`: what was measured on this and other hardware, and is kept."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fullattention.outputs import require_file
from fullattention.reports.marked import require_marked, write_marked
from fullattention.status import RIGHT


def add(commands: Any) -> None:
    """Add the command and its actions."""
    parser = commands.add_parser("results", help="list, merge or export what was measured")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    shown = actions.add_parser("list", help="the hardware, and how much is kept of each")
    merged = actions.add_parser("merge", help="keep what other stores or folders of runs hold")
    merged.add_argument("folder", type=Path, nargs="+", help="a store, or a folder of `bench`")
    exported = actions.add_parser("export", help="write all timings as a table")
    exported.add_argument("file", type=Path, help="FILE.csv or FILE.parquet")
    held_out = actions.add_parser(
        "regret", help="what choosing costs: each measured shape, chosen for by all others"
    )
    held_out.add_argument("--write", type=Path, metavar="FILE", help="a Markdown file's table too")
    for action, function in (
        (shown, _list),
        (merged, _merge),
        (exported, _export),
        (held_out, _regret),
    ):
        action.add_argument("--store", type=Path, metavar="DIR", help="default: the user's own")
        action.set_defaults(run=function)


def _list(options: argparse.Namespace) -> int:
    from fullattention.choosing.store import existing
    from fullattention.reports.blocks import as_text
    from fullattention.reports.stored import stored_blocks

    store = existing(options.store)
    held = {key: store.timings(key) for key in store.hardware()}
    rows = {key: (one.records, len(one.lost)) for key, one in held.items()}
    print(as_text(stored_blocks(str(store.folder), rows)), end="")
    return RIGHT


def _merge(options: argparse.Namespace) -> int:
    from fullattention.choosing import Store
    from fullattention.units import counted

    store = Store(options.store)
    store.require_usable()
    for folder in options.folder:
        merged = store.merge(folder)
        print(f"{folder}: {counted(merged.new, 'new record')}")
        if merged.lost:
            print(f"  {counted(len(merged.lost), 'line')} lost; the first is {merged.lost[0]}")
    return RIGHT


def _regret(options: argparse.Namespace) -> int:
    require_marked("--write", options.write, "regret")
    from fullattention.choosing.known import known_here
    from fullattention.choosing.regret import regrets
    from fullattention.choosing.store import existing
    from fullattention.reports.blocks import as_markdown, as_text
    from fullattention.reports.regrets import regret_blocks
    from fullattention.reports.report import environment_lines

    known = known_here(existing(options.store))
    # Those that measured had loaded the backends, and told what the machine was like before.
    measured = known.timings[-1].environment if known.timings else known.here
    blocks = regret_blocks(
        [(one.workload, one.chosen, one.best, one.ratio) for one in regrets(known)],
        environment_lines(measured),
    )
    print(as_text(blocks), end="")
    if options.write:
        write_marked(options.write, "regret", as_markdown(blocks))
    return RIGHT


def _export(options: argparse.Namespace) -> int:
    require_file("file", options.file)
    from fullattention.choosing.store import existing
    from fullattention.reports.stored import write_table
    from fullattention.units import counted

    store = existing(options.store)
    timings = [timing for key in store.hardware() for timing in store.timings(key).records]
    write_table(options.file, timings)
    print(f"{options.file}: {counted(len(timings), 'timing')}")
    return RIGHT
