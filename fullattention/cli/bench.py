"""`fullattention bench`: time backends on workloads, and report."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

from fullattention.outputs import require_folder
from fullattention.records import RUNS, TIMINGS, require_unused
from fullattention.status import INTERRUPTED, RIGHT, TERMINATED


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("bench", help="time backends on workloads and report")
    for name, metavar, meaning in (
        (
            "--backend",
            "NAME",
            "again, or all (default: no long compiling); named ones may take 10 s a call, others 1",
        ),
        ("--workload", "NAME", "name or glob, again for more (default: a set for some minutes)"),
        ("--shape", "B,L,S,H,E,D", "a workload of your own, again for more"),
        ("--workloads", "FILE", "workloads that nn.capture wrote, again for more"),
        ("--dtype", "NAME", "again for more (default: the workload's)"),
        ("--mode", "NAME", "again for more (default: forward; with --full: all)"),
    ):
        parser.add_argument(name, action="append", default=[], metavar=metavar, help=meaning)
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument(
        "--threads",
        default="all",
        metavar="N,...",
        help="a run for each, such as 1,all (default: all)",
    )
    parser.add_argument("--full", action="store_true", help="every workload, measured longer")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="of turns per workload (default: 8, full: 20)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: results/<time>")
    parser.add_argument(
        "--store", type=Path, metavar="DIR", help="where `choose` looks (default: the user's own)"
    )
    parser.add_argument("--no-store", action="store_true", help="keep the records in --out alone")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Time, showing each figure as it comes, then print and write the report, and keep it all."""
    require_folder("out", options.out or RUNS)
    from fullattention.choosing import Store

    store = None if options.no_store else Store(options.store)
    if store:
        store.require_usable()
    from fullattention.bench.options import make_options, thread_counts
    from fullattention.bench.run import new_folder
    from fullattention.bench.run import run as run_bench
    from fullattention.reports.folder import write_report
    from fullattention.reports.progress import Progress
    from fullattention.units import counted

    runs = {
        count: make_options(
            backends=options.backend,
            workloads=options.workload,
            shapes=options.shape,
            workload_files=options.workloads,
            dtypes=options.dtype,
            modes=options.mode,
            device=options.device,
            threads=count,
            full=options.full,
            seconds=options.seconds,
        )
        for count in thread_counts(options.threads)
    }
    out = options.out or new_folder()
    folders = {count: out if len(runs) == 1 else out / f"threads-{count}" for count in runs}
    for folder in folders.values():
        require_unused("out", folder)
    worst = RIGHT
    try:
        for count, folder in folders.items():
            status = run_bench(runs[count], out=folder, listener=Progress(), report=write_report)
            worst = max(worst, status)
            if status in (INTERRUPTED, TERMINATED):
                break
    finally:
        measured = [folder for folder in folders.values() if (folder / TIMINGS).exists()]
        if store and measured:
            kept = counted(store.merge(*measured).new, "record")
            print(f"\n{kept} kept for `fullattention choose` in {store.folder}")
        if not options.out:
            with contextlib.suppress(OSError):  # it holds something
                out.rmdir()
    return worst
