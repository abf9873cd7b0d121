"""Checks of the contract's section limits."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from fullattention.backends.errors import UnsupportedError
from fullattention.backends.interface import Array, Sizes
from fullattention.conformance import masks
from fullattention.conformance.case import (
    Case,
    Failed,
    NotHere,
    Refused,
    answer,
    compare,
    expected_of,
    inputs,
    judge,
    layer_for,
    run,
)
from fullattention.conformance.check import Checks, case_check
from fullattention.conformance.core import overwrite
from fullattention.conformance.data import numpy_dtype
from fullattention.conformance.subject import Subject
from fullattention.units import memory

if sys.platform == "linux":
    import resource
else:
    resource = None

USUAL = (Sizes(65536, 2, 2, 1, 4, 4), Sizes(16385, 2, 2, 4, 4, 4))
"""Tried at the standard level too: batch and heads fold many variates in."""

ROOM = 2**31
"""Bytes a call may take before it counts as out of memory."""

PERIOD = 7
"""Queries after which those of a long call repeat."""

BEYOND = 2**31
"""One more than an int32 holds."""

ENORMOUS = 2**20
"""Batch and heads of a call whose result, 32 TiB in float32, no machine holds."""

LEAST_ASKED, MOST_ASKED = 2.0**40, 2.0**50
"""Bytes that such a call may ask for first: a number for each score, or all of it in pieces more
than once; nothing else that a message might count is as large."""

MEMORY = re.compile("(?i)memory|alloc")
"""What an error is about, in words."""

NUMBER = re.compile(r"(?<![\w.])(\d[\d_,]*(?:\.\d+)?(?:[eE]\+?\d+)?)(?:\s*([KMGTPE])i?B\b)?")
"""A number, and its unit if that is one of bytes."""


def checks(dtype: str, primary: bool) -> Checks:
    """The section's checks, in the primary dtype; one in float16, for the memory that it takes."""
    base = Case(dtype=dtype)
    if dtype == "float16":
        long = base.but(shape=Sizes(1, BEYOND // 64 + 1, 2, 1, 2, 64))
        yield case_check("L1", long, many_elements, "V has 2^31 elements and more", full=True)
    if not primary:
        return
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
    for case in (base, base.but(mask="random/B1LS")):
        yield case_check("L1", case, far_apart, "2^31 elements between batch entries", full=True)
    yield case_check("L2", base, _out_of_memory, "more memory than there is", full=True)


def far_apart(subject: Subject, case: Case, distance: int = BEYOND) -> float:
    """Batch entries of q, k, v and the mask lie further apart than an int32 can tell.

    What lies between is never touched, so on a CPU it takes addresses and no memory.
    """
    with _enough_memory():
        arrays = _spread(subject, inputs(case), distance)
        mask = None
        if case.mask != masks.OFF:
            (held,) = _spread(subject, [masks.build(case.mask, case.shape, case.seed)], distance)
            mask = SimpleNamespace(mask=held)
        with _memory_limit(subject.device):
            got = answer(subject, case, layer_for(subject, case)(*arrays, mask))
    return judge(got, expected_of(subject, case))


def _spread(subject: Subject, parts: Sequence[np.ndarray], distance: int) -> list[Array]:
    """Copies of arrays in one buffer: entries of their first axis lie `distance` elements apart."""
    rows = [part[0].size for part in parts]
    starts = [sum(rows[:index]) for index in range(len(rows))]
    one = subject.arrays.put(np.zeros(1, parts[0].dtype), subject.device)
    _try_strides(subject)  # before much memory is asked for
    size = (len(parts[0]) - 1) * distance + sum(rows)
    if subject.library == "torch":  # whose zeros are written, and so take memory
        buffer = one.new_empty(size)
    else:
        buffer = subject.arrays.zeros((size,), one)
    placed = []
    for part, start in zip(parts, starts, strict=True):
        steps = [stride // part.itemsize for stride in np.ascontiguousarray(part).strides]
        view = subject.arrays.strided(buffer, part.shape, (distance, *steps[1:]), start)
        overwrite(view, subject.arrays.put(part, subject.device))
        placed.append(view)
    return placed


def _try_strides(subject: Subject) -> None:
    few = subject.arrays.put(np.zeros(4, np.float32), subject.device)
    try:
        subject.arrays.strided(few, (2, 1), (3, 1), 0)
    except ValueError as error:
        raise Refused(str(error)) from error


def many_elements(subject: Subject, case: Case) -> float:
    """V has more elements than an int32 counts; rows of it are compared, the last ones too."""
    _, L, _, H, _, D = case.shape
    require_memory(4 * L * D * numpy_dtype(case.dtype).itemsize, subject.device)
    once = case.but(shape=case.shape._replace(L=PERIOD))
    q, k, v = inputs(once)
    want = expected_of(subject, once)
    queries = np.tile(q, (1, L // PERIOD + 1, 1, 1))[:, :L]
    with _enough_memory():
        arrays = (subject.arrays.put(array, subject.device) for array in (queries, k, v))
        out, _ = layer_for(subject, case)(*arrays, None)
        if tuple(out.shape) != (1, L, H, D):
            raise Failed(f"V has shape {tuple(out.shape)}, expected {(1, L, H, D)}")
        worst = 0.0
        for start in {*range(0, L - PERIOD, max(L // 16, 1)), L - PERIOD}:
            rows = np.arange(start, start + PERIOD) % PERIOD
            got = subject.arrays.take(out[:, start : start + PERIOD])
            name = f"V from l={start}"
            ratio = compare(name, "blhd", got, want.out[:, rows], want.out_bound[:, rows])
            worst = max(worst, ratio)
    return worst


@contextlib.contextmanager
def _enough_memory() -> Iterator[None]:
    """Where there is not, nothing has been tried: section L2 tries what happens then."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or re.search("(?i)out of memory|allocat", str(error)):
            raise NotHere(f"out of memory: {str(error).splitlines()[0]}") from error
        raise


def require_memory(size: int, device: str) -> None:
    """A CPU's memory is asked before it is taken: its system may end the process instead."""
    if device != "cpu":
        return
    try:
        from fullattention.machine.hardware import memory_free
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed: pip install 'fullattention[suite]'"
        raise NotHere(reason) from error
    free = memory_free()
    if free < size:
        raise NotHere(f"needs {memory(size)} of memory, and {memory(free)} are free")


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
    except (NotHere, UnsupportedError):
        raise  # by a limit of the machine's or its own, before any memory is asked for
    except Exception as error:  # noqa: BLE001 - what it says is judged
        require_amount(error)
    else:
        raise Failed("a result of 32 TiB was returned")
    return judge(run(subject, case), expected_of(subject, case))


def require_amount(error: Exception) -> None:
    """Require that an error is about memory, and says how much was asked for.

    Raises:
        Failed: it is not, or does not.
    """
    message = str(error)
    if not isinstance(error, MemoryError) and not MEMORY.search(message):
        raise Failed(f"out of memory shows as another error: {error!r}") from error
    if not any(LEAST_ASKED <= size <= MOST_ASKED for size in _sizes_in(message)):
        raise Failed(f"out of memory does not say how much was asked: {error!r}") from error


def _sizes_in(message: str) -> Iterator[float]:
    """Each number of a message, in bytes; one without a unit stands for itself."""
    for number, unit in NUMBER.findall(message):
        power = " KMGTPE".index(unit or " ")
        yield float(re.sub("[_,]", "", number)) * 1024.0**power


def addresses_used() -> int:
    """Bytes of addresses that this process has taken, on Linux."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def _memory_limit(device: str) -> Iterator[None]:
    """Refuse memory soon, or a candidate that works in pieces takes all of the machine's.

    A device's driver reserves addresses far beyond any such limit.
    """
    if device != "cpu" or resource is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = addresses_used()
    _, most = before
    if most != resource.RLIM_INFINITY and most < used + ROOM:
        raise NotHere(
            f"needs {memory(ROOM)} of addresses, and the limit (ulimit -v) leaves "
            f"{memory(max(0, most - used))}"
        )
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
