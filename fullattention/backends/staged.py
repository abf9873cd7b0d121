"""Attention in three stages that a library brings: product, masked softmax, product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fullattention.backends.interface import Array, Attend, Shape, dtype_name
from fullattention.backends.precision import accumulator


class Softmax(Protocol):
    """The masked softmax of the scores, and dropout."""

    def __call__(
        self,
        scores: Array,
        weights: Array,
        *,
        hidden: Array | None,
        causal: bool,
        scale: float,
        dropout: float,
        uniform: Array | None,
    ) -> None:
        """Fill `weights` from `scores`, which it may overwrite and which may be `weights` itself.

        Args:
            scores: (B, H, L, S), contiguous, in the accumulator's dtype.
            weights: (B, H, L, S), contiguous, in any dtype.
            hidden: None, or boolean and broadcastable to (B, H, L, S), any strides.
            causal: whether keys s > l are hidden.
            scale: factor on the scores.
            dropout: probability of dropping a weight.
            uniform: numbers in [0, 1) that decide which, as `scores` in shape; None: nothing drops.
        """


@dataclass(frozen=True, kw_only=True)
class Stages:
    """What a library does of the work."""

    empty: Callable[[Shape, str], Array]
    """An array of a dtype with any contents."""
    multiply: Callable[[Array, Array, Array], None]
    """Fills the third array with the matrix products of the first two, for each batch entry and
    head; any strides, sums in the accumulator's dtype, one rounding to the third array's."""
    softmax: Softmax
    uniform: Callable[[Shape], Array]
    """Random numbers in [0, 1)."""


def attend_in(stages: Stages) -> Attend:
    """The three stages as one function; see `interface.Attend`.

    Scores have the accumulator's dtype, so that those of half types neither overflow nor round;
    weights have the input's. Nothing is transposed in memory, and weights take the scores' place.
    """

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
        B, L, H, _ = q.shape
        _, S, _, D = v.shape
        dtype = dtype_name(q)
        inside = accumulator(dtype)
        scores = stages.empty((B, H, L, S), inside)
        stages.multiply(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1), scores)
        a = scores if inside == dtype else stages.empty((B, H, L, S), dtype)
        stages.softmax(
            scores,
            a,
            hidden=hidden,
            causal=causal,
            scale=scale,
            dropout=dropout,
            uniform=stages.uniform((B, H, L, S)) if dropout else None,
        )
        out = stages.empty((B, L, H, D), dtype)
        stages.multiply(a, v.transpose(0, 2, 1, 3), out.transpose(0, 2, 1, 3))
        return out, a if weights else None

    return attend
