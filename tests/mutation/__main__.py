"""`python -m tests.mutation`: judge the suite by what it convicts, and say where it does not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fullattention.reports.marked import with_marked
from tests.mutation.gate import (
    Group,
    Outcome,
    complaints,
    read_equivalent,
    tables,
)
from tests.mutation.judging import (
    FAULTY,
    RIGHT,
    against_faulty,
    against_mutant,
    against_valid,
    all_mutants,
)
from tests.mutation.workers import PATIENCE, Work, outcomes

DOCUMENT = Path(__file__).parents[2] / "docs" / "mutation.md"

Job = tuple[Group, str, str, Work, Any]
"""Group, kind and id of a candidate, and what judges it."""


def jobs() -> list[Job]:
    """Every candidate: the valid ones first, which take longest."""
    return [
        *(("valid", one.kind, name, against_valid, name) for name, one in RIGHT.items()),
        *(("planted", one.kind, name, against_faulty, name) for name, one in FAULTY.items()),
        *(("mutant", one.kind, one.id, against_mutant, one) for one in all_mutants()),
    ]


def judged(chosen: Sequence[Job], *, patience: float = PATIENCE) -> list[Outcome]:
    """What the suite makes of each candidate, told as it goes."""
    found = []
    answers = outcomes([(work, item) for *_, work, item in chosen], patience=patience)
    for (group, kind, name, _, _), conviction in zip(chosen, answers, strict=True):
        found.append(Outcome(group, kind, name, conviction))
        if not conviction and group != "valid":
            print(f"not convicted: {name}", flush=True)
        if len(found) % 100 == 0:
            print(f"{len(found)} of {len(chosen)}", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, print the tables and what is wrong; 1 if anything is."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the tables in docs/mutation.md")
    parser.add_argument("--only", default="", metavar="ID", help="candidates whose id begins so")
    options = parser.parse_args(arguments)
    equivalent = {
        name: reason for name, reason in read_equivalent().items() if name.startswith(options.only)
    }
    found = judged([job for job in jobs() if job[2].startswith(options.only)])
    block = tables(found, equivalent)
    print(block)
    wrong = list(complaints(found, equivalent))
    if not options.only:
        wrong += _documented(block, write=options.write)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def _documented(block: str, *, write: bool) -> list[str]:
    """Put the tables into the document, or complain that it has others."""
    before = DOCUMENT.read_text(encoding="utf-8")
    after = with_marked(before, "mutation", block)
    if write:
        DOCUMENT.write_text(after, encoding="utf-8")
        return []
    return [] if before == after else [f"{DOCUMENT.name} is out of date: run with --write"]


if __name__ == "__main__":
    sys.exit(main())
