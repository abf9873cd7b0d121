"""How faulty backends are made of the right one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from fullattention.backends.interface import Array, dtype_name
from tests.zoo.attending import Call, Method, Plain, Result, hidden_keys, read, right, write
from tests.zoo.specimen import Specimen, backend

HALF = ("float16", "bfloat16")


def fault(
    kind: str, name: str, reason: str, violates: str, method: Method, **fields: Any
) -> Specimen:
    """A method as a specimen; `violates` lists requirements, separated by spaces."""
    return Specimen(
        name=name,
        kind=kind,
        reason=reason,
        candidate=backend(name, method, **fields),
        violates=tuple(violates.split()),
    )


def then(change: Callable[[Call], Call], method: Method = right) -> Method:
    """A method on a changed call."""
    return lambda call: method(change(call))


def if_(wrong: Callable[[Call], bool], answer: Method, otherwise: Method = right) -> Method:
    """Another answer where a condition holds."""
    return lambda call: answer(call) if wrong(call) else otherwise(call)


def on_out(change: Callable[[Array], Array]) -> Method:
    """V changed after it has been computed."""

    def method(call: Call) -> Result:
        out, a = right(call)
        return change(out).astype(out.dtype), a

    return method


def on_arrays(change: Callable[[Array], Array], names: str = "qkv") -> Method:
    """Inputs read in another way."""
    return then(lambda call: call.but(**{name: change(getattr(call, name)) for name in names}))


def is_half(call: Call) -> bool:
    return dtype_name(call.q) in HALF


def in_format(name: str) -> Callable[[Array], Array]:
    """Rounds to another format and back."""
    kind = np.dtype(getattr(ml_dtypes, name, None) or name)
    return lambda x: x.astype(kind).astype(x.dtype)


def filled(value: Callable[[Array], float]) -> Plain:
    """A finite number stands for minus infinity."""

    def fill(z: Array, hidden: Array | None) -> Array:
        return z if hidden is None else np.where(hidden, z.dtype.type(value(z)), z)

    return Plain(hide=fill)


def keys_dropped_from(limit: int) -> Method:
    """Keys from an index on are never visited."""

    def visible(call: Call) -> Array | None:
        late = np.arange(call.k.shape[1]) >= limit
        hidden = hidden_keys(call)
        return late if hidden is None else hidden | late

    return Plain(hidden=visible)


def mean_of_values(call: Call) -> Result:
    out = np.repeat(read(call.v).mean(2, keepdims=True), call.q.shape[1], axis=2)
    S = call.k.shape[1]
    shape = (*(call.q.shape[i] for i in (0, 2, 1)), S)
    a = np.full(shape, 1 / S, call.q.dtype) if call.weights else None
    return write(out.transpose(0, 2, 1, 3), call.q.dtype), a
