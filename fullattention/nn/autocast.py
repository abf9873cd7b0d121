"""What torch.autocast makes of a call whose tensors come in several dtypes."""

from __future__ import annotations

import torch

CAST = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""What autocast casts before a product; float64 it leaves alone."""


def in_one_dtype(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values as torch's own products take them where autocast is on.

    Those of one dtype stay as they are, for the backend to deal with; so do those that autocast
    would not cast, for the layer to refuse.
    """
    given = (queries, keys, values)
    dtypes = [getattr(array, "dtype", None) for array in given]
    if dtypes[0] is dtypes[1] is dtypes[2] or not CAST.issuperset(dtypes):
        return given
    kind = queries.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return given
    dtype = torch.get_autocast_dtype(kind)
    return queries.to(dtype), keys.to(dtype), values.to(dtype)
