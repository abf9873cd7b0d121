"""Runs the kernels on the CPU: a `Runtime` for the passes, over NumPy arrays or torch tensors."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fullattention.backends.alignment import require_aligned
from fullattention.backends.cupy_kernels.kernels import KERNELS, STANDARD, Setting, source
from fullattention.backends.cupy_kernels.launch import Launch, Limits, check
from fullattention.backends.cupy_kernels.passes import View
from fullattention.backends.interface import dtype_name
from tests.cuda_settings import H200

HERE = Path(__file__).parent

CACHE = HERE.parents[1] / "results" / "cache" / "emulation"
"""Compiled kernels, by what they were compiled from."""

POISON = 0xFF
"""Every byte of a NaN, in each format."""

GUARD = 16 * 1024
"""Bytes before and after each new array that no kernel may write."""

ALIGNED = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
"""Has accesses stop that a GPU refuses; the CPU would be content with any address."""

ENTRY = """
extern "C" const char* run_{name}(const Call* call, long long blocks, long long threads,
                                  long long shared, long long reversed) {{
    const auto kernel = [](const void* call) {{ {name}(*static_cast<const Call*>(call)); }};
    return emulated_launch(kernel, call, blocks, int(threads), shared, int(reversed));
}}
"""
"""Makes a kernel callable from Python."""

Edit = Callable[[str], str]


def unchanged(text: str) -> str:
    """The kernels as they are."""
    return text


class EmulationError(RuntimeError):
    """A kernel did what no device would stand for."""


@functools.cache
def library(of: str, setting: Setting, edit: Edit = unchanged) -> ctypes.CDLL:
    """One pass's kernels, compiled for a setting; `edit` may change their source before."""
    entries = "".join(ENTRY.format(name=name) for name, place in KERNELS.items() if place == of)
    text = (HERE / "cuda.h").read_text("utf-8") + edit(source(of)) + entries
    return ctypes.CDLL(compiled(text, "-O1", "-w", *ALIGNED, *setting.macros))


@functools.cache
def engine() -> ctypes.CDLL:
    """The engine, whose symbols the kernels find."""
    text = (HERE / "engine.cpp").read_text("utf-8")
    return ctypes.CDLL(compiled(text, "-O2"), ctypes.RTLD_GLOBAL)


def compiled(text: str, *options: str) -> str:
    """Path of a shared library, built unless it is there."""
    compiler = os.environ.get("CXX", "g++")
    command = (compiler, STANDARD, "-fPIC", "-shared", *options, "-x", "c++", "-")
    digest = hashlib.sha256("\0".join((*command, text)).encode()).hexdigest()[:24]
    CACHE.mkdir(parents=True, exist_ok=True)
    built = CACHE / f"{digest}.so"
    if not built.exists():
        partial = CACHE / f"{digest}.{os.getpid()}.{threading.get_ident()}"
        subprocess.run([*command, "-o", partial], input=text, text=True, check=True)
        partial.rename(built)  # at once, as other processes may look for it
    return str(built.resolve())


class Emulator:
    """A `Runtime` on the CPU.

    Args:
        reversed: whether threads and blocks run last to first.
        edit: a change to the kernels' source.
        change: a change to each launch, after it was planned and checked.
    """

    def __init__(
        self,
        *,
        reversed: bool = False,  # noqa: A002 - the order is just that
        edit: Edit = unchanged,
        change: Callable[[Launch], Launch] = lambda launch: launch,
    ) -> None:
        self.reversed = reversed
        self.edit = edit
        self.change = change
        self.launches: list[Launch] = []
        self._guarded = threading.local()

    def view(self, name: str, array: Any) -> View:
        """Where an array lies."""
        if isinstance(array, np.ndarray):
            require_aligned(name, array.itemsize, array.ctypes.data, array.strides)
            strides = tuple(stride // array.itemsize for stride in array.strides)
            return View(address=array.ctypes.data, strides=strides, shape=array.shape)
        require_aligned(name, array.element_size(), array.data_ptr())
        return View(address=array.data_ptr(), strides=array.stride(), shape=tuple(array.shape))

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        """NaN between guards: what a kernel does not write shows, and what it must not."""
        itemsize = {"float64": 8, "float32": 4}.get(dtype, 2)
        size = math.prod(shape) * itemsize
        buffer = np.full(size + 2 * GUARD, POISON, np.uint8)
        self._guarded.buffers = [*self._buffers(), buffer]
        if isinstance(like, np.ndarray):
            kind = like.dtype if dtype == dtype_name(like) else np.dtype(dtype)
            return buffer[GUARD : GUARD + size].view(kind).reshape(shape)
        import torch

        inside = torch.from_numpy(buffer)[GUARD : GUARD + size]
        return inside.view(getattr(torch, dtype)).reshape(shape)

    def _buffers(self) -> list[np.ndarray]:
        """New arrays with their guards, since this thread's last launch."""
        return getattr(self._guarded, "buffers", [])

    def limits(self, like: Any) -> Limits:
        """Those of a real device."""
        return H200

    def launch(self, launch: Launch, call: np.ndarray, like: Any) -> None:
        """Run a kernel to its end.

        Raises:
            EmulationError: it did what no device would stand for.
        """
        launch = self.change(launch)
        check(launch, H200)
        if launch.threads % 32:
            raise EmulationError(f"{launch.threads} threads: no whole number of warps")
        self.launches.append(launch)
        engine()
        run = getattr(
            library(KERNELS[launch.kernel], launch.setting, self.edit), f"run_{launch.kernel}"
        )
        run.restype = ctypes.c_char_p
        run.argtypes = (ctypes.c_void_p, *(ctypes.c_longlong,) * 4)
        error = run(call.ctypes.data, launch.blocks, launch.threads, launch.shared, self.reversed)
        if error:
            raise EmulationError(f"{launch.kernel}: {error.decode()}")
        for buffer in self._buffers():
            if (buffer[:GUARD] != POISON).any() or (buffer[-GUARD:] != POISON).any():
                raise EmulationError(f"{launch.kernel}: a write outside of an array")
        self._guarded.buffers = []
