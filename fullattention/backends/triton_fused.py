"""Fused attention by our own Triton kernels, on torch's tensors, with gradients.

They come without a device where Triton's interpreter runs them (TRITON_INTERPRET=1): on "cpu",
slowly, and with "interpreter" in the version.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from fullattention.backends.cuda_errors import attributed_passes
from fullattention.backends.declared import DECLARED
from fullattention.backends.errors import UnavailableError
from fullattention.backends.interface import Backend, device_kind
from fullattention.backends.precision import Precision, standard, tensor_cores

NAME = "triton"

DTYPES = DECLARED[NAME].dtypes

SMALLEST_TILE = 16
"""Keys between two rescalings of the online softmax."""


def precision(dtype: str) -> Precision:
    """How the kernels round: an online softmax in float32; half types go by tensor cores."""
    return tensor_cores(replace(standard(dtype), tile=SMALLEST_TILE), dtype)


def require_device(device: str) -> str:
    """The version of Triton, if it can run on a device.

    Raises:
        UnavailableError: it cannot; the reason says what is missing.
    """
    if importlib.util.find_spec("triton") is None:
        raise UnavailableError(
            NAME, "triton is not installed: it comes with torch's builds for CUDA on Linux"
        )
    import triton

    from fullattention.backends import torch_arrays
    from fullattention.backends.triton_kernels.simulator import SIMULATED

    version = str(triton.__version__)
    kind = device_kind(device)
    if SIMULATED:
        if kind != "cpu":
            raise UnavailableError(NAME, f"Triton's interpreter runs on 'cpu', not {device!r}")
        return f"{version} interpreter"
    if kind != "cuda":
        raise UnavailableError(
            NAME, f"Triton {version} runs on 'cuda', not {device!r}; TRITON_INTERPRET=1 interprets"
        )
    torch_arrays.require_device(NAME, device)
    return version


def backend(device: str) -> Backend:
    """The kernels on torch's tensors, on torch's current stream."""
    version = require_device(device)
    from fullattention.backends import torch_arrays, torch_autograd
    from fullattention.backends.triton_kernels.passes import TritonKernels

    return Backend(
        name=NAME,
        version=version,
        attend=torch_autograd.differentiable(NAME, attributed_passes(NAME, TritonKernels())),
        arrays=torch_arrays.ARRAYS,
        device=device,
        seed=torch_arrays.seed,
        precision={dtype: precision(dtype) for dtype in DTYPES},
        masked_rows="nan",
        batch_invariant=True,
        lacks=DECLARED[NAME].lacks,
    )
