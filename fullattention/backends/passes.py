"""What the passes of kernels with their own backward pass are told, whatever library they serve."""

from __future__ import annotations

from typing import NamedTuple

from fullattention.backends.interface import Array, Sizes


class Options(NamedTuple):
    """What both passes are told besides their arrays."""

    causal: bool
    scale: float
    dropout: float
    seed: int
    """Which weights are dropped depends on it and on the weight's place alone, so that the
    backward pass can drop the same ones. 0 where nothing is dropped."""


def sizes_of(q: Array, v: Array) -> Sizes:
    """The sizes of a call with q (B, L, H, E) and v (B, S, H, D)."""
    B, L, H, E = q.shape
    _, S, _, D = v.shape
    return Sizes(B, L, S, H, E, D)
