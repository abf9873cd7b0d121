"""Inputs whose result is exact in every precision: the output is the address that was read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fullattention.backends.interface import Sizes
from fullattention.conformance.data import Inputs, numpy_dtype

GATHER_SCALE = 512.0
"""Apart from the right key, every key scores at least 2 less; times this, exp gives exactly 0."""


def gather(sizes: Sizes, dtype: str, axis: str, seed: int, *, size: float = 1.0) -> Inputs:
    """q, k, v with which each query reads one key, and the values hold their own index.

    Keys are the bits of a number as +-`size`, so S is at most 2^E.

    Args:
        sizes: of the call, which takes `GATHER_SCALE`.
        dtype: of the arrays.
        axis: which index of v the values hold: one of "bshd".
        seed: of the choice of keys.
        size: of the features of queries and keys.
    """
    B, L, S, H, E, D = sizes
    rng = np.random.default_rng(seed)
    numbers = np.stack([[rng.permutation(S) for _ in range(H)] for _ in range(B)]).swapaxes(1, 2)
    keys = size * np.where((numbers[..., None] >> np.arange(E)) & 1, 1.0, -1.0)
    chosen = rng.integers(S, size=(B, L, H))
    queries = np.take_along_axis(keys, chosen[..., None], axis=1)
    values = np.indices((B, S, H, D))["bshd".index(axis)]
    kind = numpy_dtype(dtype)
    return queries.astype(kind), keys.astype(kind), values.astype(kind)


def parity(sizes: Sizes, dtype: str) -> Inputs:
    """q, k, v with equal weights and values of +-1, a column for each bit of s.

    S is a power of two, so the mean of each column of its bits is 0, and of columns beyond them 1;
    a key that is lost, doubled or misread moves a mean by 1 / S.
    """
    B, L, S, H, E, D = sizes
    kind = numpy_dtype(dtype)
    signs = np.where((np.arange(S)[:, None] >> np.arange(D)) & 1, -1.0, 1.0).astype(kind)
    values = np.broadcast_to(signs[None, :, None, :], (B, S, H, D)).copy()
    return np.zeros((B, L, H, E), kind), np.ones((B, S, H, E), kind), values


def identity(
    sizes: Sizes, dtype: str, *, copies: int = 1, keys: Sequence[int] | None = None
) -> np.ndarray:
    """V (B, S, H, copies * keys) with which V holds the weights of some keys, or of all.

    They come `copies` times side by side.
    """
    B, _, S, H, _, _ = sizes
    held = np.arange(S) if keys is None else np.asarray(keys)
    columns = np.tile(np.arange(S)[:, None] == held, copies).astype(numpy_dtype(dtype))
    return np.broadcast_to(columns[None, :, None, :], (B, S, H, columns.shape[1]))
