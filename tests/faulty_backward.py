"""A pair of torch passes behind `torch_autograd`, and ways for the backward one to be wrong."""

from __future__ import annotations

from typing import Any

import torch

from fullattention.backends import Backend, standard
from fullattention.backends.passes import Options
from fullattention.backends.reasons import ONCE
from fullattention.backends.torch_arrays import ARRAYS, seed
from fullattention.backends.torch_autograd import differentiable


class Passes:
    """Both passes in plain torch; `fault` is "none" or what the backward pass gets wrong."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def forward(
        self, q: Any, k: Any, v: Any, hidden: Any, options: Options, *, weights: bool
    ) -> tuple[Any, Any, Any]:
        scores = self._scores(q, k, hidden, options)
        a = torch.softmax(scores, -1) * self._keep(scores, options)
        return torch.einsum("bhls,bshd->blhd", a, v), a if weights else None, scores.logsumexp(-1)

    def backward(
        self,
        g_out: Any,
        g_weights: Any,
        q: Any,
        k: Any,
        v: Any,
        hidden: Any,
        out: Any,
        logsumexp: Any,
        options: Options,
    ) -> tuple[Any, Any, Any]:
        a = torch.exp(self._scores(q, k, hidden, options) - logsumexp[..., None])
        keep = self._keep(a, options)
        if self.fault == "dropout not in backward":
            keep = torch.ones_like(keep)
        d_weights = torch.einsum("blhd,bshd->bhls", g_out, v)
        if g_weights is not None and self.fault != "no loss through the weights":
            d_weights = d_weights + g_weights
        d_weights = keep * d_weights
        d_scores = a * (d_weights - (a * d_weights).sum(-1, keepdim=True))
        if self.fault != "dq of a fully hidden row NaN":
            d_scores = torch.nan_to_num(d_scores)
        scale = 1.0 if self.fault == "no scale in dq" else options.scale
        d_q = scale * torch.einsum("bhls,bshe->blhe", d_scores, k)
        d_k = options.scale * torch.einsum("bhls,blhe->bshe", d_scores, q)
        d_v = torch.einsum("bhls,blhd->bshd", keep * a, g_out)
        if self.fault == "dv of the last key dropped":
            d_v[:, -1] = 0
        return d_q, None if self.fault == "dk missing" else d_k, d_v

    @staticmethod
    def _scores(q: Any, k: Any, hidden: Any, options: Options) -> Any:
        scores = options.scale * torch.einsum("blhe,bshe->bhls", q, k)
        if options.causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores if hidden is None else scores.masked_fill(hidden, -torch.inf)

    @staticmethod
    def _keep(like: Any, options: Options) -> Any:
        if options.dropout == 1:
            return torch.zeros_like(like)
        drawn = torch.rand(like.shape, generator=torch.Generator().manual_seed(options.seed))
        return (drawn >= options.dropout).to(like.dtype) / (1 - options.dropout)


def backend_with(fault: str) -> Backend:
    """A backend whose gradients have a fault; "none" has none."""
    return Backend(
        name="own-backward",
        attend=differentiable("own-backward", Passes(fault)),
        arrays=ARRAYS,
        seed=seed,
        precision={dtype: standard(dtype) for dtype in ("float32", "float64")},
        masked_rows="nan",
        lacks={"double_backward": ONCE},
    )
