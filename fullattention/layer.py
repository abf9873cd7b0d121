"""FullAttention's policy: what is checked and decided before a backend's arithmetic runs."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from fullattention.backends.errors import InvalidInputError
from fullattention.backends.interface import (
    Array,
    Arrays,
    Backend,
    MaskedRows,
    Shape,
    Sizes,
    dtype_name,
    needs,
)
from fullattention.backends.precision import DTYPES
from fullattention.backends.registry import load
from fullattention.records import Mask

SMALLEST, LARGEST = 2.0**-126, 3.4028234663852886e38
"""Float32's normal numbers."""


class Policy:
    """The layer's settings, and what they make of a call, whichever backend runs it.

    Raises:
        InvalidInputError: a setting is out of its range, now or when it is set anew.
    """

    training: bool

    def __init__(
        self,
        *,
        mask_flag: bool,
        scale: float | None,
        attention_dropout: float,
        output_attention: bool,
        masked_rows: MaskedRows,
    ) -> None:
        self.mask_flag = mask_flag
        self.scale = scale
        self.attention_dropout = attention_dropout
        self.output_attention = output_attention
        self.masked_rows = masked_rows

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "attention_dropout" and not (is_real(value) and 0 <= value <= 1):
            raise InvalidInputError(f"{name} is {value!r}: a probability in [0, 1] [P1]")
        if name == "scale" and not (value is None or is_real(value)):
            raise InvalidInputError(f"{name} is {value!r}: a real number or None [S1]")
        if name == "masked_rows" and value not in ("nan", "zero"):
            raise InvalidInputError(f"{name} is {value!r}: 'nan' or 'zero' [M6]")
        if name == "backend" and not isinstance(value, Backend | None):
            raise InvalidInputError(
                f"{name} is {value!r}: only the constructor takes a name; later, set a Backend, "
                "such as backends.load gives [C8]"
            )
        super().__setattr__(name, value)

    def attend_by(
        self, backend: Backend, queries: Array, keys: Array, values: Array, attn_mask: Any
    ) -> tuple[Array, Array | None]:
        """One call of the layer on a backend; see `FullAttention.forward`."""
        sizes = check_inputs(backend, queries, keys, values)
        scale = resolve_scale(self.scale, sizes.E)
        dtype = dtype_name(queries)
        check_scale(scale, dtype)
        hidden, causal = self._resolve_mask(backend, attn_mask, sizes, queries)
        dropout = float(self.attention_dropout) if self.training else 0.0
        mask: Mask = "causal" if causal else "none" if hidden is None else "padding"
        uses = ["dropout"] * (dropout > 0) + ["weights"] * bool(self.output_attention)
        for capability in needs(dtype, mask, uses):
            backend.require(capability)
        return self._attend(backend, queries, keys, values, sizes, hidden, causal, scale, dropout)

    def _resolve_mask(
        self, backend: Backend, attn_mask: Any, sizes: Sizes, queries: Array
    ) -> tuple[Array | None, bool]:
        if not self.mask_flag:
            return None, False
        if attn_mask is not None:
            return check_mask(backend, attn_mask, sizes, queries), False
        if sizes.L == 1:  # the layer hides s > l only where both axes have it
            return None, False
        if sizes.L != sizes.S:
            raise InvalidInputError(
                f"attn_mask is None and mask_flag is on, which means causal: that needs L == S, "
                f"but queries have L = {sizes.L} and keys S = {sizes.S} [M2]"
            )
        return None, True

    def _attend(
        self,
        backend: Backend,
        queries: Array,
        keys: Array,
        values: Array,
        sizes: Sizes,
        hidden: Array | None,
        causal: bool,
        scale: float,
        dropout: float,
    ) -> tuple[Array, Array | None]:
        """Run the backend within its preconditions, and repair what lies outside them."""
        arrays = backend.arrays
        B, L, S, H, E, D = sizes
        if 0 in (B, L, H, S):
            out = arrays.zeros((B, L, H, D), values, queries, keys)
            a = arrays.zeros((B, H, L, S), queries, keys) if self.output_attention else None
            return out, a
        if E == 0:  # every score is 0, as with one feature that is 0
            queries, keys = (arrays.zeros((*x.shape[:3], 1), x) for x in (queries, keys))
        if D == 0:  # the weights may still be wanted
            values = arrays.zeros((B, S, H, 1), values)

        repairs = _repairs(arrays, hidden, causal, scale, L, queries)
        native = self.masked_rows == backend.masked_rows
        if hidden is not None and (repairs or not native):
            rows = arrays.all(hidden)
            if arrays.any_true(rows):
                hidden = arrays.and_not(hidden, rows)
                repairs.append((rows, math.nan if self.masked_rows == "nan" else 0.0))
        out, a = backend.attend(
            queries,
            keys,
            values,
            hidden=hidden,
            causal=causal,
            scale=scale if math.isfinite(scale) else 1.0,
            dropout=dropout,
            weights=self.output_attention,
        )
        for rows, value in repairs:
            out = arrays.where(arrays.swapaxes(rows, 1, 2), value, out)
            a = None if a is None else arrays.where(rows, value, a)
        if D == 0:
            out = arrays.zeros((B, L, H, 0), out)
        return arrays.contiguous(out), None if a is None else arrays.contiguous(a)


class FullAttention(Policy):
    """Time-Series-Library's innermost attention layer on a backend of choice.

    It belongs to no framework: a torch model's `eval()` does not reach it, so call its own. The
    drop-in for torch models is `fullattention.nn.FullAttention`.

    Args:
        mask_flag: whether keys are hidden: by `attn_mask`, or without one causally.
        factor: accepted for the layer's signature; has no effect.
        scale: factor on the scores; None or 0 means 1 / sqrt(E).
        attention_dropout: probability of dropping a weight in training.
        output_attention: whether `forward` returns the weights.
        backend: a name, `module:object`, `path.py[:object]`, or a `Backend`.
        device: where a backend that is given by name runs, itself by name or as torch has it.
        masked_rows: what a query gets when all keys are hidden from it: "nan" as in
            Time-Series-Library, or "zero".

    Raises:
        InvalidInputError: an argument is out of its range.
        UnavailableError: the backend cannot run here.
    """

    def __init__(
        self,
        mask_flag: bool = True,
        factor: int = 5,
        scale: float | None = None,
        attention_dropout: float = 0.1,
        output_attention: bool = False,
        *,
        backend: str | Backend = "numpy-matmul",
        device: object = "cpu",
        masked_rows: MaskedRows = "nan",
    ) -> None:
        if not isinstance(backend, str | Backend):
            raise InvalidInputError(f"backend is {backend!r}: a name or a Backend [C8]")
        super().__init__(
            mask_flag=mask_flag,
            scale=scale,
            attention_dropout=attention_dropout,
            output_attention=output_attention,
            masked_rows=masked_rows,
        )
        self.backend = backend if isinstance(backend, Backend) else load(backend, device)
        self.training = True

    def train(self, mode: bool = True) -> FullAttention:
        """Switch dropout on, or off with False."""
        self.training = mode
        return self

    def eval(self) -> FullAttention:
        """Switch dropout off."""
        return self.train(False)

    def __call__(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        attn_mask: Any,
        tau: Any = None,
        delta: Any = None,
    ) -> tuple[Array, Array | None]:
        """The same as `forward`."""
        return self.forward(queries, keys, values, attn_mask, tau=tau, delta=delta)

    def forward(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        attn_mask: Any,
        tau: Any = None,
        delta: Any = None,
    ) -> tuple[Array, Array | None]:
        """Attend: softmax over keys of the scaled, masked scores, times the values.

        Args:
            queries: (B, L, H, E), of the backend's own library.
            keys: (B, S, H, E), same dtype.
            values: (B, S, H, D), same dtype.
            attn_mask: boolean, True where a key is hidden, broadcastable to (B, H, L, S); or an
                object with such a `mask`; or None.
            tau: accepted for the layer's signature; has no effect.
            delta: accepted for the layer's signature; has no effect.

        Returns:
            V (B, L, H, D), contiguous, and the weights after dropout (B, H, L, S) or None.

        Raises:
            InvalidInputError: an argument breaks the contract; the message names the rule.
            UnsupportedError: the call needs a capability that the backend lacks.
        """
        return self.attend_by(self.backend, queries, keys, values, attn_mask)


def _repairs(
    arrays: Arrays, hidden: Array | None, causal: bool, scale: float, L: int, like: Array
) -> list[tuple[Array, float]]:
    """Rows (b, h, l, 1) that the contract makes NaN whatever a backend answers there.

    A scale of NaN or infinity does so in every row [S4]; a negative one where a key is hidden,
    since it multiplies after masking: -1 * -inf = inf [S3].
    """
    if not math.isfinite(scale):
        return [(arrays.put(np.ones((1, 1, 1, 1), bool), arrays.device(like)), math.nan)]
    if scale > 0 or (hidden is None and not causal):
        return []
    if hidden is None:
        rows = arrays.put((np.arange(L) < L - 1).reshape(1, 1, L, 1), arrays.device(like))
    else:
        rows = arrays.any(hidden)
    return [(rows, math.nan)]


def is_real(value: object) -> bool:
    """Whether a value is a real number of Python or NumPy."""
    return isinstance(value, numbers.Real)


def check_inputs(backend: Backend, queries: Array, keys: Array, values: Array) -> Sizes:
    """The sizes of the axes, if the arrays fit together and belong to the backend's library.

    Raises:
        InvalidInputError: they do not; the message names the argument and the rule [C8].
    """
    for name, array in (("queries", queries), ("keys", keys), ("values", values)):
        check_library(backend, name, array)
        check_device(backend, name, array, queries)
        if array.ndim != 4:
            raise InvalidInputError(
                f"{name} has shape {tuple(array.shape)}: it must be 4-D, (batch, time, heads, "
                "features) [C8]"
            )
        if array.dtype != queries.dtype:
            raise InvalidInputError(
                f"{name} has dtype {dtype_name(array)} and queries {dtype_name(queries)}: "
                "they must be the same [C8]"
            )
    if dtype_name(queries) not in DTYPES:
        raise InvalidInputError(
            f"queries has dtype {dtype_name(queries)}: it must be a real floating-point dtype [C8]"
        )
    B, L, H, E = queries.shape
    _, S, _, D = values.shape
    for name, array, wanted in (("keys", keys, (B, S, H, E)), ("values", values, (B, S, H, D))):
        shape = tuple(array.shape)
        if shape != wanted:
            raise InvalidInputError(_unequal(name, shape, wanted))
    return Sizes(B, L, S, H, E, D)


def _unequal(name: str, shape: Shape, wanted: Shape) -> str:
    """What is wrong with a shape (batch, time, heads, features), by its first wrong axis."""
    axis = next(axis for axis in range(4) if shape[axis] != wanted[axis])
    along = ("batch", "time", "heads", "features")[axis]
    of = "values" if along == "time" else "queries"
    return (
        f"{name} has {shape[axis]} along its {along} axis and {of} {wanted[axis]}: they must be "
        "equal; axes of size 1 are not broadcast and heads are not grouped [C8]"
    )


def check_library(backend: Backend, name: str, array: Any) -> None:
    """Refuse an array of another library, and one that brings a mask of its own.

    Raises:
        InvalidInputError: the array is not of the backend's library, or hides some of its entries.
    """
    wanted = backend.arrays.type
    if type(array) is not wanted and isinstance(array, wanted) and hasattr(array, "mask"):
        raise InvalidInputError(
            f"{name} is a {type(array).__qualname__}, whose mask would be ignored: hide keys by "
            "attn_mask [C8]"
        )
    if not isinstance(array, wanted):
        raise InvalidInputError(
            f"{name} is a {type(array).__module__}.{type(array).__qualname__}: backend "
            f"{backend.name!r} takes {wanted.__module__}.{wanted.__qualname__} [C8]"
        )


def check_device(backend: Backend, name: str, array: Any, queries: Any) -> None:
    """Refuse an array on another device than the queries, or than the backend was loaded for.

    What a backend can do depends on the kind of device.

    Raises:
        InvalidInputError: the devices differ.
    """
    device = backend.arrays.device(array)
    if array is not queries:
        if device != (others := backend.arrays.device(queries)):
            raise InvalidInputError(
                f"{name} is on {device} and queries on {others}: they must be on one device [C8]"
            )
        return
    kind = device.partition(":")[0]
    if kind != backend.device.partition(":")[0]:
        raise InvalidInputError(
            f"{name} is on {device}: backend {backend.name!r} was loaded for "
            f"{backend.device!r}; pass device={kind!r} [C8]"
        )


def check_mask(backend: Backend, attn_mask: Any, sizes: Sizes, queries: Array) -> Array:
    """The mask as a 4-D boolean array that broadcasts to (B, H, L, S).

    Raises:
        InvalidInputError: it is not boolean [M3], does not broadcast [M4], or lies elsewhere [C8].
    """
    is_array = isinstance(attn_mask, backend.arrays.type)
    mask: Array = attn_mask if is_array else attn_mask_of(attn_mask)
    check_library(backend, "attn_mask", mask)
    check_device(backend, "attn_mask", mask, queries)
    if dtype_name(mask) != "bool":
        raise InvalidInputError(
            f"attn_mask has dtype {dtype_name(mask)}: it must be boolean, True = hidden [M3]"
        )
    target = (sizes.B, sizes.H, sizes.L, sizes.S)
    shape = tuple(mask.shape)
    padded = (1,) * (4 - len(shape)) + shape
    if len(padded) > 4 or any(
        size not in (1, full) for size, full in zip(padded, target, strict=True)
    ):
        raise InvalidInputError(
            f"attn_mask has shape {shape}: it must broadcast to (B, H, L, S) = {target} [M4]"
        )
    reshaped: Array = mask if shape == padded else backend.arrays.reshape(mask, padded)
    return reshaped


def attn_mask_of(holder: Any) -> Any:
    """The `mask` that a mask object holds.

    Raises:
        InvalidInputError: the object holds none [M3].
    """
    if not hasattr(holder, "mask"):
        raise InvalidInputError(
            f"attn_mask is a {type(holder).__qualname__}: it must be a boolean array of the "
            "backend's library or an object with one as its `mask` [M3]"
        )
    return holder.mask


def resolve_scale(scale: float | None, E: int) -> float:
    """The factor on the scores: `scale`, or 1 / sqrt(E) where it is None or 0 [S1, S2].

    Raises:
        InvalidInputError: neither is possible, since E is 0 [C6].
    """
    if scale:
        return float(scale)
    if E == 0:
        raise InvalidInputError(
            "queries and keys have E = 0 features: 1 / sqrt(E) needs E > 0, so a scale must be "
            "given [C6]"
        )
    return 1.0 / math.sqrt(E)


def check_scale(scale: float, dtype: str) -> None:
    """Refuse a finite scale that float32 cannot hold, in which all but float64 is computed.

    Raises:
        InvalidInputError: the scale would become 0, imprecise, or infinite [S4].
    """
    if dtype != "float64" and math.isfinite(scale) and not SMALLEST <= abs(scale) <= LARGEST:
        raise InvalidInputError(
            f"scale is {scale!r}: for {dtype} its size lies in [{SMALLEST:.3g}, {LARGEST:.3g}], "
            "float32's range [S4]"
        )
