"""`cupy-fused` and `cupy-fused-torch` with the launches, and nothing else, emulated."""

from __future__ import annotations

from typing import Any

from fullattention.backends import Backend, numpy_arrays
from fullattention.backends.cuda import fused
from tests.emulation.emulator import Emulator


def for_numpy(**options: Any) -> Backend:
    """For NumPy's arrays; the options are `Emulator`'s."""
    return fused.without_gradient(
        "cupy-fused-emulated",
        Emulator(**options),
        numpy_arrays.ARRAYS,
        device="cpu",
        version="",
        lacks=numpy_arrays.LACKS,
    )


def for_torch(**options: Any) -> Backend:
    """For torch's tensors on the CPU, with gradients; the options are `Emulator`'s."""
    return fused.with_gradient(
        "cupy-fused-torch-emulated", Emulator(**options), device="cpu", version="", lacks={}
    )
