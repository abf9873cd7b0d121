"""Numba's CPU kernels on torch's tensors, which they read and write where those lie."""

from __future__ import annotations

import torch

from fullattention.backends.interface import dtype_name
from fullattention.backends.numba_cpu import ABSENT, Problem, View, hidden_view
from fullattention.backends.torch_autograd import Options


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
        B, L, H, _ = q.shape
        S, D = v.shape[1], v.shape[3]
        out = torch.empty((B, L, H, D), dtype=q.dtype)
        a = torch.empty((B, H, L, S), dtype=q.dtype) if weights else None
        problem = _problem(q, k, v, hidden, options)
        problem.forward(out.data_ptr(), 0 if a is None else a.data_ptr())
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
        gradients = tuple(torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
        d_q, d_k, d_v = gradients
        extra = 0 if g_weights is None else g_weights.data_ptr()
        places = (g_out.data_ptr(), extra, d_q.data_ptr(), d_k.data_ptr(), d_v.data_ptr())
        _problem(q, k, v, hidden, options).backward(*places)
        return d_q, d_k, d_v


_NOTHING = torch.empty(0)


def _problem(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    hidden: torch.Tensor | None,
    options: Options,
) -> Problem:
    B, L, H, E = q.shape
    S, D = v.shape[1], v.shape[3]
    mask = ABSENT
    if hidden is not None:
        mask = hidden_view(hidden.data_ptr(), tuple(hidden.shape), hidden.stride())
    return Problem(
        dtype=dtype_name(q),
        sizes=(B, L, S, H, E, D),
        q=_view(q),
        k=_view(k),
        v=_view(v),
        hidden=mask,
        causal=options.causal,
        scale=options.scale,
        dropout=options.dropout,
        seed=options.seed,
        threads=torch.get_num_threads(),
    )


def _view(tensor: torch.Tensor) -> View:
    size = tensor.itemsize
    b, t, h, e = tensor.stride()
    return View(tensor.data_ptr(), (b * size, t * size, h * size, e * size))
