"""Numba's CPU kernels on torch's tensors, which they read and write where those lie."""

from __future__ import annotations

import torch

from fullattention.backends.interface import Sizes
from fullattention.backends.numba_cpu import Direction, Plan, plan
from fullattention.backends.passes import Options, sizes_of
from fullattention.backends.precision import DTYPES


class TensorKernels:
    """Both passes; the backward pass works out the weights again, from the inputs alone."""

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
        """V (B, L, H, D), the weights (B, H, L, S) or None, and an empty tensor."""
        sizes = sizes_of(q, v)
        B, L, S, H, _, D = sizes
        out = q.new_empty(B, L, H, D)
        a = q.new_empty(B, H, L, S) if weights else None
        forward = _plan("forward", sizes, q, k, v, hidden, options)
        forward.run(*map(_address, (q, k, v, hidden, out, a)), 0, 0, 0, 0, 0, options.seed)
        return out, a, _NOTHING

    def backward(
        self,
        g_out: torch.Tensor,
        g_weights: torch.Tensor | None,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        hidden: torch.Tensor | None,
        out: torch.Tensor,
        logsumexp: torch.Tensor,
        options: Options,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients by q, k and v."""
        d_q, d_k, d_v = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
        arrays = (g_out, g_weights, d_q, d_k, d_v)
        backward = _plan("backward", sizes_of(q, v), q, k, v, hidden, options)
        backward.run(*map(_address, (q, k, v, hidden)), 0, 0, *map(_address, arrays), options.seed)
        return d_q, d_k, d_v


_NOTHING = torch.empty(0)

_NAMES = {getattr(torch, name): name for name in DTYPES}


def _address(tensor: torch.Tensor | None) -> int:
    if tensor is None:
        return 0
    address = tensor.data_ptr()
    if address == 0:  # reading there would end the process
        raise RuntimeError("a tensor has no memory: it is all zeros without storage, or freed")
    return address


def _plan(
    direction: Direction,
    sizes: Sizes,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    hidden: torch.Tensor | None,
    options: Options,
) -> Plan:
    return plan(
        direction,
        _NAMES[q.dtype],
        sizes,
        (q.stride(), k.stride(), v.stride()),
        q.itemsize,
        None if hidden is None else (tuple(hidden.shape), hidden.stride()),
        options.causal,
        options.scale,
        options.dropout,
        torch.get_num_threads(),
    )
