"""`cupy-fused` and `cupy-fused-torch` with the launches, and nothing else, emulated.

Each is a function of a device, as the registry takes it:
`fullattention check tests/emulation/backends.py:torch_first_to_last`.
"""

from __future__ import annotations

from fullattention.backends import Backend, numpy_arrays
from fullattention.backends.cupy_kernels import fused
from tests.emulation.emulator import Emulator


def for_numpy(emulator: Emulator) -> Backend:
    """For NumPy's arrays."""
    return fused.without_gradient(
        "cupy-fused-emulated",
        emulator,
        numpy_arrays.ARRAYS,
        device="cpu",
        version="",
        lacks=numpy_arrays.LACKS,
    )


def for_torch(emulator: Emulator) -> Backend:
    """For torch's tensors on the CPU, with gradients."""
    return fused.with_gradient(
        "cupy-fused-torch-emulated", emulator, device="cpu", version="", lacks={}
    )


def numpy_first_to_last(device: str) -> Backend:
    """Threads run in their order."""
    return for_numpy(Emulator())


def numpy_last_to_first(device: str) -> Backend:
    """Threads run against their order."""
    return for_numpy(Emulator(reversed=True))


def torch_first_to_last(device: str) -> Backend:
    """Threads run in their order."""
    return for_torch(Emulator())


def torch_last_to_first(device: str) -> Backend:
    """Threads run against their order."""
    return for_torch(Emulator(reversed=True))
