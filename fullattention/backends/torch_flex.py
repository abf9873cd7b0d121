"""torch's flex_attention, compiled: the scale and the mask are applied where scores are made."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import flex_attention

from fullattention.backends import torch_arrays, torch_inductor
from fullattention.backends.errors import UnsupportedError
from fullattention.backends.interface import Array, Backend, broadcast_strides
from fullattention.backends.precision import flash
from fullattention.backends.torch_calls import filled, fit, needs_gradient
from fullattention.backends.torch_inductor import Axes, by_head, number

NAME = "torch-flex"

WIDTHS = 16
"""Features and columns are filled up to a multiple of it: each width has a kernel of its own, and
one takes some ten seconds to compile."""

INFERENCE = "flex_attention has no backward pass on CPUs"

LOST = "where every score of a row is NaN, its kernel for CPUs gives 0"

LACKS = {
    "weights": "flex_attention does not return weights",
    "dropout": "flex_attention drops nothing, and what it calls back sees scores, not weights",
    "double_backward": "flex_attention's backward kernels have no derivative",
    "float64": "flex_attention takes float32 and half types on CPUs",
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
    """Attend by a kernel that is compiled when a call first needs it; see `interface.Attend`.

    Nothing is skipped by blocks, since NaN in a value that is hidden belongs into the result.
    Within an outer torch.compile the kernel becomes part of the outer graph.
    """
    traced = torch_inductor.is_traced(NAME, q, k, v, hidden)
    B, L, H, _ = q.shape
    D = v.shape[3]
    if q.is_cpu:
        if needs_gradient(q, k, v):
            raise UnsupportedError(NAME, "gradient", INFERENCE)
        q, k, v = q.detach(), k.detach(), v.detach()  # it looks at requires_grad alone
    q, k, v = (fit(by_head(x), filled(x.shape[-1], WIDTHS))[:, None] for x in (q, k, v))
    flat = strides = None
    if hidden is not None:
        hidden = hidden.contiguous()
        flat = hidden.view(-1)
        strides = _strides(H, broadcast_strides(hidden.shape, hidden.stride()), q.device)
    steps = _steps
    if not traced:
        steps = compiled(q.dtype, q.shape[-1], v.shape[-1], causal, hidden is not None)
    out = steps(q, k, v, number(scale, torch.float32, q.device), flat, strides, causal)
    return out.view(B, H, L, -1)[..., :D].transpose(1, 2), None


@functools.lru_cache(maxsize=64)
def _strides(H: int, strides: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """H and the strides of a mask, as a tensor: a graph would have them baked in."""
    return torch.tensor([H, *strides], device=device)


@functools.cache
def compiled(
    dtype: torch.dtype, E: int, D: int, causal: bool, masked: bool
) -> Callable[..., torch.Tensor]:
    """The kernel for one dtype, width and kind of mask, compiled at its first call."""
    shapes: dict[str, Axes | None] = {
        "q": ["N", 1, "L", E],
        "k": ["N", 1, "S", E],
        "v": ["N", 1, "S", D],
        "hidden": ["M"] if masked else None,
    }
    return torch_inductor.compiled(_steps, 1, shapes)


def _steps(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: torch.Tensor,
    hidden: torch.Tensor | None,
    strides: torch.Tensor | None,
    causal: bool,
) -> torch.Tensor:
    """V (N, 1, L, D) of N heads; the mask comes flat, with H and the strides of its four axes."""

    def changed(
        score: torch.Tensor,
        n: torch.Tensor,
        _: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
    ) -> torch.Tensor:
        score = score * scale
        if causal:
            score = torch.where(query >= key, score, -torch.inf)
        if hidden is not None and strides is not None:
            H, by_batch, by_head, by_query, by_key = strides.unbind()
            place = n // H * by_batch + n % H * by_head + query * by_query + key * by_key
            score = torch.where(hidden[place], -torch.inf, score)
        return score

    out: torch.Tensor = flex_attention(q, k, v, score_mod=changed, scale=1.0)
    return out


def backend(device: str) -> Backend:
    """Compiled flex_attention on one device; nothing is compiled yet."""
    torch_arrays.require_device(NAME, device)
    torch_inductor.require_compiler(NAME, device)
    on_cpu = torch.device(device).type == "cpu"
    return Backend(
        name=NAME,
        version=torch.__version__,
        attend=attend,
        arrays=torch_arrays.ARRAYS,
        device=device,
        seed=torch_arrays.seed,
        compiles=True,
        precision={dtype: flash(dtype) for dtype in ("float32", "float16", "bfloat16")},
        masked_rows="zero",
        lacks={**LACKS, **({"gradient": INFERENCE} if on_cpu else {})},
        deviates={"N4": LOST} if on_cpu else {},
    )
