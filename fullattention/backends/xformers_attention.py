"""memory_efficient_attention of xFormers, which picks a kernel by itself."""

from __future__ import annotations

import torch

from fullattention.backends import torch_arrays
from fullattention.backends.interface import Array, Backend
from fullattention.backends.precision import flash
from fullattention.backends.reasons import ONCE, leak
from fullattention.backends.torch_calls import (
    aligned,
    by_positive_scale,
    filled,
    fit,
    require_grid,
    require_library,
)

NAME = "xformers"

LACKS = {
    "weights": "memory_efficient_attention does not return weights",
    "double_backward": ONCE,
    "determinism": "xFormers says that its operators may be nondeterministic",
    "float64": "its kernels take float32 and half types",
}

DEVIATES = {
    "G3": "the layer lets it see no fully hidden row, so that batch entry's dv stays finite",
    "N4": leak("xFormers"),
}


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
    """Attend by whichever kernel xFormers picks for (B, L, H, E); see `interface.Attend`."""
    from xformers.ops import LowerTriangularMask, memory_efficient_attention

    B, L, H, E = q.shape
    S, D = k.shape[1], v.shape[3]
    require_grid(NAME, B, H)
    if dropout == 1:  # which it refuses
        return torch_arrays.ARRAYS.zeros((B, L, H, D), v, q, k), None
    q, scale = by_positive_scale(q, scale)
    bias = LowerTriangularMask() if causal else None
    if hidden is not None:
        bias = _bias(hidden, q.dtype, S).expand(B, H, L, S)
    out = memory_efficient_attention(
        aligned(fit(q, filled(E))),
        aligned(fit(k, filled(E))),
        aligned(fit(v, filled(D))),
        attn_bias=bias,
        p=dropout,
        scale=scale,
    )
    return out[..., :D], None


def _bias(hidden: torch.Tensor, dtype: torch.dtype, S: int) -> torch.Tensor:
    """What is added to the scores (B or 1, H or 1, L or 1, S): -inf where a key is hidden.

    Its rows must be spaced like widths.
    """
    shape = (*hidden.shape[:3], filled(S))
    bias = torch.zeros(shape, dtype=dtype, device=hidden.device)[..., :S]
    return bias.masked_fill_(hidden, -torch.inf)


def adapter(device: str, version: str) -> Backend:
    """The adapter, whatever function answers to the library's name."""
    return Backend(
        name=NAME,
        version=version,
        attend=attend,
        arrays=torch_arrays.ARRAYS,
        device=device,
        seed=torch_arrays.seed,
        precision={dtype: flash(dtype) for dtype in ("float32", "float16", "bfloat16")},
        lacks=LACKS,
        deviates=DEVIATES,
    )


def backend(device: str) -> Backend:
    """XFormers on one device."""
    library = require_library(NAME, "xformers", "xformers", device)
    return adapter(device, library.__version__)
