"""What CPUs with AMX tiles do to torch's bfloat16 products, and how backends work around it."""

from __future__ import annotations

import functools

import torch

LEAK = (
    "this machine's bfloat16 product carries NaN into the row before where E is no multiple of 32"
)


@functools.cache
def leaks() -> bool:
    """Whether this machine's bfloat16 product carries a row's NaN into the row before.

    oneDNN's kernels for AMX tiles do so where the summed axis ends within a tile.
    """
    a = torch.zeros((1, 40, 33), dtype=torch.bfloat16)
    a[0, 3] = torch.nan
    product = torch.bmm(a, torch.ones((1, 33, 8), dtype=torch.bfloat16))
    return bool(product[0, 2].isnan().any())


def weighted_sums(a: torch.Tensor, v: torch.Tensor, *, apart: bool) -> torch.Tensor:
    """The batched product of weights (N, L, S) and values (N, S, D).

    `apart` keeps rows of NaN out of it, and puts them back after it.
    """
    if not apart:
        return torch.bmm(a, v)
    lost = lost_rows(a)
    return torch.bmm(a.masked_fill(lost, 0.0), v).masked_fill(lost, torch.nan)


def lost_rows(a: torch.Tensor) -> torch.Tensor:
    """Rows (..., 1) of weights that are NaN.

    One NaN among the scores makes the whole row NaN, so the first weight tells.
    """
    return a[..., :1].isnan()
