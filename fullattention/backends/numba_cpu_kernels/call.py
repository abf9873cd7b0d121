"""What a kernel is told: where the arrays lie, how they are laid out, and what to compute."""

from __future__ import annotations

from typing import NamedTuple


class Call(NamedTuple):
    """Integers only, so that Numba takes it as a plain tuple within a microsecond.

    Addresses of arrays, 0 for those that are absent. Strides are in bytes. Results are
    contiguous: V and its gradient (B, L, H, D), weights and theirs (B, H, L, S).
    """

    q: int
    k: int
    v: int
    hidden: int
    out: int
    weights: int
    g_out: int
    g_weights: int
    d_q: int
    d_k: int
    d_v: int
    seed: int
    H: int
    L: int
    S: int
    E: int
    D: int
    q_b: int
    q_l: int
    q_h: int
    q_e: int
    k_b: int
    k_s: int
    k_h: int
    k_e: int
    v_b: int
    v_s: int
    v_h: int
    v_d: int
    hidden_b: int
    hidden_h: int
    hidden_l: int
    hidden_s: int
    pairs: int
    """B * H."""
    chunk: int
    """What is taken at a time: queries of one pair by `rows`, of each lane's pair by `lanes`; heads
    of a batch element by `wide`."""
    kind: int
    """How numbers are stored, as `memory` counts it."""
    size: int
    """Bytes of a stored number."""
    causal: int
    threshold: int
    """A weight is dropped where its 32 random bits are below this; 0 drops nothing."""


class Factors(NamedTuple):
    """Numbers of the kind that is computed with."""

    binary: float
    """|scale| * log2(e), up to a power of two: turns differences of scores into exponents of 2."""
    sign: float
    """Sign of the scale times that power of two; it multiplies queries or scores."""
    scale: float
    keep: float
    """What kept weights are multiplied by: 1 / (1 - p)."""
