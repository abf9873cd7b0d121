"""`fullattention bench`: time backends on workloads, and report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("bench", help="time backends on workloads and report")
    for name, metavar, meaning in (
        ("--backend", "NAME", "again for more (default: every known one)"),
        ("--workload", "NAME", "name or glob, again for more (default: a set for some minutes)"),
        ("--shape", "B,L,S,H,E,D", "a workload of your own, again for more"),
        ("--dtype", "NAME", "again for more (default: the workload's)"),
    ):
        parser.add_argument(name, action="append", default=[], metavar=metavar, help=meaning)
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--threads", type=int, metavar="N", help="default: all usable cores")
    parser.add_argument("--full", action="store_true", help="every workload, measured longer")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: results/<time>")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Time, showing each figure as it comes, then print and write the report."""
    from fullattention.bench.run import run as run_bench
    from fullattention.reports.folder import write_report
    from fullattention.reports.progress import Progress

    return run_bench(
        backends=options.backend,
        workloads=options.workload,
        shapes=options.shape,
        dtypes=options.dtype,
        device=options.device,
        threads=options.threads,
        full=options.full,
        out=options.out,
        listener=Progress(),
        report=write_report,
    )
