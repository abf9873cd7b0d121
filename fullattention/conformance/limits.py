"""Checks of the contract's section limits."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fullattention.conformance.case import (
    Case,
    Failed,
    Refused,
    expected_of,
    judge,
    layer_for,
    run,
)
from fullattention.conformance.check import Checks, case_check
from fullattention.conformance.data import numpy_dtype
from fullattention.conformance.subject import Subject
from fullattention.layer import Sizes

if sys.platform == "linux":
    import resource
else:
    resource = None

USUAL = (Sizes(65536, 2, 2, 1, 4, 4), Sizes(16385, 2, 2, 4, 4, 4))
"""Tried at the standard level too: batch and heads fold many variates in."""

ROOM = 2**31
"""Bytes a call may take before it counts as out of memory."""

ENORMOUS = 2**20
"""Batch and heads of a call whose result, 32 TiB in float32, no machine holds."""


def checks(dtype: str, primary: bool) -> Checks:
    """The section's checks, in the primary dtype."""
    if not primary:
        return
    base = Case(dtype=dtype)
    for shape in (
        Sizes(65535, 2, 2, 1, 4, 4),
        Sizes(65536, 2, 2, 1, 4, 4),
        Sizes(1, 2, 2, 65537, 4, 4),
        Sizes(16385, 2, 2, 4, 4, 4),
        Sizes(27584, 2, 2, 8, 2, 2),  # B * H = 220 672
        Sizes(1, 65537, 2, 1, 4, 4),
        Sizes(1, 2, 65537, 1, 4, 4),
    ):
        yield case_check("L1", base.but(shape=shape), full=shape not in USUAL)
    yield case_check("L2", base, _out_of_memory, "more memory than there is", full=True)


def _out_of_memory(subject: Subject, case: Case) -> float:
    """Inputs of one element each, expanded until their result fits nowhere."""
    one = subject.arrays.put(np.ones(1, numpy_dtype(case.dtype)), subject.device)
    shape = (ENORMOUS, 1, ENORMOUS, 8)
    try:
        inputs = [subject.arrays.strided(one, shape, (0, 0, 0, 0), 0) for _ in "qkv"]
    except ValueError as error:
        raise Refused(str(error)) from error
    try:
        with _memory_limit(subject.device):
            layer_for(subject, case)(*inputs, None)
    except Exception as error:
        if not re.search(r"\d", str(error)):
            raise Failed(f"out of memory does not say how much was asked: {error!r}") from error
    else:
        raise Failed("a result of 32 TiB was returned")
    return judge(run(subject, case), expected_of(subject, case))


@contextlib.contextmanager
def _memory_limit(device: str) -> Iterator[None]:
    """Refuse memory soon, or a candidate that works in pieces takes all of the machine's.

    A device's driver reserves addresses far beyond any such limit.
    """
    if device != "cpu" or resource is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
