"""A torch backend with a backward pass of its own, and ways for that to be wrong."""

from __future__ import annotations

from typing import Any

from fullattention.backends import Backend, standard
from fullattention.backends.torch_arrays import ARRAYS, seed


def backend_with(fault: str, torch: Any) -> Backend:
    """A backend whose gradients have a fault; "none" has none."""

    class Attend(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, hidden: Any, scale: float, p: float) -> Any:
            scores = torch.einsum("blhe,bshe->bhls", q, k)
            if hidden is not None:
                scores = scores.masked_fill(hidden, -torch.inf)
            a = torch.softmax(scale * scores, -1)
            keep = (torch.rand_like(a) >= p) / (1 - p) if p < 1 else torch.zeros_like(a)
            ctx.save_for_backward(q, k, v, a, keep)
            ctx.scale = scale
            return torch.einsum("bhls,bshd->blhd", keep * a, v), keep * a

        @staticmethod
        def backward(ctx: Any, g: Any, g_weights: Any) -> Any:
            q, k, v, a, keep = ctx.saved_tensors
            if fault == "dropout not in backward":
                keep = torch.ones_like(keep)
            d_weights = keep * (torch.einsum("blhd,bshd->bhls", g, v) + g_weights)
            d_scores = torch.nan_to_num(a * (d_weights - (a * d_weights).sum(-1, keepdim=True)))
            scale = 1.0 if fault == "no scale in dq" else ctx.scale
            d_q = scale * torch.einsum("bhls,bshe->blhe", d_scores, k)
            d_k = ctx.scale * torch.einsum("bhls,blhe->bshe", d_scores, q)
            d_v = torch.einsum("bhls,blhd->bshd", keep * a, g)
            if fault == "dv of the last key dropped":
                d_v[:, -1] = 0
            return d_q, None if fault == "dk missing" else d_k, d_v, None, None, None

    def attend(q: Any, k: Any, v: Any, **options: Any) -> Any:
        hidden = options["hidden"]
        if options["causal"]:
            hidden = torch.ones((q.shape[1], k.shape[1]), dtype=torch.bool).triu(1)
        out, a = Attend.apply(q, k, v, hidden, options["scale"], options["dropout"])
        return out, a if options["weights"] else None

    return Backend(
        name="own-backward",
        attend=attend,
        arrays=ARRAYS,
        seed=seed,
        precision={dtype: standard(dtype) for dtype in ("float32", "float64")},
        masked_rows="nan",
        lacks={"double_backward": "the backward pass is not differentiable"},
    )
