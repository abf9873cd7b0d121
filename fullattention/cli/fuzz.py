"""`fullattention fuzz`: try random cases on candidates."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

from fullattention.backends.precision import DTYPES
from fullattention.status import RIGHT, WRONG

if TYPE_CHECKING:
    from fullattention.conformance.fuzz import Fuzzed


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("fuzz", help="try random cases on backends")
    parser.add_argument("backend", nargs="+", help="as for `check`")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--count", type=int, default=1000, help="cases per dtype (default: 1000)")
    parser.add_argument(
        "--dtype", action="append", choices=DTYPES, default=[], help="default: all it takes"
    )
    parser.add_argument("--seed", type=int, default=0, help="other cases (default: 0)")
    parser.add_argument("--case", metavar="TEXT", help="this one case instead")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Try the cases, and print the worst error over its bound and each failure."""
    found = [(backend, one) for backend in options.backend for one in _fuzzed(backend, options)]
    return RIGHT if all(one.ok for _, one in found) else WRONG


def _fuzzed(backend: str, options: argparse.Namespace) -> list[Fuzzed]:
    from fullattention.conformance.fuzz import fuzz, fuzz_case, parse_case

    if options.case is not None:
        found = [fuzz_case(backend, parse_case(options.case), device=options.device)]
    else:
        found = fuzz(
            backend,
            count=options.count,
            dtypes=tuple(options.dtype),
            device=options.device,
            seed=options.seed,
        )
    for one in found:
        _print(backend, one)
    return found


def _print(backend: str, found: Fuzzed) -> None:
    from fullattention.conformance.fuzz import case_text
    from fullattention.reports.visible import visible
    from fullattention.units import digits

    counts = ", ".join(f"{n} {s}" for s, n in Counter(r.status for r in found.results).items())
    worst = digits(found.worst.ratio) if found.worst else "none"
    print(f"{backend} {found.dtype}: {counts}; worst error/bound {worst}")
    if found.worst:
        print(f"  at {case_text(found.worst)}")
    for result in found.failures:
        print(visible(f"  FAILED: {result.detail}"))
        command = ["fullattention", "fuzz", backend, "--case", case_text(result)]
        print(f"    {shlex.join(command)}")
    reasons = Counter(r.detail for r in found.results if r.status in ("unsupported", "not run"))
    for reason, count in reasons.items():
        print(visible(f"  not tried ({count}): {reason}"))
