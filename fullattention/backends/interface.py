"""What a backend is: a function that attends, and a record of what it can do and how it rounds."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from fullattention.backends.errors import UnsupportedError
from fullattention.backends.precision import DTYPES, Precision
from fullattention.records import Mask, Mode

Array = Any
"""An array of a backend's own library."""

Shape = tuple[int, ...]


class Sizes(NamedTuple):
    """Lengths of the axes: batch, queries, keys, heads, features of q and k, columns of v."""

    B: int
    L: int
    S: int
    H: int
    E: int
    D: int


MaskedRows = Literal["nan", "zero"]
"""What a row of V and of the weights holds when every key is hidden from its query."""

CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "mask": "hides keys by a boolean array",
        "causal": "hides the keys after a query's own position without a mask array",
        "weights": "returns the attention weights",
        "dropout": "drops weights in training",
        "gradient": "can be differentiated by its library",
        "double_backward": "its gradients can be differentiated again",
        "wide_scores": "scores beyond the input dtype's range do not overflow",
        "determinism": "the same input gives the same bits twice",
        "deterministic_gradient": "gradients, where it has them, have the same bits twice",
    }
)
"""What a backend does unless its `lacks` says otherwise."""


class Attend(Protocol):
    """The arithmetic of a backend.

    `FullAttention` has checked and resolved everything before the call: every axis has at least
    one entry; `hidden` is None or a 4-D boolean array broadcastable to (B, H, L, S), True where a
    key is hidden; `causal` hides every key s > l and comes only with L == S and without `hidden`;
    `scale` is finite and not zero; `dropout` is a probability, 0 outside training.

    Args:
        q: queries (B, L, H, E), any strides.
        k: keys (B, S, H, E), any strides.
        v: values (B, S, H, D), any strides.

    Returns:
        V (B, L, H, D), and the weights (B, H, L, S) after dropout if `weights`, else None.
    """

    def __call__(
        self,
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
        """Attend; see the class."""


VectorJacobian = Callable[
    [Callable[..., tuple[Array, ...]], tuple[Array, ...], tuple[Array | None, ...]],
    tuple[tuple[Array, ...], tuple[Array, ...]],
]
"""Takes a function, its inputs, and a cotangent (or None) for each of its results; gives the
results, and the gradients of the inner product of results and cotangents by the inputs. The
gradients can be differentiated again."""


def own_device(array: Array) -> str:
    """The device that an array names itself, such as "cpu" or "cuda:0"."""
    return str(array.device)


def device_kind(device: str) -> str:
    """The kind of a device without its number, such as "cuda" for "cuda:1"."""
    return device.partition(":")[0]


def own_reshape(array: Array, shape: Shape) -> Array:
    """The array under another shape."""
    return array.reshape(shape)


def own_swapaxes(array: Array, first: int, second: int) -> Array:
    """The array with two axes exchanged."""
    return array.swapaxes(first, second)


def own_all(array: Array) -> Array:
    """Whether all entries along the last axis are True; the axis stays, with one entry."""
    return array.all(-1)[..., None]


def own_any(array: Array) -> Array:
    """Whether any entry along the last axis is True; the axis stays, with one entry."""
    return array.any(-1)[..., None]


def own_and_not(array: Array, other: Array) -> Array:
    """Where a boolean array is True and another, which broadcasts to it, is not."""
    return array & ~other


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """How the arrays of one library are made, read and combined."""

    library: str
    """Import name of the library."""
    type: type[Any]
    """Its array class."""
    put: Callable[[np.ndarray, str], Array]
    """Copies a NumPy array to a device."""
    take: Callable[[Array], np.ndarray]
    """Copies an array back to NumPy; bfloat16 comes as `ml_dtypes.bfloat16`."""
    strided: Callable[[Array, Shape, Shape, int], Array]
    """A view of a 1-D array: shape, strides and offset in elements. Raises ValueError where the
    library cannot express such a view."""
    synchronize: Callable[[str], None]
    """Returns once all work queued on a device is done."""
    where: Callable[[Array, Array | float, Array], Array]
    """Elementwise choice; the result has the last argument's dtype."""
    zeros: Callable[..., Array]
    """Zeros of a shape, with the dtype and device of the array after it; their gradients by it and
    by the arrays that follow are zeros too."""
    contiguous: Callable[[Array], Array]
    """The array itself, or a copy in C order."""
    any_true: Callable[[Array], bool]
    """False if no entry of a boolean array is True; may answer True without looking where looking
    would wait for a device."""
    wrap: Callable[[np.ndarray], Array] | None = None
    """An array on the CPU over the memory of a contiguous NumPy array; None where the library has
    no such arrays."""
    device: Callable[[Array], str] = own_device
    """Where an array lies, as `put` takes it."""
    reshape: Callable[[Array, Shape], Array] = own_reshape
    swapaxes: Callable[[Array, int, int], Array] = own_swapaxes
    all: Callable[[Array], Array] = own_all
    any: Callable[[Array], Array] = own_any
    and_not: Callable[[Array, Array], Array] = own_and_not
    """What the layer does to masks, for libraries whose arrays lack it; see the defaults."""
    vjp: VectorJacobian | None = None
    """Differentiates; None where the library does not."""


def _no_seed(_seed: int) -> None:
    """Draws nothing, so there is nothing to seed."""


ScoreCopies = Callable[[Sizes, Collection[str]], float]
"""Takes a call's sizes and the `CAPABILITIES` that it uses; gives how many copies of all scores,
(B, H, L, S) in the format of sums, its forward pass holds on a CPU at one time."""

SCORE_COPIES = 3
"""Of the usual implementation: raw, scaled, and exponentials."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Backend:
    """One implementation of FullAttention on one device.

    Raises:
        ValueError: a field breaks its rule; the message names the field.
    """

    name: str
    """Lower-case words joined by hyphens: library-method."""
    attend: Attend
    arrays: Arrays
    precision: Mapping[str, Precision]
    """How it rounds, by dtype; a dtype that is not listed is not supported."""
    version: str = ""
    """Version of the library that does the work."""
    device: str = "cpu"
    seed: Callable[[int], None] = _no_seed
    """Restarts the random numbers that dropout draws from."""
    masked_rows: MaskedRows | None = None
    """What `attend` itself gives in a fully hidden row; None: it is never sent one. Where a row is
    to hold something else, the layer puts it into V afterwards; no gradient of v sees it [G3]."""
    batch_invariant: bool = False
    """Whether a batch entry's bits never depend on the other entries."""
    compiles: bool = False
    """Whether a call may stop to compile for seconds, each time that it is of a new kind."""
    score_copies: ScoreCopies | None = None
    """Foresees which calls do not fit into memory; None: it holds `SCORE_COPIES`, or none where its
    precision tells of an online softmax and no weights are returned."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Missing capability (or dtype) -> why."""
    deviates: Mapping[str, str] = field(default_factory=dict)
    """Contract requirement that is knowingly not met -> why."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise ValueError(f"name {self.name!r} is not lower-case words joined by hyphens")
        if not isinstance(self.precision, Mapping) or not self.precision:
            raise ValueError(f"precision is {self.precision!r}: a Precision for each dtype")
        _refuse_unknown("precision", self.precision, DTYPES)
        for dtype, model in self.precision.items():
            if not isinstance(model, Precision):
                raise ValueError(f"precision of {dtype} is {model!r}: a Precision")
        _require_reasons("lacks", self.lacks)
        _require_reasons("deviates", self.deviates)
        _refuse_unknown("lacks", self.lacks, (*CAPABILITIES, *DTYPES))
        if self.masked_rows not in ("nan", "zero", None):
            raise ValueError(f"masked_rows is {self.masked_rows!r}: one of 'nan', 'zero', None")

    def require(self, capability: str) -> None:
        """Refuse a call that needs something this backend lacks.

        Raises:
            UnsupportedError: the capability is missing.
        """
        if capability in self.lacks:
            raise UnsupportedError(self.name, capability, self.lacks[capability])
        if capability in DTYPES and capability not in self.precision:
            raise UnsupportedError(self.name, capability, f"it takes {', '.join(self.precision)}")


USED_BY_MASK: Mapping[Mask, tuple[str, ...]] = MappingProxyType(
    {"none": (), "causal": ("causal",), "padding": ("mask",)}
)


USED_BY_MODE: Mapping[Mode, tuple[str, ...]] = MappingProxyType(
    {"forward": (), "weights": ("weights",), "training": ("gradient", "dropout"), "host": ()}
)
"""Capabilities that a timed call uses by its mode."""


def needs(dtype: str, mask: Mask, uses: Iterable[str]) -> tuple[str, ...]:
    """What a backend must have for a call: its dtype, its mask's capability, and what it uses."""
    return (dtype, *USED_BY_MASK[mask], *uses)


def _require_reasons(name: str, given: object) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(f"{name} is {given!r}: a mapping to the reason why")
    for entry, reason in given.items():
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"{name} has {entry!r} with the reason {reason!r}: say why, in words")


def _refuse_unknown(name: str, given: Mapping[str, object], known: tuple[str, ...]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"{name} has {', '.join(unknown)}: known are {', '.join(known)}")


def broadcast_strides(shape: Shape, strides: Shape) -> Shape:
    """Strides of an array as broadcasting reads it: 0 along each axis of size 1."""
    return tuple(0 if n == 1 else step for n, step in zip(shape, strides, strict=True))


def dtype_name(array: Array) -> str:
    """Name of an array's dtype as NumPy spells it, whatever library it comes from."""
    dtype = array.dtype
    # torch.compile cannot trace a cache, and would warn of it.
    return _numpy_name(dtype) if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")


@functools.cache  # NumPy takes microseconds, and a call of the layer asks several times
def _numpy_name(dtype: np.dtype) -> str:
    return str(dtype)
