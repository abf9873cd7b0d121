"""`fullattention workloads`: the shapes that people run, by name."""

from __future__ import annotations

import argparse
from typing import Any

from fullattention.status import RIGHT


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("workloads", help="list the named workloads")
    parser.add_argument("pattern", nargs="*", help="names or globs (default: all)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print a line for each workload."""
    from fullattention.bench.workloads import select

    for workload in select(options.pattern, full=True):
        shape = ",".join(map(str, workload.shape))
        print(
            f"{workload.name:28} {shape:24} {workload.mask:7} {workload.dtype:9} {workload.source}"
        )
    return RIGHT
