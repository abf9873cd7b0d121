"""`fullattention verify`: reach a recorded verdict again, and compare."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fullattention.status import RIGHT, WRONG


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("verify", help="reach a recorded verdict again and compare")
    parser.add_argument("record", type=Path, help="verdict that `check --json` wrote")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Judge again as the record says, and print what is different."""
    from fullattention.conformance import check_isolated
    from fullattention.conformance.verify import differences, exceptions_of
    from fullattention.records import Verdict, read_one

    recorded = read_one(options.record, Verdict)
    if not recorded.spec:
        raise ValueError(f"{options.record} is of an object in memory: nothing says how to load it")
    anew = check_isolated(
        recorded.spec,
        device=recorded.device,
        level=recorded.level,
        dtypes=recorded.dtypes,
        only=recorded.only,
        exceptions=exceptions_of(recorded),
    )
    found = differences(recorded, anew)
    print("\n".join(found) or f"{recorded.backend}: {len(anew.results)} checks, all as recorded")
    return WRONG if found else RIGHT
