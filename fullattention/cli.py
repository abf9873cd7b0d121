"""The command line: list backends, check one, time them all, write a report."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fullattention.backends import UnavailableError
from fullattention.backends.precision import DTYPES

CONFORMANT, NOT_CONFORMANT, USAGE = 0, 1, 2
"""Exit statuses of `check`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except ModuleNotFoundError as error:
        if error.name not in ("tabulate", "pandas", "pytest", "msgspec", "psutil", "threadpoolctl"):
            raise
        return _usage(f"{error.name} is not installed: pip install 'fullattention[suite]'")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fullattention", description="FullAttention on many backends: checked, then timed."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_backends(commands.add_parser("backends", help="list backends and what they can do"))
    _add_check(commands.add_parser("check", help="judge a backend by the contract"))
    _add_workloads(commands.add_parser("workloads", help="list the named workloads"))
    _add_bench(commands.add_parser("bench", help="time backends on workloads and report"))
    _add_report(commands.add_parser("report", help="write the report of a folder of records again"))
    return parser


def _usage(message: object) -> int:
    print(f"fullattention: {message}", file=sys.stderr)
    return USAGE


# backends


def _add_backends(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON, with every reason")
    parser.set_defaults(run=_backends)


def _backends(options: argparse.Namespace) -> int:
    from fullattention.backends.listing import listing

    entries = listing()
    if options.json:
        print(json.dumps([dataclasses.asdict(entry) for entry in entries], indent=2))
        return 0
    from fullattention.reports.blocks import as_text
    from fullattention.reports.listing import listing_blocks

    print(as_text(listing_blocks([dataclasses.asdict(entry) for entry in entries])), end="")
    return 0


# check


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "backend",
        help="name, module:object or path.py[:object]; a Backend, or a class with the layer's "
        "constructor and forward",
    )
    parser.add_argument("--level", choices=("quick", "standard"), default="standard")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument(
        "--dtype", action="append", choices=DTYPES, default=[], help="default: all it takes"
    )
    parser.add_argument("--only", default="", metavar="ID", help="the checks whose id begins so")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdict record")
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from fullattention.conformance import check
    from fullattention.conformance.contract import TEXT
    from fullattention.reports.blocks import as_text
    from fullattention.reports.verdicts import verdict_blocks

    try:
        verdict = check(
            options.backend,
            device=options.device,
            level=options.level,
            dtypes=tuple(options.dtype),
            only=options.only,
        )
    except UnavailableError as error:
        return _usage(error)
    except (LookupError, TypeError, ValueError) as error:
        return _usage(error.args[0])
    command = ["fullattention", "check", options.backend]
    if options.device != "cpu":
        command += ["--device", options.device]
    print(as_text(verdict_blocks(verdict, TEXT, shlex.join(command))), end="")
    if options.json:
        record = json.dumps(dataclasses.asdict(verdict), allow_nan=False, indent=2)
        options.json.write_text(record + "\n", encoding="utf-8")
    return CONFORMANT if verdict.conformant else NOT_CONFORMANT


# workloads, bench, report


def _add_workloads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="*", help="names or globs (default: all)")
    parser.set_defaults(run=_workloads)


def _workloads(options: argparse.Namespace) -> int:
    from fullattention.bench.workloads import select

    try:
        for workload in select(options.pattern, full=True):
            shape = ",".join(map(str, workload.shape))
            print(
                f"{workload.name:28} {shape:24} {workload.mask:7} {workload.dtype:9}"
                f" {workload.source}"
            )
    except LookupError as error:
        return _usage(error.args[0])
    return 0


def _add_bench(parser: argparse.ArgumentParser) -> None:
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
    parser.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> int:
    from fullattention.bench.run import run
    from fullattention.reports.folder import write_report
    from fullattention.reports.progress import Progress

    return run(
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


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="folder that `bench` wrote")
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from fullattention.reports.folder import write_report

    try:
        print(write_report(options.folder), end="")
    except (FileNotFoundError, ValueError) as error:
        return _usage(error)
    return 0
