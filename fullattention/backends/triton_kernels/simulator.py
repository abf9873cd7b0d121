"""Triton's interpreter, made fit for bfloat16, for more than one thread and for helper functions.

It runs the programs of a kernel one after the other on the CPU, with NumPy in place of the
compiler. It is told to do so by the environment, before Triton is imported: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

SIMULATED = bool(triton.knobs.runtime.interpret)
"""Whether kernels run in the interpreter, on tensors on the CPU."""

_one_at_a_time = threading.Lock()


def _widened(bits: np.ndarray) -> np.ndarray:
    """The float32 numbers whose upper halves are given."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(numbers: np.ndarray) -> np.ndarray:
    """The bits of the nearest bfloat16 numbers, ties to even."""
    nearest = torch.from_numpy(np.ascontiguousarray(numbers)).to(torch.bfloat16)
    return nearest.view(torch.uint16).numpy()


if SIMULATED:
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    _cast, _dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def _cast_rightly(self: Any, source: Any, wanted: Any) -> Any:
        """The interpreter itself cuts bfloat16 numbers off, which no GPU does."""
        before, after = source.dtype.scalar, wanted.scalar
        if before == tl.bfloat16 and after == tl.float32:
            return TensorHandle(_widened(source.data), after)
        if before == tl.float32 and after == tl.bfloat16:
            return TensorHandle(_to_bfloat16(source.data), after)
        return _cast(self, source, wanted)

    def _dot_rightly(self: Any, a: Any, b: Any, total: Any, *options: Any) -> Any:
        """The interpreter itself multiplies the bits of bfloat16 numbers, as if they were whole."""
        if a.dtype.scalar == tl.bfloat16:
            a, b = (TensorHandle(_widened(x.data), tl.float32) for x in (a, b))
        return _dot(self, a, b, total, *options)

    InterpreterBuilder.cast_impl = _cast_rightly
    InterpreterBuilder.create_dot = _dot_rightly


def _once_for_each_module(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Put the interpreter's functions in place of the language's that a function's module sees.

    The interpreter itself does so at each call of a helper, which takes half of a launch's time.
    """
    patched: set[int] = set()

    def patch_once(function: Any) -> Any:
        module = id(function.__globals__)
        if module in patched:
            return None
        patched.add(module)
        return patch(function)

    return patch_once


@contextlib.contextmanager
def _patching_once() -> Iterator[None]:
    from triton.runtime import interpreter

    patch = interpreter._patch_lang  # noqa: SLF001 - there is no public way
    interpreter._patch_lang = _once_for_each_module(patch)  # noqa: SLF001
    try:
        yield
    finally:
        interpreter._patch_lang = patch  # noqa: SLF001


@contextlib.contextmanager
def simulating() -> Iterator[None]:
    """One launch at a time, which is all the interpreter can."""
    with _one_at_a_time, warnings.catch_warnings(), _patching_once():
        warnings.simplefilter("ignore")  # NaN and overflow mean nothing to a device
        yield
