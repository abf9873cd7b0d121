"""The layer as Time-Series-Library runs it: einsum, mask, scale, softmax, dropout, einsum."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from fullattention.backends import torch_arrays, torch_leak
from fullattention.backends.interface import Array, Backend
from fullattention.backends.precision import DTYPES, stored
from fullattention.backends.reasons import NARROW_SCORES
from fullattention.backends.torch_followers import follower


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
    """Attend with every step stored in the input's dtype; see `interface.Attend`.

    `leaking` says that bfloat16 products are to be kept from carrying NaN between rows.
    """
    scores = torch.einsum("blhe,bshe->bhls", q, k)
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    if hidden is not None:
        # In place it spares memory, but torch.func knows no mask there that has more axes.
        fill = scores.masked_fill if follower(hidden) else scores.masked_fill_
        scores = fill(hidden, -torch.inf)
    a = F.dropout(torch.softmax(scale * scores, dim=-1), dropout, training=dropout > 0)
    if leaking and hidden is not None and a.dtype == torch.bfloat16:
        return _apart(a, v), a if weights else None
    out = torch.einsum("bhls,bshd->blhd", a, v)
    return out, a if weights else None


def _apart(a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The product of weights and values, with rows of NaN kept out of it and put back after it."""
    lost = torch_leak.lost_rows(a)
    out = torch.einsum("bhls,bshd->blhd", a.masked_fill(lost, 0.0), v)
    return out.masked_fill(lost.transpose(1, 2), torch.nan)


def backend(device: str) -> Backend:
    """The einsum path on one device."""
    torch_arrays.require_device("torch-einsum", device)
    leaking = device == "cpu" and torch_leak.leaks()
    return Backend(
        name="torch-einsum",
        version=torch.__version__,
        attend=functools.partial(attend, leaking=leaking),
        arrays=torch_arrays.ARRAYS,
        device=device,
        seed=torch_arrays.seed,
        precision={dtype: stored(dtype) for dtype in DTYPES},
        masked_rows="nan",
        lacks={"wide_scores": NARROW_SCORES},
        deviates={"N4": torch_leak.LEAK} if leaking else {},
    )
