"""What several libraries' kernels for torch's tensors need of a call, besides its own numbers."""

from __future__ import annotations

import importlib
import math
from types import ModuleType

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from fullattention.backends import torch_arrays
from fullattention.backends.errors import UnavailableError, UnsupportedError

LARGEST_GRID = 65_535
"""Blocks along a CUDA grid's y and z axes."""


def require_library(backend: str, library: str, package: str, device: str) -> ModuleType:
    """The library of a backend that runs on CUDA alone.

    Raises:
        UnavailableError: it is not installed, does not load, or the device is not a GPU of CUDA.
    """
    try:
        module = importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library.partition(".")[0]:
            raise
        reason = f"{library} is not installed: pip install {package}, on a machine with CUDA"
        raise UnavailableError(backend, reason) from error
    except (ImportError, OSError) as error:  # built for another torch or CUDA
        reason = f"{library} does not load: {str(error).splitlines()[0]}"
        raise UnavailableError(backend, reason) from error
    if torch.device(device).type != "cuda":
        raise UnavailableError(backend, f"its kernels run on 'cuda' only, not on {device!r}")
    torch_arrays.require_device(backend, device)
    return module


def require_grid(backend: str, B: int, H: int) -> None:
    """Refuse what a kernel with batch and heads along its grid's y and z axes cannot start.

    Raises:
        UnsupportedError: there are too many; the reason names the limit.
    """
    for name, size in (("batch", B), ("heads", H)):
        if size > LARGEST_GRID:
            reason = f"{size} along the {name} axis, and a CUDA grid takes {LARGEST_GRID}"
            raise UnsupportedError(backend, "this call", reason)


def needs_gradient(*tensors: torch.Tensor) -> bool:
    """Whether torch is to differentiate by one of a call's tensors."""
    if torch.is_grad_enabled():
        for tensor in tensors:  # any() of a generator takes twice as long
            if tensor.requires_grad:
                return True
    return False


ALIGNMENT = 8
"""Elements to whose multiple kernels want widths filled up."""


def filled(width: int, step: int = ALIGNMENT) -> int:
    """The next width that is a multiple of a step."""
    return -(-width // step) * step


CHUNK = 16
"""Bytes that kernels for CUDA load at once."""


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose rows can be loaded by chunks, if they are whole chunks; a copy if need be.

    Kernels for CUDA check no address, and one that is off ends the process's use of the device.
    """
    if torch.compiler.is_compiling() or tensor.shape[-1] * tensor.element_size() % CHUNK:
        return tensor
    places = tensor.data_ptr()
    if not tensor.is_contiguous():
        places = math.gcd(places, *(step * tensor.element_size() for step in tensor.stride()[:-1]))
    return tensor.clone(memory_format=torch.contiguous_format) if places % CHUNK else tensor


def fit(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """A tensor with zeros appended to its last axis up to a width, and that axis dense in memory.

    Zeros appended to the features of q and k, or to the columns of v, change no score and no
    column of V.
    """
    missing = width - tensor.shape[-1]
    if missing:
        return F.pad(tensor, (0, missing))
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def by_positive_scale(q: torch.Tensor, scale: float) -> tuple[torch.Tensor, float]:
    """Queries and a positive scale of the same scores.

    Kernels that find the largest score before they scale it take no other.
    """
    return (q, scale) if scale > 0 else (-q, -scale)
