"""The layer as Time-Series-Library runs it: einsum, mask, scale, softmax, dropout, einsum."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from fullattention.backends import torch_arrays
from fullattention.backends.interface import Array, Backend
from fullattention.backends.precision import DTYPES, stored
from fullattention.backends.torch_followers import follower

LEAK = (
    "this machine's bfloat16 product carries NaN into the row before where E is no multiple of 32"
)


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
    leaking: bool = False,
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


@functools.cache
def leaks() -> bool:
    """Whether this machine's bfloat16 product carries a row's NaN into the row before.

    oneDNN's kernels for AMX tiles do so where the summed axis ends within a tile.
    """
    a = torch.zeros((1, 40, 33), dtype=torch.bfloat16)
    a[0, 3] = torch.nan
    product = torch.bmm(a, torch.ones((1, 33, 8), dtype=torch.bfloat16))
    return bool(product[0, 2].isnan().any())


def _apart(a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The product of weights and values, with rows of NaN kept out of it and put back after it.

    One NaN among the scores makes the whole row NaN, so the first weight tells.
    """
    lost = a[..., :1].isnan()
    out = torch.einsum("bhls,bshd->blhd", a.masked_fill(lost, 0.0), v)
    return out.masked_fill(lost.transpose(1, 2), torch.nan)


def backend(device: str) -> Backend:
    """The einsum path on one device."""
    torch_arrays.require_device("torch-einsum", device)
    leaking = device == "cpu" and leaks()
    return Backend(
        name="torch-einsum",
        version=torch.__version__,
        attend=functools.partial(attend, leaking=leaking),
        arrays=torch_arrays.ARRAYS,
        device=device,
        seed=torch_arrays.seed,
        precision={dtype: stored(dtype) for dtype in DTYPES},
        masked_rows="nan",
        lacks={"wide_scores": "scores are stored in the input's dtype"},
        deviates={"N4": LEAK} if leaking else {},
    )
