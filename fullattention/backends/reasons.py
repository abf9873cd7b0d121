"""Reasons that several backends give for what they lack, or where they deviate."""

from __future__ import annotations

ONCE = "its backward kernels have no derivative"
"""Why kernels that bring their own backward pass lack double_backward."""

UNORDERED = "blocks of its backward kernels on CUDA add to one sum in any order"
"""Why kernels for CUDA lack deterministic_gradient, unless torch is told to use others."""

NARROW_SCORES = "scores are stored in the input's dtype"
"""Why a backend lacks wide_scores."""

CLEAN = "a fully hidden row's NaN is filled into V afterwards, so its batch entry's dv stays finite"
"""How G3 is deviated from where fully hidden rows come out as zeros."""


def leak(adder: str) -> str:
    """How N4 is deviated from by who hides a score by adding to it."""
    return f"a NaN or infinite score in a hidden position reaches its row: {adder} adds -inf to it"
