"""`fullattention verify`: reach a recorded verdict again, and compare."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullattention.status import RIGHT, WRONG

if TYPE_CHECKING:
    from fullattention.records import Verdict


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("verify", help="reach a recorded verdict again and compare")
    parser.add_argument("record", type=Path, help="verdict that `check --json` wrote")
    parser.add_argument(
        "--candidate", metavar="SPEC", help="what loads it here, as for `check` (default: as then)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Judge again as the record says, and print what is different."""
    from fullattention.conformance import check_isolated
    from fullattention.conformance.verify import contradictions, differences, exceptions_of
    from fullattention.records import Verdict, read_one
    from fullattention.reports.visible import visible

    recorded = read_one(options.record, Verdict)
    anew = check_isolated(
        options.candidate or _spec_of(recorded, options.record),
        device=recorded.device,
        level=recorded.level,
        dtypes=recorded.dtypes,
        only=recorded.only,
        exceptions=exceptions_of(recorded),
    )
    found = [*contradictions(recorded), *differences(recorded, anew)]
    same = f"{recorded.backend}: {len(anew.results)} checks, all as recorded"
    print(visible("\n".join(found) or same))
    return WRONG if found else RIGHT


def _spec_of(recorded: Verdict, record: Path) -> str:
    """What loads the candidate of a record here, by what loaded it there."""
    from fullattention.backends.registry import split_file

    if not recorded.spec:
        raise ValueError(f"{record} is of an object in memory: --candidate says what loads it")
    file, _ = split_file(recorded.spec)
    if file and not Path(file).is_file():
        relative = "" if Path(file).is_absolute() else " from the folder that `check` ran in"
        raise ValueError(
            f"{record} is of {recorded.spec!r}{relative}, and here is no such file: "
            "--candidate says what loads it"
        )
    return recorded.spec
