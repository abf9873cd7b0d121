"""Runs `cupy-matmul`'s softmax kernel on the CPU, over the arrays of `tests.device_arrays`."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from fullattention.backends.cupy_kernels.launch import LARGEST_GRID
from fullattention.backends.cupy_matmul import BLOCK, softmax_launch, source
from tests.device_arrays import DeviceArray
from tests.emulation.emulator import ALIGNED, HERE, EmulationError, compiled, engine

PRELUDE = """
#undef __device__
#define __device__
#define __forceinline__ inline
#define __shared__ static
"""
"""What this kernel uses of CUDA beyond `cuda.h`."""

ENTRY = """
struct Call {
    void *scores, *weights;
    long long rows, H, L, S;
    double scale;
    long long causal;
    const bool* hidden;
    long long b, h, l, s;
    const float* uniform;
    double dropout;
};

extern "C" const char* run(const Call* call, long long blocks, long long threads,
                           long long reversed) {
    const auto kernel = [](const void* packed) {
        const Call& c = *static_cast<const Call*>(packed);
        masked_softmax((Score*)c.scores, (Weight*)c.weights, c.rows, c.H, c.L, c.S, Score(c.scale),
                       c.causal != 0, c.hidden, c.b, c.h, c.l, c.s, c.uniform, Score(c.dropout));
    };
    return emulated_launch(kernel, call, blocks, int(threads), 0, int(reversed));
}
"""


@functools.cache
def library(options: tuple[str, ...], kernel: str) -> ctypes.CDLL:
    """The kernel, compiled with these options."""
    text = (HERE / "cuda.h").read_text("utf-8") + PRELUDE + kernel + ENTRY
    return ctypes.CDLL(compiled(text, "-O1", "-w", *ALIGNED, *options))


class EmulatedSoftmax:
    """A `staged.Softmax`.

    Args:
        reversed: whether threads and blocks run last to first.
        kernel: the source.
    """

    def __init__(self, *, reversed: bool = False, kernel: str = "") -> None:  # noqa: A002
        self.reversed = reversed
        self.kernel = kernel or source()

    def __call__(self, scores: DeviceArray, weights: DeviceArray, **options: Any) -> None:
        """Fill `weights`.

        Raises:
            EmulationError: the kernel did what no device would stand for.
        """
        launch = softmax_launch(scores, weights, **options)
        assert launch.blocks <= LARGEST_GRID
        engine()
        run = library(launch.options, self.kernel).run
        run.restype = ctypes.c_char_p
        call = b"".join(_packed(argument) for argument in launch.arguments)
        if error := run(call, *map(ctypes.c_longlong, (launch.blocks, BLOCK, self.reversed))):
            raise EmulationError(error.decode())


def _packed(argument: Any) -> bytes:
    """Eight bytes, as `Call` in C++ has them."""
    if isinstance(argument, DeviceArray):
        return np.uintp(argument.host.ctypes.data).tobytes()
    if isinstance(argument, np.floating):
        return np.float64(argument).tobytes()
    return np.int64(argument).tobytes()
