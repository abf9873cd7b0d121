"""A pair of torch passes behind `torch_autograd`, and ways for the backward one to be wrong."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from fullattention.backends import Backend, standard
from fullattention.backends.passes import Options
from fullattention.backends.reasons import ONCE
from fullattention.backends.torch_arrays import ARRAYS, seed
from fullattention.backends.torch_autograd import differentiable
from tests.zoo.faulty.precision import to_tf32


class Passes:
    """Both passes in plain torch; `fault` is "none" or what the backward pass gets wrong."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.calls = itertools.count()

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
        if self.fault == "dropout drawn anew in backward":
            options = options._replace(seed=options.seed + 1)
        keep = self._keep(a, options)
        if self.fault == "dropout not in backward":
            keep = torch.ones_like(keep)
        d_weights = torch.einsum("blhd,bshd->bhls", g_out, v)
        if g_weights is not None and self.fault != "no loss through the weights":
            d_weights = d_weights + g_weights
        d_weights = keep * d_weights
        d_scores = a * (d_weights - self._row(a, d_weights, g_out, out, g_weights))
        if self.fault != "dq of a fully hidden row NaN":
            d_scores = torch.nan_to_num(d_scores)
        scale = 1.0 if self.fault == "no scale in dq" else options.scale
        d_q = scale * torch.einsum("bhls,bshe->blhe", d_scores, k)
        d_k = options.scale * self._over_queries(d_scores, q)
        d_v = self._over_queries(keep * a, g_out)
        if self.fault == "dv of the last key dropped":
            d_v[:, -1] = 0
        return d_q, None if self.fault == "dk missing" else d_k, d_v

    def _row(self, a: Any, d_weights: Any, g_out: Any, out: Any, g_weights: Any) -> Any:
        """The row's mean of the weights' gradient; by V, which is the same, where it is rounded."""
        if self.fault != "row means from V rounded to half" or g_weights is not None:
            return (a * d_weights).sum(-1, keepdim=True)
        return (g_out * out.half().to(out.dtype)).sum(-1).transpose(1, 2)[..., None]

    def _over_queries(self, by: Any, x: Any) -> Any:
        """The product that sums over the queries."""
        if self.fault == "products of the gradients in TF32" and x.dtype == torch.float32:
            by, x = (torch.from_numpy(to_tf32(y.numpy())) for y in (by, x))
        if self.fault == "sums over queries in any order":
            generator = torch.Generator().manual_seed(next(self.calls))
            order = torch.randperm(x.shape[1], generator=generator)
            by, x = by[:, :, order], x[:, order]
        return torch.einsum("bhls,blhd->bshd", by, x)

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
