"""`fullattention choose`: which backend is fastest here for a call."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import shutil
import sys
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from fullattention.records import TIMINGS, Mask, Mode, as_json
from fullattention.status import INTERRUPTED, RIGHT, TERMINATED, USAGE

if TYPE_CHECKING:
    from fullattention.bench.workloads import Workload
    from fullattention.choosing import Store
    from fullattention.choosing.request import Request


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("choose", help="which backend is fastest here for a call, and why")
    of = parser.add_mutually_exclusive_group(required=True)
    of.add_argument("--workload", metavar="NAME", help="a workload's shape, dtype and mask")
    of.add_argument("--shape", metavar="B,L,S,H,E,D", help="six sizes")
    parser.add_argument("--dtype", help="default: the workload's, or float32")
    parser.add_argument("--mask", choices=get_args(Mask), help="default: the workload's, or none")
    parser.add_argument("--mode", choices=get_args(Mode), default="forward")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--threads", default="all", metavar="N", help="default: all usable cores")
    parser.add_argument("--max-memory", type=float, metavar="GIB", help="that a call may take")
    parser.add_argument("--deterministic", action="store_true", help="the same bits every time")
    parser.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="NAME",
        help="to choose from, again for more (default: every known one)",
    )
    parser.add_argument("--measure", action="store_true", help="measure this call first")
    parser.add_argument("--store", type=Path, metavar="DIR", help="default: the user's own")
    parser.add_argument("--json", action="store_true", help="the choice as a record")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Choose and print the choice."""
    from fullattention.choosing import Store
    from fullattention.choosing.choice import rank
    from fullattention.choosing.known import known_here
    from fullattention.choosing.store import existing
    from fullattention.reports.blocks import as_text
    from fullattention.reports.choices import choice_blocks

    store = Store(options.store) if options.measure else existing(options.store)
    if options.measure:
        store.require_usable()
    workload = _workload(options)
    request = _request(options, workload)
    if options.measure:
        with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
            status = _measure(request, workload, store)
        if status in (USAGE, INTERRUPTED, TERMINATED):
            return status
    choice = rank(request, known_here(store), request.candidates)
    if options.json:
        print(as_json(choice))
    else:
        print(as_text(choice_blocks(choice)), end="")
    return RIGHT


def _workload(options: argparse.Namespace) -> Workload:
    from fullattention.bench.workloads import parse_shape, the_one

    workload = the_one(options.workload) if options.workload else parse_shape(options.shape)
    return dataclasses.replace(
        workload.in_dtype(options.dtype or workload.dtype),
        mask=options.mask or workload.mask,
        mode=options.mode,
    )


def _request(options: argparse.Namespace, workload: Workload) -> Request:
    from fullattention.choosing.request import Request
    from fullattention.machine.hardware import thread_count

    return Request(
        shape=workload.shape,
        dtype=workload.dtype,
        mask=workload.mask,
        mode=workload.mode,
        device=options.device,
        threads=thread_count(options.threads),
        max_memory=None if options.max_memory is None else _bytes(options.max_memory),
        deterministic=options.deterministic,
        backends=tuple(options.backend),
    )


def _bytes(gib: float) -> int:
    from fullattention.machine.hardware import GIB

    if not (math.isfinite(gib) and gib * GIB >= 1):
        raise ValueError(f"max-memory is {gib:g}: a finite number of GiB, one byte or more")
    return int(Fraction(gib) * GIB)  # which no float is too large for


def _measure(request: Request, workload: Workload, store: Store) -> int:
    """Time the backends of a request on its workload, and keep the records; `bench`'s status."""
    from fullattention.bench.options import make_options
    from fullattention.bench.run import run as run_bench
    from fullattention.reports.folder import write_report
    from fullattention.reports.progress import Progress

    options = make_options(
        backends=request.backends, device=request.device, threads=request.threads
    )
    options = dataclasses.replace(options, workloads=(workload,))
    with contextlib.ExitStack() as cleaning:
        scratch = Path(tempfile.mkdtemp(prefix="fullattention-"))
        cleaning.callback(shutil.rmtree, scratch)
        out = scratch / "run"
        status = run_bench(options, out=out, listener=Progress(), report=write_report)
        if (out / TIMINGS).exists():
            try:
                store.merge(out)
            except OSError:  # which says that the records stay
                cleaning.pop_all()
                raise
    return status
