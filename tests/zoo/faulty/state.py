"""Faults in what is kept between calls."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fullattention.backends.interface import Array
from tests.zoo.attending import Call, Method, Result, right
from tests.zoo.faulty.making import fault, if_, is_half, keys_dropped_from, mean_of_values

wrong = functools.partial(fault, "state")


class ByKey:
    """Remembers results by a key of the call."""

    def __init__(self, key: Callable[[Call], Any]) -> None:
        self.key = key
        self.seen: dict[Any, Result] = {}

    def __call__(self, call: Call) -> Result:
        key = (self.key(call), call.scale, call.causal, call.dropout, call.weights, call.q.shape)
        if key not in self.seen:
            self.seen[key] = right(call)
        out, a = self.seen[key]
        return out.copy(), None if a is None else a.copy()


def pointers(call: Call) -> tuple[int, ...]:
    return tuple(id(x) for x in (call.q, call.k, call.v, call.hidden))


def sample(call: Call) -> bytes:
    """Sixteen elements of each input."""
    parts = [x.ravel()[:: max(x.size // 16, 1)].tobytes() for x in (call.q, call.k, call.v)]
    return b"".join(parts) + (b"" if call.hidden is None else call.hidden.tobytes())


class Remembering:
    """Keeps something of the first call with a shape and uses it in later ones."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.first: dict[Any, Any] = {}

    def __call__(self, call: Call) -> Result:
        value = getattr(call, self.what)
        key = (call.q.shape, call.k.shape, value is None, call.causal)
        return right(call.but(**{self.what: self.first.setdefault(key, value)}))


class OneBuffer:
    """Returns the same memory for every call with a shape."""

    def __init__(self) -> None:
        self.buffers: dict[Any, Array] = {}

    def __call__(self, call: Call) -> Result:
        out, a = right(call)
        buffer = self.buffers.setdefault((out.shape, out.dtype), np.empty(out.shape, out.dtype))
        buffer[...] = out
        return buffer, a


class Uncleared:
    """Sums onto a workspace that the last call left its rounding in."""

    def __init__(self) -> None:
        self.workspaces: dict[Any, Array] = {}

    def __call__(self, call: Call) -> Result:
        out, a = right(call)
        left = self.workspaces.get((out.shape, out.dtype), np.zeros_like(out))
        self.workspaces[out.shape, out.dtype] = out
        return (out + left * out.dtype.type(0.01)).astype(out.dtype), a


class LastShape:
    """Sizes a workspace by the first call and never again."""

    def __init__(self) -> None:
        self.keys: int | None = None

    def __call__(self, call: Call) -> Result:
        self.keys = self.keys or call.k.shape[1]
        return keys_dropped_from(max(self.keys, 1))(call)


class Workspace:
    """All threads write their queries to one place before they read them there."""

    def __init__(self) -> None:
        self.place: Array = np.empty(0)

    def __call__(self, call: Call) -> Result:
        self.place = call.q
        time.sleep(1e-3)
        q = self.place
        return right(call.but(q=q if q.shape == call.q.shape else call.q))


def after(calls: int, answer: Method) -> Method:
    """Right for the first calls only."""
    counter = itertools.count()
    return if_(lambda call: next(counter) >= calls, answer)


STATE = (
    wrong(
        "cached-by-pointer",
        "results are remembered by the arrays' identity",
        "C11",
        ByKey(pointers),
    ),
    wrong(
        "cached-by-sample",
        "results are remembered by 16 elements of each input",
        "C11",
        ByKey(sample),
    ),
    wrong(
        "mask-baked-in",
        "the first mask of a shape serves all later ones",
        "C11 M4",
        Remembering("hidden"),
    ),
    wrong(
        "scale-baked-in",
        "the first scale of a shape serves all later ones",
        "S4",
        Remembering("scale"),
    ),
    wrong("right-20-times", "after 20 calls the mean of V", "C11", after(20, mean_of_values)),
    wrong("one-buffer", "a later call overwrites an earlier result", "C11", OneBuffer()),
    wrong("workspace-not-cleared", "a trace of the last result joins the next", "C11", Uncleared()),
    wrong("workspace-too-small", "the first call's S limits all later ones", "C11 C5", LastShape()),
    wrong("workspace-shared", "threads share one workspace", "C12", Workspace()),
    wrong(
        "half-workspace-shared",
        "in half types threads share one workspace",
        "C12",
        if_(is_half, Workspace()),
        dtypes=("float32", "float16"),
    ),
)
