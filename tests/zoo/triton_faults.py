"""A small attention kernel in Triton, and the ways in which such kernels go wrong.

One program owns a tile of queries of one head. A fault is one deviation from that. A module of its
own: the interpreter must be chosen before Triton is imported.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from fullattention.backends import Backend, torch_arrays, triton_fused
from fullattention.backends.interface import broadcast_strides
from fullattention.backends.triton_kernels.kernels import (
    exponentials,
    load_rows,
    masked_scores,
    product,
    store_rows,
)
from fullattention.backends.triton_kernels.simulator import simulating

FAULTS = {
    "last-keys-dropped": "C5",
    "padding-attended": "C5",
    "sums-not-faded": "C5",
    "last-queries-dropped": "C5",
    "grid-cut-at-its-limit": "C5",
    "diagonal-tile-not-masked": "M2",
    "diagonal-tile-skipped": "M2",
    "mask-stride-of-heads-ignored": "M4",
    "mask-stride-of-keys-ignored": "M4",
}
"""Fault -> the requirement of which a check must fail."""

TILE = 4
"""Queries and keys; compiled products take no fewer than 16, the interpreter any."""

LIMIT = 16
"""Programs of the grid that is cut."""


@triton.jit
def kernel(
    q,
    k,
    v,
    hidden,
    out,
    H,
    L,
    S,
    scale,
    E: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    CAUSAL: tl.constexpr,
    FAULT: tl.constexpr,
):
    tiles, program = tl.cdiv(L, TILE), tl.program_id(0)
    head = (program // tiles).to(tl.int64) + tl.arange(0, 1)
    exists = head >= 0
    queries = program % tiles * TILE + tl.arange(0, TILE)
    last = L
    if FAULT == "last-queries-dropped":
        last = L // TILE * TILE
    asked = exists[:, None] & (queries < last)[None, :]
    x = load_rows(q, head, H, queries, asked, E, WIDTH)
    top = tl.full((1, TILE), float("-inf"), tl.float32)
    mass = tl.zeros((1, TILE), tl.float32)
    total = tl.zeros((1, TILE, WIDTH), tl.float32)
    end = S
    if CAUSAL:
        end = tl.minimum(S, (program % tiles + 1) * TILE)
        if FAULT == "diagonal-tile-skipped":
            end -= TILE
    if FAULT == "last-keys-dropped":
        end = end // TILE * TILE
    for first in range(0, end, TILE):
        keys = first + tl.arange(0, TILE)
        there = exists[:, None] & (keys < S)[None, :]
        pairs = asked[:, :, None] & there[:, None, :]
        if FAULT == "padding-attended":
            pairs = asked[:, :, None] & exists[:, None, None] & (keys >= 0)[None, None, :]
        y = load_rows(k, head, H, keys, there, E, WIDTH)
        values = load_rows(v, head, H, keys, there, D, WIDTH)
        masked: tl.constexpr = CAUSAL and FAULT != "diagonal-tile-not-masked"
        scores, _ = masked_scores(x, y, hidden, head, H, queries, keys, pairs, scale, masked)
        highest = tl.maximum(top, tl.max(scores, axis=2))
        p = exponentials(scores, highest)
        fade = tl.exp(top - tl.where(highest == float("-inf"), 0.0, highest))
        if FAULT == "sums-not-faded":
            fade = tl.full((1, TILE), 1.0, tl.float32)
        mass = mass * fade + tl.sum(p, axis=2)
        top = highest
        total = product(p, values, total * fade[:, :, None])
    store_rows(out, total / mass[:, :, None], head, H, queries, asked, D)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    fault: str,
    hidden: torch.Tensor | None,
    causal: bool,
    scale: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    B, L, H, E = q.shape
    D = v.shape[3]
    out = torch.zeros((B, L, H, D))
    programs = B * H * -(-L // TILE)
    with simulating():
        kernel[(min(programs, LIMIT) if fault == "grid-cut-at-its-limit" else programs,)](
            *((array, *array.stride()) for array in (q, k, v)),
            _mask(hidden, fault),
            (out, *out.stride()),
            *(H, L, k.shape[1], scale),
            *(E, D, triton.next_power_of_2(max(E, D)), TILE, causal, fault),
        )
    return out, None


def _mask(hidden: torch.Tensor | None, fault: str) -> tuple[Any, ...] | None:
    if hidden is None:
        return None
    steps = list(broadcast_strides(tuple(hidden.shape), hidden.stride()))
    for axis, name in ((1, "heads"), (3, "keys")):
        if fault == f"mask-stride-of-{name}-ignored":
            steps[axis] = 0
    return (hidden, *steps)


def backend(fault: str) -> Backend:
    """The small kernel with a fault; without one where it is empty."""
    return Backend(
        name=f"triton-{fault or 'right'}",
        attend=functools.partial(attend, fault=fault),
        arrays=torch_arrays.ARRAYS,
        precision={"float32": triton_fused.precision("float32")},
        lacks=dict.fromkeys(
            ("weights", "dropout", "gradient", "double_backward"), "it is a specimen"
        ),
    )
