"""Kernels that bring their own backward pass, as an `attend` that torch can differentiate."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from fullattention.backends.errors import UnsupportedError
from fullattention.backends.interface import Array, Attend
from fullattention.backends.passes import Options
from fullattention.backends.reasons import ONCE
from fullattention.backends.torch_calls import needs_gradient
from fullattention.backends.torch_followers import follower

LARGEST_SEED = 2**63 - 1

UNSEEN = "its kernels read and write memory by themselves, so torch sees no operation"


class Kernels(Protocol):
    """A pair of passes over torch tensors; both take any strides but where it is said."""

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        hidden: torch.Tensor | None,
        options: Options,
        *,
        weights: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """V (B, L, H, D), the weights (B, H, L, S) after dropout or None, and the rows' levels.

        The last is whatever the backward pass rebuilds the weights from, with an entry for each
        row (b, h, l): logsumexp (B, H, L), or (2, B, H, L) where the kernels keep a maximum and an
        inverse sum.
        """

    def backward(
        self,
        g_out: torch.Tensor,
        g_weights: torch.Tensor | None,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        hidden: torch.Tensor | None,
        out: torch.Tensor,
        levels: torch.Tensor,
        options: Options,
        /,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients by q, k and v; `g_out` and `g_weights` come contiguous."""


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        hidden: torch.Tensor | None,
        name: str,
        kernels: Kernels,
        options: Options,
        weights: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        out, a, levels = kernels.forward(q, k, v, hidden, options, weights=weights)
        ctx.save_for_backward(q, k, v, hidden, out, levels)
        ctx.set_materialize_grads(False)
        ctx.name, ctx.kernels, ctx.options = name, kernels, options
        return out, a

    @staticmethod
    def backward(
        ctx: Any, g_out: torch.Tensor | None, g_weights: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        q, k, v, hidden, out, levels = ctx.saved_tensors
        _require_unfollowed(ctx.name, g_out, g_weights, q, k, v)
        g_out = torch.zeros_like(out) if g_out is None else g_out.resolve_neg().contiguous()
        g_weights = None if g_weights is None else g_weights.resolve_neg().contiguous()
        gradients = _Gradients.apply(  # type: ignore[no-untyped-call]
            ctx.kernels, ctx.options, g_out, g_weights, q, k, v, hidden, out, levels
        )
        return *gradients, None, None, None, None, None


class _Gradients(torch.autograd.Function):
    """The backward pass as a function of its own, so that whoever differentiates it is told.

    torch's `once_differentiable` cuts the graph instead: `torch.autograd.grad` then leaves out, in
    silence, what would have come through here.
    """

    @staticmethod
    def forward(
        ctx: Any, kernels: Kernels, options: Options, *arrays: Any
    ) -> tuple[torch.Tensor, ...]:
        return kernels.backward(*arrays, options)  # type: ignore[call-arg]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> None:
        raise RuntimeError(f"lacks double_backward: {ONCE}")


def _require_unfollowed(name: str, *tensors: torch.Tensor | None) -> None:
    """Refuse what torch would take for a call of no operations.

    Raises:
        UnsupportedError: something follows operations beside autograd.
    """
    followed_by = follower(*tensors)
    if followed_by:
        raise UnsupportedError(name, f"support for {followed_by}", UNSEEN)


def differentiable(name: str, kernels: Kernels) -> Attend:
    """The `attend` of a pair of passes; calls that need no gradient skip autograd's bookkeeping.

    It refuses calls of which torch has to see the operations. torch.compile leaves it as it is.
    Dropout draws its seed from torch's generator of the CPU, whatever the device.
    """

    def attend(
        q: Array,
        k: Array,
        v: Array,
        *,
        hidden: Array | None,
        causal: bool,
        scale: float,
        dropout: float,
        weights: bool,
    ) -> tuple[Array, Array | None]:
        if torch.compiler.is_dynamo_compiling():
            from fullattention.backends.torch_uncompiled import uncompiled

            return uncompiled(  # type: ignore[no-any-return]
                attend,
                q,
                k,
                v,
                hidden=hidden,
                causal=causal,
                scale=scale,
                dropout=dropout,
                weights=weights,
            )
        _require_unfollowed(name, q, k, v, hidden)
        seed = int(torch.randint(LARGEST_SEED, ())) if dropout > 0 else 0
        options = Options(causal, scale, dropout, seed)
        # A lazy negation is no part of the memory that kernels read.
        if q.is_neg() or k.is_neg() or v.is_neg():
            q, k, v = q.resolve_neg(), k.resolve_neg(), v.resolve_neg()
        if needs_gradient(q, k, v):
            out, a = _Attention.apply(q, k, v, hidden, name, kernels, options, weights)  # type: ignore[no-untyped-call]
        else:
            out, a, _ = kernels.forward(q, k, v, hidden, options, weights=weights)
        return out, a

    return attend
