"""`fullattention pack` and `check-pack`: cases and answers for implementers in any language."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from fullattention.backends.precision import DTYPES
from fullattention.status import RIGHT, WRONG


def add(commands: Any) -> None:
    """Add both commands."""
    parser = commands.add_parser("pack", help="write cases and answers for any language")
    parser.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder")
    _add_dtype(parser)
    parser.set_defaults(run=write)

    parser = commands.add_parser("check-pack", help="judge answers to a pack")
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder that `pack` wrote")
    parser.add_argument(
        "results", type=Path, metavar="RESULTS", help="folder of answers, or one .npz"
    )
    parser.add_argument(
        "--class",
        dest="precision_class",
        default="standard",
        metavar="CLASS",
        help="how it rounds: standard (default), stored, prescaled, flash or tf32",
    )
    _add_dtype(parser)
    parser.set_defaults(run=judge)


def _add_dtype(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtype", action="append", choices=DTYPES, default=[], help="again for more (default: all)"
    )


def write(options: argparse.Namespace) -> int:
    """Write a pack."""
    from fullattention.conformance.pack import pack_id, write_pack

    count = write_pack(options.folder, tuple(options.dtype) or DTYPES)
    print(f"{count} cases in {options.folder}; read {options.folder / 'README.txt'}")
    print(f"pack {pack_id(options.folder)}")
    return RIGHT


def judge(options: argparse.Namespace) -> int:
    """Judge the answers to a pack: right only if every case that counts is answered right."""
    from fullattention.conformance.pack import check_pack
    from fullattention.reports.visible import visible

    verdict = check_pack(
        options.folder,
        options.results,
        precision_class=options.precision_class,
        dtypes=tuple(options.dtype),
    )
    print(f"pack {verdict.pack}, class {verdict.precision_class}")
    for result in verdict.results:
        if result.status == "failed":
            print(visible(f"{result.check} FAILED: {result.detail}"))
    counts = Counter(result.status for result in verdict.results)
    print(", ".join(f"{counts[status]} {status}" for status in ("passed", "failed", "not run")))
    return RIGHT if verdict.ok else WRONG
