"""Checks of Numba's kernels in its simulator, which only a process of its own can switch on.

Run by `test_numba_simulator.py`; prints one line of JSON for each check that was tried.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

from fullattention.conformance.catalogue import selected
from fullattention.conformance.check import Check
from fullattention.conformance.subject import Subject, from_backend, load_subject
from fullattention.conformance.trial import run_check
from tests.zoo import numba_faults, numba_tiles

BRIEF = {"C5": 12, "C10": 0, "C12": 0, "C9": 0, "N1": 3, "P2": 0, "P3": 0}
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


def try_right(only: str) -> None:
    tiles = from_backend(numba_tiles.backend("cpu"))
    for subject, dtype in (
        (load_subject("numba-cuda"), "float32"),
        (tiles, "float32"),
        (load_subject("numba-cuda-torch"), "float16"),
    ):
        for check in brief(subject, dtype):
            if subject.name.endswith(only):
                report(subject, check)


def try_faulty(fault: str) -> None:
    """Up to the first check that fails."""
    subject = from_backend(numba_faults.backend(fault))
    for requirement in numba_faults.FAULTS.get(fault, ("C5", "M4")):
        for check in selected(("float64",), "quick"):
            small = check.requirement == requirement and "shape" in check.id
            if small and report(subject, check) == "failed":
                return


if __name__ == "__main__":
    {"right": try_right, "faulty": try_faulty}[sys.argv[1]](sys.argv[2])
