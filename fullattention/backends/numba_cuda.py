"""Numba's CUDA kernels on Numba device arrays, and on torch tensors with gradients.

Both come without a device where Numba's simulator runs them (NUMBA_ENABLE_CUDASIM=1): on "cpu",
slowly, and with "simulator" in the version.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import replace

from fullattention.backends import extras
from fullattention.backends.cuda_errors import attributed, attributed_passes
from fullattention.backends.declared import DECLARED
from fullattention.backends.errors import UnavailableError
from fullattention.backends.interface import Backend
from fullattention.backends.precision import Precision, standard

NAME, TORCH_NAME = "numba-cuda", "numba-cuda-torch"

DTYPES = DECLARED[NAME].dtypes

SMALLEST_TILE = 8
"""Keys between two rescalings of the online softmax, in every kernel."""


def precision(dtype: str) -> Precision:
    """How the kernels round: an online softmax in float32, or in float64 for float64."""
    return replace(standard(dtype), tile=SMALLEST_TILE)


def require_device(backend: str, device: str) -> str:
    """The version of Numba's CUDA target, if it can run on a device.

    Raises:
        UnavailableError: it cannot; the reason says what is missing.
    """
    if importlib.util.find_spec("numba") is None or importlib.util.find_spec("numba_cuda") is None:
        # Numba's built-in target takes the process down under drivers for CUDA 13.
        raise UnavailableError(
            backend,
            "numba-cuda is not installed, and Numba's own CUDA target is not used: "
            + extras.command("numba_cuda"),
        )
    from numba import cuda
    from numba.core import config

    version = importlib.metadata.version("numba-cuda")
    if config.ENABLE_CUDASIM:
        if device != "cpu":
            raise UnavailableError(backend, f"Numba's simulator runs on 'cpu', not {device!r}")
        return f"{version} simulator"
    kind, _, index = device.partition(":")
    if kind != "cuda":
        raise UnavailableError(backend, f"numba-cuda {version} runs on 'cuda', not {device!r}")
    if not cuda.is_available():
        raise UnavailableError(backend, f"numba-cuda {version} finds no CUDA device")
    if int(index or 0) >= len(cuda.gpus):
        raise UnavailableError(backend, f"numba-cuda {version} finds {len(cuda.gpus)} devices")
    return version


def backend(device: str) -> Backend:
    """The kernels on Numba device arrays."""
    version = require_device(NAME, device)
    from fullattention.backends import numba_cuda_arrays, numpy_arrays
    from fullattention.backends.numba_cuda_kernels import passes

    return Backend(
        name=NAME,
        version=version,
        attend=attributed(NAME, passes.attend),
        arrays=numba_cuda_arrays.ARRAYS,
        device=device,
        seed=numpy_arrays.seed,
        precision={dtype: precision(dtype) for dtype in DTYPES},
        masked_rows="nan",
        batch_invariant=True,
        lacks=DECLARED[NAME].lacks,
    )


def for_torch(device: str) -> Backend:
    """The kernels on torch tensors, on torch's current stream."""
    version = require_device(TORCH_NAME, device)
    from fullattention.backends import torch_arrays, torch_autograd
    from fullattention.backends.numba_cuda_kernels import passes

    torch_arrays.require_device(TORCH_NAME, device)
    return Backend(
        name=TORCH_NAME,
        version=version,
        attend=torch_autograd.differentiable(
            TORCH_NAME, attributed_passes(TORCH_NAME, passes.TorchKernels())
        ),
        arrays=torch_arrays.ARRAYS,
        device=device,
        seed=torch_arrays.seed,
        precision={dtype: precision(dtype) for dtype in DTYPES},
        masked_rows="nan",
        batch_invariant=True,
        lacks=DECLARED[TORCH_NAME].lacks,
    )
