"""A case: one call described by a line of text, what it must give, and how it is judged."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from fullattention.backends.interface import Array, MaskedRows, Sizes, dtype_name
from fullattention.backends.precision import Precision
from fullattention.conformance import data, layouts, masks
from fullattention.conformance.bound import Expected, expected_within, ratios
from fullattention.conformance.oracle import Exact, exact_attention
from fullattention.conformance.poison import POISONS
from fullattention.conformance.subject import Layer, Subject
from fullattention.layer import resolve_scale
from fullattention.machine.threads import one_blas_thread

DISTINCT = Sizes(2, 5, 7, 3, 11, 13)
"""Every axis another length, so that no two can be mistaken for each other."""


class Failed(Exception):
    """A candidate is wrong; the message says how.

    Attributes:
        ratio: the largest error over its bound; None where none is compared, or it is infinite.
    """

    def __init__(self, message: str, ratio: float | None = None) -> None:
        super().__init__(message)
        self.ratio = ratio


class Refused(Exception):
    """A candidate's library cannot express a case; the message says why."""


class NotHere(Exception):
    """This machine cannot try a case; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of the layer. Its text names everything that differs from the defaults."""

    shape: Sizes = DISTINCT
    dtype: str = "float32"
    data: str = "normal"
    poison: str = ""
    mask: str = masks.OFF
    scale: float | None = None
    weights: bool = False
    layout: str = "contiguous"
    on: str = "qkv"
    """Which of q, k, v have that layout; the others are contiguous."""
    masked_rows: MaskedRows = "nan"
    seed: int = 0

    def __str__(self) -> str:
        shape = ",".join(map(str, self.shape))
        changed = [
            f"{name}={getattr(self, name)}"
            for name, default in _DEFAULTS.items()
            if getattr(self, name) != default
        ]
        return " ".join([f"shape={shape}", f"dtype={self.dtype}", *changed])

    def but(self, **changes: Any) -> Case:
        """The same case with other values for some fields."""
        return dataclasses.replace(self, **changes)

    @property
    def values_only(self) -> Case:
        """The same without what changes no number: all cases that share it have one oracle."""
        if self.layout in layouts.EXPANDED_AXIS:  # then values are equal
            return self.but(weights=False)
        return self.but(weights=False, layout="contiguous", on="qkv")


_DEFAULTS = {
    field.name: field.default
    for field in dataclasses.fields(Case)
    if field.name not in ("shape", "dtype")
}


@dataclass(frozen=True)
class Answer:
    """What a candidate returned, as NumPy arrays."""

    out: np.ndarray
    weights: np.ndarray | None


@functools.lru_cache(maxsize=256)
def inputs(case: Case) -> data.Inputs:
    """Read-only q, k, v of a case, in its dtype."""
    arrays = list(data.draw(case.data, case.shape, case.dtype, case.seed))
    axis = layouts.EXPANDED_AXIS.get(case.layout)
    for index, name in enumerate("qkv"):
        if axis is not None and name in case.on:
            first = np.take(arrays[index], [0], axis)
            arrays[index] = np.repeat(first, arrays[index].shape[axis], axis)
    if case.poison:
        POISONS[case.poison](*arrays)
    for array in arrays:
        array.flags.writeable = False
    return arrays[0], arrays[1], arrays[2]


def exact(case: Case) -> Exact:
    """The oracle's forward pass of a case."""
    return _exact(case.values_only)


@functools.lru_cache(maxsize=256)
@one_blas_thread()
def _exact(case: Case) -> Exact:
    q, k, v = inputs(case)
    hidden = masks.hidden_by(case.mask, case.shape, case.seed)
    scale = resolve_scale(case.scale, case.shape.E)
    return exact_attention(q, k, v, hidden=hidden, scale=scale, masked_rows=case.masked_rows)


def expected(case: Case, precision: Precision) -> Expected:
    """The oracle's results for a case and their bounds under a precision."""
    return _expected(case.values_only, precision)


@functools.lru_cache(maxsize=4096)  # more than the cases of the standard level
@one_blas_thread()
def _expected(case: Case, precision: Precision) -> Expected:
    return expected_within(_exact(case), precision)


def expected_of(subject: Subject, case: Case) -> Expected:
    """The oracle's results for a case and their bounds under the candidate's own precision."""
    return expected(case, subject.precision[case.dtype])


def put(subject: Subject, case: Case) -> tuple[Array, Array, Array]:
    """q, k, v of a case on the candidate's device, in the case's layout.

    Raises:
        Refused: the library cannot express the layout.
    """
    try:
        q, k, v = (
            layouts.place(
                subject.arrays,
                array,
                case.layout if name in case.on else "contiguous",
                subject.device,
            )
            for name, array in zip("qkv", inputs(case), strict=True)
        )
    except ValueError as error:
        raise Refused(str(error)) from error
    return q, k, v


def put_mask(subject: Subject, case: Case) -> Any:
    """The `attn_mask` argument of a case: None, an array, or an object that holds one."""
    if case.mask in (masks.OFF, masks.CAUSAL):
        return None
    return as_mask(subject, masks.build(case.mask, case.shape, case.seed))


def as_mask(subject: Subject, mask: np.ndarray) -> Any:
    """A mask as the candidate takes it: an array, or an object with it as its `mask`."""
    array = subject.arrays.put(mask, subject.device)
    return SimpleNamespace(mask=array) if "bare_masks" in subject.lacks else array


def layer_for(
    subject: Subject, case: Case, *, dropout: float = 0.0, training: bool = False
) -> Layer:
    """The layer that a case calls."""
    layer = subject.build(
        mask_flag=case.mask != masks.OFF,
        factor=5,
        scale=case.scale,
        attention_dropout=dropout,
        output_attention=case.weights,
        masked_rows=case.masked_rows,
    )
    layer.train(training)
    return layer


def trained_layer(subject: Subject, case: Case, p: float) -> Layer:
    """The layer that a case calls, in training with dropout p unless that is 0."""
    return layer_for(subject, case, dropout=p, training=p > 0)


def called(subject: Subject, layer: Layer, case: Case) -> Answer:
    """Call a layer on a case's arrays and mask; see `run`."""
    return answer(subject, case, layer(*put(subject, case), put_mask(subject, case)))


def judged(subject: Subject, layer: Layer, case: Case) -> float:
    """The largest error over its bound of a layer's answer to a case; see `judge`."""
    return judge(called(subject, layer, case), expected_of(subject, case))


def run(subject: Subject, case: Case, *, dropout: float = 0.0, training: bool = False) -> Answer:
    """Call the layer as a case says.

    Raises:
        Failed: what comes back is no (V, weights or None) of the right kind.
        Refused: the library cannot express the case.
    """
    layer = layer_for(subject, case, dropout=dropout, training=training)
    return called(subject, layer, case)


def answer(subject: Subject, case: Case, returned: Any) -> Answer:
    """What a layer returned, if it has the right form.

    Raises:
        Failed: it has not.
    """
    B, L, S, H, _, D = case.shape
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise Failed(f"forward returned {_kind(returned)}, not a tuple (V, weights)")
    out, weights = returned
    if (weights is not None) != case.weights:
        raise Failed(f"output_attention={case.weights} returned weights {_kind(weights)}")
    return Answer(
        out=_taken(subject, "V", out, (B, L, H, D), case.dtype),
        weights=None
        if weights is None
        else _taken(subject, "weights", weights, (B, H, L, S), case.dtype),
    )


def _taken(
    subject: Subject, name: str, array: Any, shape: tuple[int, ...], dtype: str
) -> np.ndarray:
    if not isinstance(array, subject.arrays.type):
        raise Failed(f"{name} is {_kind(array)}, not {subject.arrays.type.__qualname__}")
    if tuple(array.shape) != shape:
        raise Failed(f"{name} has shape {tuple(array.shape)}, expected {shape}")
    if dtype_name(array) != dtype:
        raise Failed(f"{name} has dtype {dtype_name(array)}, expected {dtype}")
    return subject.arrays.take(array)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__qualname__}"


def check_case(subject: Subject, case: Case) -> float:
    """The largest error over its bound in V and, where asked for, in the weights.

    Raises:
        Failed: it exceeds 1, or NaN and infinities are elsewhere than the oracle's.
    """
    return judge(run(subject, case), expected_of(subject, case))


def judge(got: Answer, want: Expected) -> float:
    """The largest error over its bound.

    Raises:
        Failed: it exceeds 1.
    """
    ratio = compare("V", "blhd", got.out, want.out, want.out_bound)
    if got.weights is not None:
        ratio = max(
            ratio,
            compare("weights", "bhls", got.weights, want.weights, want.weights_bound),
        )
    return ratio


def compare(
    name: str, axes: str, got: np.ndarray, want: np.ndarray, bound: np.ndarray | float
) -> float:
    """The largest error over its bound.

    Raises:
        Failed: it exceeds 1; the message holds the first wrong element and the worst.
    """
    got = np.asarray(got, np.float64)
    bound = np.broadcast_to(bound, want.shape)
    ratio = ratios(got, want, bound)
    wrong = ~(ratio <= 1)
    worst = float(ratio.max(initial=0.0))
    if wrong.any():
        misplaced = ~np.isfinite(ratio) & ~(np.isfinite(got) & np.isfinite(want))
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        allowed = f", allowed error {bound[first]:.2g}" if np.isfinite(want[first]) else ""
        place = ", ".join(f"{axis}={i}" for axis, i in zip(axes, first, strict=True))
        raise Failed(
            f"{name}: {wrong.sum()} of {wrong.size} elements wrong; first at {place}: "
            f"got {got[first]:.9g}, expected {want[first]:.9g}{allowed}; "
            f"worst error/bound {_figure(worst, misplaced=bool(misplaced.any()))}",
            worst if math.isfinite(worst) else None,
        )
    return worst


def _figure(ratio: float, *, misplaced: bool) -> str:
    if math.isfinite(ratio):
        return f"{ratio:.3g}"
    return f"infinite ({'NaN or infinity misplaced' if misplaced else 'no error is allowed there'})"
