"""Torch tensors for the backends that use them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fullattention.backends.errors import UnavailableError
from fullattention.backends.interface import Array, Arrays, Shape
from fullattention.backends.numpy_arrays import aligned_copy
from fullattention.backends.torch_followers import follower


def require_device(backend: str, device: str) -> None:
    """Refuse a device that torch cannot reach.

    Raises:
        UnavailableError: there is no such device; the reason names it.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UnavailableError(
            backend, f"torch {torch.__version__}, device {device}: {reason}"
        ) from error


def seed(value: int) -> None:
    """Restart torch's generators on every device."""
    torch.manual_seed(value)


def _put(array: np.ndarray, device: str) -> torch.Tensor:
    return _wrap(aligned_copy(array)).to(device)


def _wrap(array: np.ndarray) -> torch.Tensor:
    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _take(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.contiguous().view(torch.uint16).numpy().copy().view(ml_dtypes.bfloat16)
    return tensor.numpy().copy()


def _strided(buffer: torch.Tensor, shape: Shape, strides: Shape, offset: int) -> torch.Tensor:
    if min(strides) < 0:
        raise ValueError("torch tensors have no negative strides")
    return buffer.as_strided(shape, strides, offset)


def _synchronize(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _where(condition: Array, chosen: Array | float, other: torch.Tensor) -> torch.Tensor:
    return torch.where(condition, chosen, other)


def _zeros(shape: Shape, like: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    # Empty sums keep the result attached to the graph, with a gradient of zero.
    return sum((x.reshape(-1)[:0].sum() for x in (like, *others)), start=like.new_zeros(shape))


def _device(tensor: torch.Tensor) -> str:
    return "cpu" if tensor.is_cpu else str(tensor.device)  # to spell a device takes a while


def _any_true(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "cpu" or bool(follower(tensor)) or bool(tensor.any())


def _vjp(
    function: Callable[..., tuple[Array, ...]],
    inputs: tuple[Array, ...],
    cotangents: tuple[Array | None, ...],
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    leaves = [x if x.requires_grad else x.detach().requires_grad_() for x in inputs]
    results = function(*leaves)
    # Cotangents as arguments of grad would make torch import sympy.
    loss = sum(
        (result * cotangent).sum()
        for result, cotangent in zip(results, cotangents, strict=True)
        if cotangent is not None
    )
    return results, torch.autograd.grad(loss, leaves, create_graph=True)


ARRAYS = Arrays(
    library="torch",
    type=torch.Tensor,
    put=_put,
    wrap=_wrap,
    take=_take,
    strided=_strided,
    synchronize=_synchronize,
    where=_where,
    zeros=_zeros,
    contiguous=torch.Tensor.contiguous,
    any_true=_any_true,
    device=_device,
    vjp=_vjp,
)
