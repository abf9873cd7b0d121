"""A call of the layer by its arrays, for trials that make their own data from other data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fullattention.backends.errors import UnsupportedError
from fullattention.backends.interface import MaskedRows, Sizes, dtype_name
from fullattention.conformance import layouts, masks
from fullattention.conformance.bound import Expected, attention_bound
from fullattention.conformance.case import Answer, Case, Refused, answer, as_mask, inputs
from fullattention.conformance.subject import Subject
from fullattention.layer import resolve_scale
from fullattention.machine.threads import one_blas_thread


@dataclass(frozen=True, kw_only=True)
class Call:
    """Everything that one call of the layer is given."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    mask: np.ndarray | None = None
    mask_flag: bool = False
    scale: float | None = None
    masked_rows: MaskedRows = "nan"
    weights: bool = False
    dropout: float = 0.0
    training: bool = False
    layout: str = "contiguous"
    factor: int = 5
    options: Mapping[str, np.ndarray] = field(default_factory=dict)
    """`tau` and `delta`, where given."""

    @property
    def shape(self) -> Sizes:
        """The sizes of the axes, keys and columns as the values have them."""
        B, L, H, E = self.q.shape
        _, S, _, D = self.v.shape
        return Sizes(B, L, S, H, E, D)

    @property
    def dtype(self) -> str:
        """Name of the inputs' dtype."""
        return dtype_name(self.q)

    @property
    def hidden(self) -> np.ndarray | None:
        """What the contract hides: four axes that broadcast to (B, H, L, S); None: nothing."""
        if not self.mask_flag:
            return None
        mask = self.mask
        if mask is None:
            mask = masks.hidden_by(masks.CAUSAL, self.shape, 0)
        return None if mask is None else mask.reshape((1,) * (4 - mask.ndim) + mask.shape)

    def but(self, **changes: Any) -> Call:
        """The same call with other values for some fields."""
        return dataclasses.replace(self, **changes)


def call_of(case: Case) -> Call:
    """The call that a case describes."""
    q, k, v = inputs(case)
    given = case.mask not in (masks.OFF, masks.CAUSAL)
    return Call(
        q=q,
        k=k,
        v=v,
        mask=masks.build(case.mask, case.shape, case.seed) if given else None,
        mask_flag=case.mask != masks.OFF,
        scale=case.scale,
        masked_rows=case.masked_rows,
        weights=case.weights,
        layout=case.layout,
    )


def ask(subject: Subject, call: Call) -> Answer:
    """What the candidate answers.

    Raises:
        Failed: what comes back is no (V, weights or None) of the right kind.
        Refused: the library cannot express the call.
        UnsupportedError: the candidate declares that it lacks what the call needs.
    """
    for need in _needs(call):
        if need in subject.lacks:
            raise UnsupportedError(subject.name, need, subject.lacks[need])
    layer = subject.build(
        mask_flag=call.mask_flag,
        factor=call.factor,
        scale=call.scale,
        attention_dropout=call.dropout,
        output_attention=call.weights,
        masked_rows=call.masked_rows,
    )
    layer.train(call.training)
    try:
        arrays = [
            layouts.place(subject.arrays, x, call.layout, subject.device)
            for x in (call.q, call.k, call.v)
        ]
    except ValueError as error:
        raise Refused(str(error)) from error
    mask = None if call.mask is None else as_mask(subject, call.mask)
    options = {name: subject.arrays.put(x, subject.device) for name, x in call.options.items()}
    case = Case(shape=call.shape, dtype=call.dtype, weights=call.weights)
    return answer(subject, case, layer(*arrays, mask, **options))


def _needs(call: Call) -> Iterator[str]:
    """Capabilities, and arguments that a function of q, k and v does not have."""
    in_use = call.dropout > 0 and call.training
    for need, used in (
        ("mask", call.mask_flag and call.mask is not None),
        ("causal", call.mask_flag and call.mask is None and call.shape.L > 1),
        ("scale", call.scale is not None),
        ("weights", call.weights),
        ("dropout", in_use),
        (f"masked_rows={call.masked_rows}", True),
        ("arguments", bool(call.options) or call.factor != 5),
        ("arguments", call.mask is not None and not call.mask_flag),
        ("arguments", (call.training or call.dropout > 0) and not in_use),
    ):
        if used:
            yield need


@one_blas_thread()
def expected_of(subject: Subject, call: Call) -> Expected:
    """The oracle's results for a call without dropout, and the candidate's bounds on them."""
    return attention_bound(
        call.q,
        call.k,
        call.v,
        hidden=call.hidden,
        scale=resolve_scale(call.scale, call.shape.E),
        precision=subject.precision[call.dtype],
        masked_rows=call.masked_rows,
    )
