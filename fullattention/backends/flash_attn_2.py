"""FlashAttention 2's own function, of the package flash-attn."""

from __future__ import annotations

import torch

from fullattention.backends import torch_arrays
from fullattention.backends.errors import UnsupportedError
from fullattention.backends.interface import Array, Backend
from fullattention.backends.precision import flash
from fullattention.backends.reasons import ONCE, UNORDERED
from fullattention.backends.torch_calls import (
    aligned,
    by_positive_scale,
    fit,
    require_grid,
    require_library,
)

NAME = "flash-attn"

LARGEST_WIDTH = 256
"""Features of a head that its kernels take."""

LACKS = {
    "mask": "flash_attn_func takes no mask array",
    "weights": "flash_attn_func returns them for testing only, and not those of this contract",
    "double_backward": ONCE,
    "deterministic_gradient": UNORDERED,
    "float64": "its kernels take half types alone",
    "float32": "its kernels take half types alone",
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
    """Attend by `flash_attn_func`, which takes (B, L, H, E) as it is; see `interface.Attend`.

    Its causal mask is aligned to the last query and the last key, as ours is where L == S, and
    nowhere else is it asked for.
    """
    from flash_attn import flash_attn_func

    B, L, H, E = q.shape
    D = v.shape[3]
    width = max(E, D)
    if width > LARGEST_WIDTH:
        reason = f"{width} features, and its kernels take {LARGEST_WIDTH}"
        raise UnsupportedError(NAME, "this call", reason)
    require_grid(NAME, B, H)
    if dropout == 1:  # which it refuses
        return torch_arrays.ARRAYS.zeros((B, L, H, D), v, q, k), None
    q, scale = by_positive_scale(q, scale)
    out = flash_attn_func(
        *(aligned(fit(tensor, width)) for tensor in (q, k, v)),
        dropout_p=dropout,
        softmax_scale=scale,
        causal=causal,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    return out[..., :D], None


def adapter(device: str, version: str) -> Backend:
    """The adapter, whatever function answers to the library's name."""
    return Backend(
        name=NAME,
        version=version,
        attend=attend,
        arrays=torch_arrays.ARRAYS,
        device=device,
        seed=torch_arrays.seed,
        precision={dtype: flash(dtype) for dtype in ("float16", "bfloat16")},
        lacks=LACKS,
    )


def backend(device: str) -> Backend:
    """FlashAttention on one device; the argument `deterministic` came with 2.4.1."""
    library = require_library(NAME, "flash_attn", "flash-attn", device)
    return adapter(device, library.__version__)
