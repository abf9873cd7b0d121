"""What torch.compile needs of this machine, for the backends that are made by it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, cast

import torch

from fullattention.backends.errors import UnavailableError, UnsupportedError
from fullattention.backends.torch_followers import follower

Axes = Sequence[str | int]
"""Each axis of a tensor by its size, or by a name where that is left open."""

UNSEEN = "what is compiled shows torch none of its operations"

AXIS_LIMIT = 2**30
"""Of an axis whose size a graph leaves open."""


def require_compiler(backend: str, device: str) -> None:
    """Refuse where torch could not compile.

    Raises:
        UnavailableError: a tool is missing, or torch is older than what is used of it.
    """
    if "shapes_spec" not in inspect.signature(torch.compile).parameters:
        reason = f"it needs torch 2.13 or later, here is {torch.__version__}"
        raise UnavailableError(backend, reason)
    missing = _missing_tool(torch.device(device).type)
    if missing:
        raise UnavailableError(backend, missing)


@functools.cache
def _missing_tool(kind: str) -> str:
    """The tool that torch.compile does not find on a kind of device; "" if it has all."""
    if kind != "cpu":
        from torch.utils._triton import has_triton

        return "" if has_triton() else "torch.compile needs Triton on a GPU, and finds none"
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:  # noqa: BLE001 - what it raises is torch's own, and private
        return f"torch.compile finds no C++ compiler: {str(error).splitlines()[0]}"
    return ""


def is_traced(backend: str, *tensors: torch.Tensor | None) -> bool:
    """Whether an outer torch.compile or torch.export takes a call's operations into its own graph.

    Raises:
        UnsupportedError: something else has to see them, which code that is compiled hides.
    """
    if torch.compiler.is_compiling():
        return True
    followed_by = follower(*tensors)
    if followed_by:
        raise UnsupportedError(backend, f"support for {followed_by}", UNSEEN)
    return False


def compiled(
    function: Callable[..., Any], smallest: int, shapes: Mapping[str, Axes | None]
) -> Callable[..., Any]:
    """A function of tensors, compiled at its first call for all sizes of its open axes.

    It gets code of its own, so that torch counts its recompilations apart from those of others
    made of the same function. With `fullgraph` torch raises where it could not compile it, or has
    compiled it too often, and never runs it as it is.

    Args:
        function: what is compiled.
        smallest: that an open axis may be.
        shapes: by the argument's name; axes of one name have one size. None: no such tensor is
            given.
    """
    from torch.fx.experimental.dynamic_spec import ShapesSpec, ShapeVar, TensorSpec

    names = dict.fromkeys(n for axes in shapes.values() for n in axes or () if isinstance(n, str))
    open_axes = {name: ShapeVar(name, min=smallest, max=AXIS_LIMIT) for name in names}
    spec: dict[str, Any] = {
        name: None
        if axes is None
        else TensorSpec([open_axes[n] if isinstance(n, str) else n for n in axes])
        for name, axes in shapes.items()
    }
    plain = cast(FunctionType, function)
    own = FunctionType(plain.__code__.replace(), plain.__globals__, plain.__name__)
    made: Callable[..., Any] = torch.compile(own, fullgraph=True, shapes_spec=ShapesSpec(spec))
    return made


@functools.lru_cache(maxsize=64)
def number(value: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A number as a tensor: a graph would have Python's floats baked in."""
    return torch.tensor(value, dtype=dtype, device=device)


def by_head(x: torch.Tensor) -> torch.Tensor:
    """Time series (B, T, H, N) as one matrix (T, N) per head of a batch entry, in C order."""
    B, T, H, N = x.shape
    return x.resolve_neg().transpose(1, 2).contiguous().view(B * H, T, N)
