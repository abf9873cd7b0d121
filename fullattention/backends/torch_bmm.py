"""Batched products by torch, without einsum: blocks of scores that stay in a core's cache."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from fullattention.backends import torch_arrays, torch_leak
from fullattention.backends.interface import SCORE_COPIES, Array, Backend, Sizes
from fullattention.backends.precision import DTYPES, Precision, stored
from fullattention.backends.reasons import NARROW_SCORES
from fullattention.backends.torch_calls import needs_gradient
from fullattention.backends.torch_followers import follower

BLOCK_SCORES = 2**19
"""Scores of a block: 2 MiB in float32, about a core's cache; smaller blocks cost more calls."""


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
    leaking: bool,
) -> tuple[Array, Array | None]:
    """Attend by blocks of batch entries where nothing else is wanted; see `interface.Attend`.

    `leaking` says that bfloat16 products are to be kept from carrying NaN between rows.
    """
    if causal:
        L, S = q.shape[1], k.shape[1]
        hidden = torch.ones((1, 1, L, S), dtype=torch.bool, device=q.device).triu(1)
    leaking = leaking and hidden is not None and q.dtype == torch.bfloat16
    if weights or dropout or _is_recorded(q, k, v, hidden):
        out, a = _attended(q, k, v, hidden, scale, dropout, leaking, in_place=False)
        return out, a if weights else None
    blocks = list(_blocks(q.shape[0], q.shape[1] * k.shape[1] * q.shape[2]))
    if len(blocks) == 1:
        return _attended(q, k, v, hidden, scale, dropout, leaking, in_place=True)[0], None
    out = q.new_empty((*q.shape[:3], v.shape[3]))
    for block in blocks:
        mask = hidden if hidden is None or len(hidden) == 1 else hidden[block]
        part = (q[block], k[block], v[block], mask, scale, dropout, leaking)
        out[block], _ = _attended(*part, in_place=True)
    return out, None


def _is_recorded(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor | None
) -> bool:
    """Whether torch has to see each step, to differentiate it or for another reason."""
    return needs_gradient(q, k, v) or bool(follower(q, k, v, hidden))


def _blocks(B: int, scores: int) -> Iterator[slice]:
    """The batch entries of each block, where each entry has so many scores."""
    step = _entries(scores)
    return (slice(start, start + step) for start in range(0, B, step))


def _entries(scores: int) -> int:
    """How many entries with so many scores are computed together."""
    return max(1, BLOCK_SCORES // scores)


def _score_copies(sizes: Sizes, uses: Collection[str]) -> float:
    """Those of one block, where nothing but V is wanted."""
    B, L, S, H, _, _ = sizes
    is_whole = not {"weights", "dropout", "gradient"}.isdisjoint(uses)
    return SCORE_COPIES if is_whole else SCORE_COPIES * min(1.0, _entries(L * S * H) / B)


def _attended(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    hidden: torch.Tensor | None,
    scale: float,
    dropout: float,
    leaking: bool,
    *,
    in_place: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """V (B, L, H, D) and the weights (B, H, L, S)."""
    B, L, H, _ = q.shape
    S, D = k.shape[1], v.shape[3]
    scores = torch.baddbmm(
        q.new_empty((1, 1, 1)), _by_head(q), _by_head(k).transpose(1, 2), beta=0, alpha=scale
    )
    if hidden is not None:
        fill = torch.Tensor.masked_fill_ if in_place else torch.Tensor.masked_fill
        scores = fill(scores.view(B, H, L, S), hidden, -torch.inf).view(scores.shape)
    a = torch.softmax(scores, -1, out=scores) if in_place else torch.softmax(scores, -1)
    if dropout:
        a = F.dropout(a, dropout)
    out = torch_leak.weighted_sums(a, _by_head(v), apart=leaking)
    return out.view(B, H, L, D).transpose(1, 2), a.view(B, H, L, S)


def _by_head(x: torch.Tensor) -> torch.Tensor:
    """Time series (B, T, H, N) as one matrix (T, N) per head of a batch entry."""
    B, T, H, N = x.shape
    return x.transpose(1, 2).reshape(B * H, T, N)


def _precision(dtype: str) -> Precision:
    """As stored step by step, but the product is scaled before it is first rounded."""
    model = stored(dtype)
    return replace(model, score_roundings=min(model.score_roundings, 1))


def backend(device: str) -> Backend:
    """Batched products on one device."""
    torch_arrays.require_device("torch-bmm", device)
    leaking = device == "cpu" and torch_leak.leaks()
    return Backend(
        name="torch-bmm",
        version=torch.__version__,
        attend=functools.partial(attend, leaking=leaking),
        arrays=torch_arrays.ARRAYS,
        device=device,
        seed=torch_arrays.seed,
        precision={dtype: _precision(dtype) for dtype in DTYPES},
        masked_rows="nan",
        score_copies=_score_copies,
        lacks={"wide_scores": NARROW_SCORES},
        deviates={"N4": torch_leak.LEAK} if leaking else {},
    )
