"""What a specimen is: a candidate, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fullattention.backends import Backend, Precision, numpy_arrays, standard
from fullattention.backends.precision import DTYPES
from tests.zoo.attending import RANDOM, Method, as_attend


@dataclass(frozen=True, kw_only=True)
class Specimen:
    """One candidate, valid or faulty in one way."""

    name: str
    kind: str
    reason: str
    """What is wrong with it, or unusual and yet right."""
    candidate: Backend | type
    violates: tuple[str, ...] = ()
    """Requirements of which the suite must find at least one broken; none: it is valid."""

    def __str__(self) -> str:
        return self.name


def backend(
    name: str,
    method: Method,
    *,
    precision: Callable[[str], Precision] = standard,
    dtypes: tuple[str, ...] = DTYPES,
    lacks: Mapping[str, str] | None = None,
    **fields: Any,
) -> Backend:
    """A method as a backend that declares the usual precision."""
    usual: dict[str, Any] = {"masked_rows": "nan", "seed": RANDOM.seed}
    return Backend(
        name=name,
        attend=as_attend(method),
        arrays=numpy_arrays.ARRAYS,
        precision={dtype: precision(dtype) for dtype in dtypes},
        **usual | fields,
        lacks={"gradient": "NumPy does not differentiate"} | dict(lacks or {}),
    )


def tiled(tile: int, of: Callable[[str], Precision] = standard) -> Callable[[str], Precision]:
    """The precision of an online softmax with such a tile."""
    return lambda dtype: replace(of(dtype), tile=tile)
