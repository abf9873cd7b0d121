"""`fullattention report`: write the report of a folder of records again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fullattention.outputs import require_folder
from fullattention.records import TIMINGS
from fullattention.status import RIGHT


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("report", help="write the report of a folder of records again")
    parser.add_argument("folder", type=Path, help="folder that `bench` wrote")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the report and print it."""
    if not (options.folder / TIMINGS).exists():
        raise ValueError(f"{options.folder} holds no timings.jsonl: no folder that `bench` wrote")
    require_folder("folder", options.folder)
    from fullattention.reports.folder import write_report

    print(write_report(options.folder), end="")
    return RIGHT
