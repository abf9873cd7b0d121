"""Numba's CPU kernels on torch's tensors, which they read and write where those lie."""

from __future__ import annotations

import math

import numpy as np
import torch

from fullattention.backends.interface import Shape, Sizes
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
        out = _empty((B, L, H, D), q)
        a = _empty((B, H, L, S), q) if weights else None
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
        d_q, d_k, d_v = (_empty(x.shape, x) for x in (q, k, v))
        arrays = (g_out, g_weights, d_q, d_k, d_v)
        backward = _plan("backward", sizes_of(q, v), q, k, v, hidden, options)
        backward.run(*map(_address, (q, k, v, hidden)), 0, 0, *map(_address, arrays), options.seed)
        return d_q, d_k, d_v


_NOTHING = torch.empty(0)

_NAMES = {getattr(torch, name): name for name in DTYPES}

LARGE = 2**25
"""Bytes from which glibc takes memory from the operating system for each tensor anew, and gives it
back: each of its pages costs a fault, and in pages of 4 KiB they can take as long as the kernel.
NumPy asks for large pages, torch does not. Smaller tensors mostly lie where freed ones lay."""


def _empty(shape: Shape, like: torch.Tensor) -> torch.Tensor:
    size = math.prod(shape) * like.itemsize
    if size < LARGE:
        return like.new_empty(shape)
    return torch.from_numpy(np.empty(size, np.uint8)).view(like.dtype).view(shape)


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
