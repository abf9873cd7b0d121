"""`fullattention check`: judge a candidate by the contract."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any, get_args

from fullattention.backends.precision import DTYPES
from fullattention.outputs import require_file, write
from fullattention.records import Level, Verdict, as_json
from fullattention.status import RIGHT, USAGE, WRONG

OUTPUTS = {
    "json": "the verdict record",
    "markdown": "the verdict as Markdown",
    "html": "the verdict as a page",
    "badge": "an SVG badge",
}
"""Options that name a file to write, and what goes there."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("check", help="judge a backend by the contract")
    parser.add_argument(
        "backend",
        help="name, module:object or path.py[:object]; a Backend, a class with the layer's "
        "constructor and forward, or a function of q, k and v",
    )
    parser.add_argument("--level", choices=get_args(Level), default="standard")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument(
        "--dtype", action="append", choices=DTYPES, default=[], help="default: all it takes"
    )
    parser.add_argument("--only", default="", metavar="ID", help="the checks whose id begins so")
    parser.add_argument(
        "--xfails", type=Path, metavar="FILE", help="TOML of checks expected to fail or to skip"
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="of one check (default: 60)"
    )
    for name, meaning in OUTPUTS.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {meaning}")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Judge, print the verdict, and write it where asked to."""
    from fullattention.conformance import check_isolated
    from fullattention.conformance.ledger import Exceptions, read_exceptions

    for name in OUTPUTS:
        require_file(f"--{name}", getattr(options, name))
    verdict = check_isolated(
        options.backend,
        device=options.device,
        level=options.level,
        dtypes=tuple(options.dtype),
        only=options.only,
        exceptions=read_exceptions(options.xfails) if options.xfails else Exceptions(),
        timeout=options.timeout,
    )
    _show(verdict, options)
    if not verdict.judged:
        print("fullattention: nothing could be checked", file=sys.stderr)
        return USAGE
    return RIGHT if verdict.conformant else WRONG


def _show(verdict: Verdict, options: argparse.Namespace) -> None:
    from fullattention.conformance.contract import TEXT
    from fullattention.reports.badge import badge
    from fullattention.reports.blocks import as_markdown, as_text
    from fullattention.reports.page import as_html
    from fullattention.reports.verdicts import verdict_blocks

    command = ["fullattention", "check", options.backend]
    if options.device != "cpu":
        command += ["--device", options.device]
    for dtype in options.dtype:
        command += ["--dtype", dtype]
    blocks = verdict_blocks(verdict, TEXT, shlex.join(command))
    try:
        print(as_text(blocks), end="")
    finally:  # the files are kept even if nobody reads what is printed
        for name, content in (
            ("json", as_json(verdict, indent=2) + "\n"),
            ("markdown", as_markdown(blocks)),
            ("html", as_html(blocks, badge(verdict))),
            ("badge", badge(verdict)),
        ):
            path = getattr(options, name)
            if path:
                write(f"--{name}", path, content)
