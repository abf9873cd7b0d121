"""The layer as Time-Series-Library runs it: einsum, mask, scale, softmax, dropout, einsum."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from fullattention.backends import torch_arrays
from fullattention.backends.interface import Array, Backend
from fullattention.backends.precision import DTYPES, stored


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
    """Attend with every step stored in the input's dtype; see `interface.Attend`."""
    scores = torch.einsum("blhe,bshe->bhls", q, k)
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    if hidden is not None:
        scores = scores.masked_fill_(hidden, -torch.inf)
    a = F.dropout(torch.softmax(scale * scores, dim=-1), dropout, training=dropout > 0)
    out = torch.einsum("bhls,bshd->blhd", a, v)
    return out, a if weights else None


def backend(device: str) -> Backend:
    """The einsum path on one device."""
    torch_arrays.require_device("torch-einsum", device)
    return Backend(
        name="torch-einsum",
        version=torch.__version__,
        attend=attend,
        arrays=torch_arrays.ARRAYS,
        device=device,
        seed=torch_arrays.seed,
        precision={dtype: stored(dtype) for dtype in DTYPES},
        masked_rows="nan",
        lacks={"wide_scores": "scores are stored in the input's dtype"},
    )
