"""Candidates with so narrow a fault that one requirement of the contract alone forbids it."""

from __future__ import annotations

from typing import Any

import numpy as np

from fullattention.backends.interface import Array
from tests.zoo.attending import Call, Plain, Result, product, right
from tests.zoo.faulty.determinism import in_any_order
from tests.zoo.faulty.making import fault, if_, keys_dropped_from, on_arrays
from tests.zoo.faulty.precision import in_float32
from tests.zoo.layers import NumpyLayer
from tests.zoo.reported import innermost_taken_for_dense
from tests.zoo.specimen import Specimen


def first_keys_with_weights(call: Call) -> Result:
    """The path that returns weights reads no key beyond the 290th."""
    return keys_dropped_from(290)(call) if call.weights else right(call)


def racing(call: Call) -> Result:
    """More than one block of queries and of keys are summed in the order in which they end."""
    blocks = min(call.q.shape[1], call.k.shape[1]) > 32
    return Plain(product=in_any_order if blocks else product)(call)


def padding_by_80(call: Call) -> Result:
    """A padding mask, one row per batch entry, lowers few scores by 80 where it hides."""
    hidden = call.hidden
    few = call.q.shape[1] == 5 and call.k.shape[1] == 7
    if hidden is None or not few or hidden.shape[1:3] != (1, 1) or len(hidden) == 1:
        return right(call)
    return Plain(
        hide=lambda z, hidden: z,
        scale=lambda z, c: z * z.dtype.type(c) - 80 * hidden.astype(z.dtype),
    )(call)


def hidden_row_spoils_tile(call: Call) -> Result:
    """Beyond the first 16 queries, a fully hidden row makes its tile of 16 NaN."""
    out, a = right(call)
    bad = np.isnan(out).any((0, 2, 3))
    tile = np.repeat(np.add.reduceat(bad, np.arange(0, len(bad), 16)) > 0, 16)[: len(bad)]
    tile[:16] = False
    if call.hidden is not None:
        out[:, tile] = np.nan
    return out, a


def coarse_values(a: Array, v: Array) -> Array:
    """Values of more than 512 keys are rounded to 16 bits where there are few queries."""
    if v.shape[-2] <= 512 or a.shape[-2] > 24:
        return product(a, v)
    mantissa, exponent = np.frexp(v)
    return product(a, np.ldexp(np.round(mantissa * 2**16) / 2**16, exponent).astype(v.dtype))


def weights_of_their_tile(call: Call) -> Result:
    """Returned weights are normalised within tiles of 512 keys."""
    out, a = right(call)
    for tile in range(0, 0 if a is None else a.shape[-1], 512):
        part = a[..., tile : tile + 512]
        if part.shape[-1] < a.shape[-1]:
            part /= part.sum(-1, keepdims=True)
    return out, a


def zeros_beside_nan(call: Call) -> Result:
    """In a row with a NaN among its scores, the weights of the other keys are 0; V is right."""
    out, a = right(call)
    if a is not None:
        spoilt = np.isnan(call.k).any(-1).swapaxes(1, 2)[:, :, None]
        a[np.isnan(a) & ~spoilt & spoilt.any(-1, keepdims=True)] = 0
    return out, a


def narrow(name: str, reason: str, violates: str, method: Any, **fields: Any) -> Specimen:
    return fault("narrow", name, reason, violates, method, **fields)


class ScaleKept(NumpyLayer):
    """1 / sqrt(E) of a call with few features becomes the layer's scale."""

    def factor_on_scores(self, E: int, unused: dict[str, Any]) -> float:
        factor = super().factor_on_scores(E, unused)
        if E < 8:
            self.scale = factor
        return factor


class MaskCheckedAlways(NumpyLayer):
    """A mask that does not fit is refused although mask_flag is off."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        q, k, _, mask = arguments
        if mask is not None:
            shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
            np.broadcast_to(getattr(mask, "mask", mask), shape)
        return super().__call__(*arguments, **named)


class WeightsNotContiguous(NumpyLayer):
    """Weights are a view of (B, L, H, S)."""

    def returned(self, out: Array, a: Array | None) -> Any:
        if a is not None:
            a = np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)
        return super().returned(out, a)


def layer(candidate: type, violates: str) -> Specimen:
    return Specimen(
        name=candidate.__name__,
        kind="narrow",
        reason=candidate.__doc__ or "",
        candidate=candidate,
        violates=(violates,),
    )


NARROW = (
    narrow(
        "weights-path-short",
        "asking for weights takes a path that reads 290 keys",
        "C2",
        first_keys_with_weights,
    ),
    narrow(
        "innermost-taken-for-dense",
        "where features lie apart, strides are ignored",
        "C4",
        on_arrays(innermost_taken_for_dense),
    ),
    narrow("race-of-blocks", "blocks are summed in any order, undeclared", "C9", racing),
    layer(ScaleKept, "S1"),
    layer(MaskCheckedAlways, "M1"),
    narrow(
        "padding-by-80",
        "a padding mask of 5 queries and 7 keys adds -80 to the scores",
        "M5",
        padding_by_80,
        masked_rows=None,
    ),
    narrow(
        "hidden-row-spoils-tile",
        "a fully hidden row makes its tile of queries NaN, but for the first",
        "M6",
        hidden_row_spoils_tile,
    ),
    narrow(
        "long-values-coarse",
        "values of many keys are rounded to 16 bits for few queries",
        "N1",
        Plain(product=coarse_values),
        dtypes=("float32",),
    ),
    narrow(
        "features-128-in-float32",
        "float64 with 128 features and 32 columns takes a float32 kernel",
        "N5",
        if_(lambda c: c.q.shape[-1] == 128 and c.v.shape[-1] == 32, in_float32),
        dtypes=("float64",),
    ),
    narrow(
        "zeros-beside-nan",
        "weights beside that of a NaN key are 0",
        "N4",
        zeros_beside_nan,
    ),
    layer(WeightsNotContiguous, "W1"),
    narrow(
        "weights-of-their-tile",
        "returned weights are normalised within tiles of 512 keys",
        "W2",
        weights_of_their_tile,
    ),
)
