"""What the passes of kernels with their own backward pass are told, whatever library they serve."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Options:
    """What both passes are told besides their arrays."""

    causal: bool
    scale: float
    dropout: float
    seed: int
    """Which weights are dropped depends on it and on the weight's place alone, so that the
    backward pass can drop the same ones. 0 where nothing is dropped."""
