"""Checks of Numba's kernels in its simulator, which only a process of its own can switch on.

Run by `test_numba_simulator.py`; prints one line of JSON for each check that was tried.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fullattention.conformance.catalogue import selected
from fullattention.conformance.check import Check
from fullattention.conformance.subject import Subject, from_backend, load_subject
from fullattention.conformance.trial import run_check
from tests.zoo import numba_faults, numba_tiles

BRIEF = {"P1": 0, "N3": 0, "C5": 12, "C10": 0, "C12": 0, "C9": 0, "N1": 3, "P2": 0, "P3": 0}
"""How many checks of a requirement are tried, where it is not the first one."""


def brief(subject: Subject, dtype: str) -> Iterator[Check]:
    """The first check of each requirement, and some lengths round a tile's edge."""
    tried: dict[str, int] = {}
    for check in selected(subject.dtypes, "quick", (dtype,)):
        number = tried[check.requirement] = tried.get(check.requirement, 0) + 1
        if number <= BRIEF.get(check.requirement, 1):
            yield check


def report(subject: Subject, check: Check) -> str:
    start = time.perf_counter()
    result = run_check(subject, check)
    print(
        json.dumps(
            {
                "backend": subject.name,
                "check": check.id,
                "status": result.status,
                "detail": result.detail,
                "seconds": round(time.perf_counter() - start, 2),
            }
        ),
        flush=True,
    )
    return result.status


def try_right(name: str) -> None:
    path = Path(numba_tiles.__file__)
    spec, dtype = {
        "numba-cuda": ("numba-cuda", "float32"),
        "numba-cuda-tiles": (str(path), "float32"),
        "numba-cuda-torch": ("numba-cuda-torch", "float16"),
    }[name]
    subject = load_subject(spec)
    for check in brief(subject, dtype):
        report(subject, check)


def try_faults() -> None:
    """Each up to the first check that fails, and the kernel without a fault on all of those."""
    for fault, requirement in numba_faults.FAULTS.items():
        subject = from_backend(numba_faults.backend(fault))
        for check in selected(("float64",), "quick"):
            if check.requirement != requirement or "shape" not in check.id:
                continue
            if report(subject, check) == "failed":
                report(from_backend(numba_faults.backend("")), check)
                break


if __name__ == "__main__":
    try_right(sys.argv[1]) if len(sys.argv) > 1 else try_faults()
