"""Indices that overflow are found: at 2^31 where the machine can, and at a size of any machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from fullattention.backends import Backend
from fullattention.backends.interface import Array, Sizes
from fullattention.conformance.case import Case, Failed, NotHere
from fullattention.conformance.limits import (
    far_apart,
    many_elements,
    require_amount,
    require_memory,
)
from fullattention.conformance.subject import load_subject
from tests.zoo.attending import Call, Result, right
from tests.zoo.specimen import backend

MASKS = ("off", "random/B1LS")


@pytest.mark.skipif(sys.platform != "linux", reason="limits addresses")
def test_a_limit_below_the_suites_own_is_the_machines() -> None:
    """In a process of its own: what it lowers cannot be raised again."""
    code = """
import resource
from fullattention.conformance.catalogue import catalogue
from fullattention.conformance.limits import ROOM, addresses_used
from fullattention.conformance.subject import load_subject
from fullattention.conformance.trial import run_check

subject = load_subject("numpy-matmul")
(check,) = [one for one in catalogue(("float32",), "full") if one.requirement == "L2"]
least = addresses_used() + ROOM // 2
resource.setrlimit(resource.RLIMIT_AS, (least, least))
result = run_check(subject, check)
print(result.status, result.detail)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("not run needs 2.00 GiB of addresses, and the limit (ulimit -v)")


def read_by(index: type[np.signedinteger]) -> Callable[[Array], Array]:
    """Reads an array by offsets that are computed in a narrow type."""

    def read(x: Array) -> Array:
        steps = [stride // x.itemsize for stride in x.strides]
        if min(steps) < 0:
            return x
        last = sum(step * (size - 1) for step, size in zip(steps, x.shape, strict=True))
        flat = np.lib.stride_tricks.as_strided(x, (last + 1,), (x.itemsize,))
        axes = np.indices(x.shape, sparse=True)
        offsets = sum(axis * step for axis, step in zip(axes, steps, strict=True))
        return flat[np.asarray(offsets).astype(index)]

    return read


def reading(names: str, index: type[np.signedinteger]) -> Backend:
    read = read_by(index)

    def method(call: Call) -> Result:
        given = {name: getattr(call, name) for name in names.split()}
        return right(call.but(**{n: read(x) for n, x in given.items() if x is not None}))

    return backend(f"reads-by-{index.__name__}", method)


def writing(index: type[np.signedinteger]) -> Backend:
    """Writes V by offsets that are computed in a narrow type."""

    def method(call: Call) -> Result:
        out, a = right(call)
        written = np.zeros_like(out)
        written.ravel()[np.arange(out.size).astype(index)] = out.ravel()
        return written, a

    return backend(f"writes-by-{index.__name__}", method)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["numpy-reference", "numpy-matmul", "torch-einsum", "torch-sdpa"])
def test_entries_far_apart_are_read_right(name: str, mask: str) -> None:
    try:
        assert far_apart(load_subject(name), Case(mask=mask)) <= 1
    except NotHere as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("name", ["q", "k", "v", "hidden"])
def test_int32_offsets_are_found_at_their_size(name: str) -> None:
    subject = load_subject(reading(name, np.int32))
    try:
        with pytest.raises(Failed, match="elements wrong"):
            far_apart(subject, Case(mask="random/B1LS"))
    except NotHere as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("name", ["q", "k", "v", "hidden"])
def test_narrow_offsets_are_found(name: str) -> None:
    subject = load_subject(reading(name, np.int16))
    assert far_apart(subject, Case(mask="random/B1LS"), distance=2**14) <= 1
    with pytest.raises(Failed, match="elements wrong"):
        far_apart(subject, Case(mask="random/B1LS"), distance=2**15)


def test_narrow_offsets_of_results_are_found() -> None:
    case = Case(dtype="float16", shape=Sizes(1, 2**15 // 64 + 1, 2, 1, 2, 64))
    assert many_elements(load_subject(writing(np.int32)), case) <= 1
    with pytest.raises(Failed, match="elements wrong"):
        many_elements(load_subject(writing(np.int16)), case)


def test_what_the_memory_does_not_hold_is_not_run() -> None:
    with pytest.raises(NotHere, match=r"needs 1\.05e\+06 GiB of memory, and .* are free"):
        require_memory(2**50, "cpu")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 32.0 TiB for an array with shape (1048576, 8)"),
        MemoryError("35184372088832"),
        RuntimeError("can't allocate memory: you tried to allocate 35184372088832 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate 32768.00 GiB. GPU 0 has 79.11 GiB"),
        RuntimeError("Out of memory allocating 35,184,372,088,832 bytes (allocated so far: 0)"),
        RuntimeError("out of memory: 4.4e12 scores"),
    ],
)
def test_an_amount_of_the_right_size_is_taken_in_any_unit(error: Exception) -> None:
    require_amount(error)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "does not say how much"),
        (MemoryError("Unable to allocate 32.0 KiB for 1048576 heads"), "does not say how much"),
        (RuntimeError("out of memory: error 12 at line 669"), "does not say how much"),
        (RuntimeError("cannot reshape an array of size 8796093022208"), "as another error"),
    ],
)
def test_an_error_without_its_amount_or_of_another_thing_is_a_failure(
    error: Exception, says: str
) -> None:
    with pytest.raises(Failed, match=says):
        require_amount(error)
