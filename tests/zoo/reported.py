"""Small candidates that show troubles which users of other libraries reported."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fullattention.backends import Backend
from fullattention.backends.interface import Array
from tests.zoo.attending import Call, Result, hidden_keys, right
from tests.zoo.faulty.making import on_arrays, then
from tests.zoo.layers import UpstreamLayer, triangular_causal_mask
from tests.zoo.memory import contiguous_from, owner
from tests.zoo.specimen import backend


def grid_overflows(call: Call) -> Result:
    """The batch sits on an axis of the grid that holds 65 535 blocks."""
    if call.q.shape[0] > 65535:
        raise RuntimeError("CUDA error: invalid configuration argument")
    return right(call)


def innermost_taken_for_dense(x: Array) -> Array:
    """Only where the innermost stride is another one, strides are ignored."""
    return x if x.strides[-1] == x.itemsize else contiguous_from(x)


def from_pointer(x: Array) -> Array:
    """A kernel is handed an address and no strides; past the memory's end this one starts anew."""
    memory = owner(x).reshape(-1)
    first = (x.ctypes.data - memory.ctypes.data) // x.itemsize
    return memory.view(x.dtype).take(first + np.arange(x.size), mode="wrap").reshape(x.shape)


def entries_in_turn(call: Call) -> Call:
    """Pairs of an entry and a head take the entries' masks in turn, as after `repeat`."""
    hidden = call.hidden
    if hidden is None or hidden.shape[1] != 1:
        return call
    B, H = call.q.shape[0], call.q.shape[2]
    entry = (np.arange(B)[:, None] * H + np.arange(H)) % len(hidden)
    return call.but(hidden=hidden[entry, 0])


def one_mask_read_for_each_head(call: Call) -> Call:
    """Steps from head to head in a mask (B, 1, L, S) that has one for all."""
    if call.hidden is None or 1 in call.hidden.shape[2:]:
        return call
    return entries_in_turn(call)


class FilledWithMinus1e9(UpstreamLayer):
    """A fill value that half precision cannot hold."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        q, k, v, mask = arguments
        scores = torch.einsum("blhe,bshe->bhls", q, k)
        if self.mask_flag:
            mask = triangular_causal_mask(len(q), q.shape[1], q.device) if mask is None else mask
            scores = scores.masked_fill(mask.mask, -1e9)
        a = self.dropout(torch.softmax(scores * (self.scale or q.shape[-1] ** -0.5), -1))
        out = torch.einsum("bhls,bshd->blhd", a, v).contiguous()
        return out, a if self.output_attention else None


class ThroughNumpy(UpstreamLayer):
    """Tensors take a way through NumPy, which holds no bfloat16 and no gradient."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        q, k, v = (torch.from_numpy(x.numpy()) for x in arguments[:3])
        mask = arguments[3]
        given = None if mask is None else SimpleNamespace(mask=torch.from_numpy(mask.mask.numpy()))
        return super().forward(q, k, v, given, **options)


def guarded_by_comparison(numba: Any, *, fastmath: bool) -> Backend:
    """Rows by a compiled loop that answers 0 where its maximum is -infinity.

    With `fastmath` the compiler assumes that there is no infinity, and drops that line.
    """

    def row(z: Array, v: Array) -> Array:
        top = -math.inf
        for s in range(z.size):
            if not z[s] <= top:  # NaN too
                top = z[s]
        out = np.zeros(v.shape[1])
        if top == -math.inf:
            return out
        total = 0.0
        for s in range(z.size):
            w = math.exp(z[s] - top)
            total += w
            out += w * v[s]
        return out / total

    compiled: Callable[[Array, Array], Array] = numba.njit(fastmath=fastmath, error_model="numpy")(
        row
    )

    def attend(call: Call) -> Result:
        q, k, v = (x.transpose(0, 2, 1, 3).astype(np.float64) for x in (call.q, call.k, call.v))
        z = call.scale * (q @ k.swapaxes(-1, -2))
        hidden = hidden_keys(call)
        z = z if hidden is None else np.where(hidden, -np.inf, z)
        out = np.empty((*z.shape[:-1], v.shape[-1]))
        for b, h, row in np.ndindex(z.shape[:-1]):
            out[b, h, row] = compiled(z[b, h, row], v[b, h])
        return out.transpose(0, 2, 1, 3).astype(call.q.dtype), None

    return backend(
        "guarded",
        attend,
        dtypes=("float32",),
        masked_rows="zero",
        lacks=dict.fromkeys(("weights", "dropout"), "the loop returns V alone"),
    )


GRID_OVERFLOWS = backend("grid-overflows", grid_overflows)
INNERMOST_DENSE = backend("innermost-dense", on_arrays(innermost_taken_for_dense))
POINTER_ONLY = backend("pointer-only", on_arrays(from_pointer))
MASK_BY_HEAD = backend("mask-by-head", then(one_mask_read_for_each_head))
