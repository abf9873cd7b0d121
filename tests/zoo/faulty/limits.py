"""Faults that show where axes are long or memory ends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from fullattention.backends import UnsupportedError
from fullattention.backends.precision import flash
from tests.zoo.attending import Call, Result, Tiled, right
from tests.zoo.faulty.layout import beyond
from tests.zoo.faulty.making import fault, if_, on_out, then
from tests.zoo.layers import NumpyLayer
from tests.zoo.reported import grid_overflows
from tests.zoo.specimen import Specimen

wrong = functools.partial(fault, "limits")


def refuses_without_limit(call: Call) -> Result:
    """A refusal that leaves its reader to guess."""
    if call.q.shape[0] > 65535:
        raise UnsupportedError("limit-unnamed", "this call", "too many blocks")
    return right(call)


def tiles_placed(size: int) -> Callable[[Call], Call]:
    """Causal tiles of keys from the third on are taken for the second."""

    def placed(call: Call) -> Call:
        if not call.causal:
            return call
        keys = np.arange(call.k.shape[1])
        seen = np.minimum(keys // size, 1) * size + keys % size
        hidden = seen > np.arange(call.q.shape[1])[:, None]
        return call.but(causal=False, hidden=hidden[None, None])

    return placed


def third_tile(name: str, size: int) -> Specimen:
    return wrong(
        name,
        f"causal tiles of {size} keys are misplaced from the third on",
        "M2",
        then(tiles_placed(size), Tiled(tile=size)),
        precision=functools.partial(flash, tile=size),
        dtypes=("float32",),
    )


def too_large(name: str, reason: str, violates: str, where: Callable[[Call], bool]) -> Specimen:
    return wrong(name, reason, violates, if_(where, on_out(lambda out: out * 1.5)))


class MemoryErrorHidden(NumpyLayer):
    """Out of memory is reported without a figure."""

    message = "out of memory"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        try:
            return super().__call__(*arguments, **named)
        except MemoryError as error:
            raise RuntimeError(self.message) from error


class MemoryErrorMisread(MemoryErrorHidden):
    """Out of memory is reported with the number of another thing."""

    message = "out of memory: error 12 in call 3"


class MemoryErrorElsewhere(MemoryErrorHidden):
    """Out of memory is taken for a wrong size."""

    message = "cannot reshape an array of size 8796093022208"


def layer(candidate: type) -> Specimen:
    return Specimen(
        name=candidate.__name__,
        kind="limits",
        reason=candidate.__doc__ or "",
        candidate=candidate,
        violates=("L2",),
    )


LIMITS = (
    wrong(
        "batches-over-65535",
        "batch entries from 65535 on get 0",
        "L1",
        on_out(lambda out: beyond(out, 0, 65535)),
    ),
    wrong("grid-overflows", "a grid's limit shows as an error of the launch", "L1", grid_overflows),
    wrong("limit-unnamed", "a refusal does not name its limit", "L1", refuses_without_limit),
    third_tile("third-tile-of-256", 256),
    third_tile("third-tile-of-512", 512),
    too_large(
        "long-causal",
        "causal calls of more than 257 keys come out too large",
        "M2",
        lambda c: c.causal and c.k.shape[1] > 257,
    ),
    too_large(
        "long-masked",
        "masked calls of more than 257 keys come out too large",
        "M4",
        lambda c: c.hidden is not None and c.k.shape[1] > 257,
    ),
    too_large(
        "long-both-ways",
        "more than 256 queries and keys at once come out too large",
        "C5",
        lambda c: min(c.q.shape[1], c.k.shape[1]) > 256,
    ),
    layer(MemoryErrorHidden),
    layer(MemoryErrorMisread),
    layer(MemoryErrorElsewhere),
)
