"""What of torch follows a call operation by operation, and loses what runs outside of torch."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

FORWARD_MODE = "forward-mode differentiation"

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, type(None)})
"""Classes whose instances are their memory, and nothing else."""

# torch has no public names for these states; it asks for them by these functions itself.
_is_transformed = torch._C._are_functorch_transforms_active  # noqa: SLF001
_is_traced = torch._C._is_tracing  # noqa: SLF001
_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001


def follower(*tensors: object) -> str:
    """What must see each operation on some tensors beside autograd; empty where nothing must.

    It runs before every attention: nothing here may be slow.
    """
    if torch.compiler.is_compiling():
        return "torch.compile or torch.export"
    transformed = _is_transformed()
    if forward_ad._current_level >= 0 and (transformed or any(map(_has_tangent, tensors))):  # noqa: SLF001
        return FORWARD_MODE
    if transformed:
        return "a transform of torch.func"
    if _is_traced():
        return "torch.jit.trace"
    if _modes():
        return "a mode that sees every operation, such as make_fx or FakeTensorMode"
    if not PLAIN.issuperset(map(type, tensors)):
        kinds = {type(tensor).__qualname__ for tensor in tensors if type(tensor) not in PLAIN}
        return f"subclasses of torch.Tensor, here {', '.join(sorted(kinds))}"
    return ""


def _has_tangent(tensor: object) -> bool:
    if not isinstance(tensor, torch.Tensor):
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]
