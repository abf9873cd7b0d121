"""Faults that show where axes are long or memory ends."""

from __future__ import annotations

import functools
from typing import Any

from fullattention.backends import UnsupportedError
from tests.zoo.attending import Call, Result, right
from tests.zoo.faulty.layout import beyond
from tests.zoo.faulty.making import fault, on_out
from tests.zoo.layers import NumpyLayer
from tests.zoo.reported import grid_overflows
from tests.zoo.specimen import Specimen

wrong = functools.partial(fault, "limits")


def refuses_without_limit(call: Call) -> Result:
    """A refusal that leaves its reader to guess."""
    if call.q.shape[0] > 65535:
        raise UnsupportedError("limit-unnamed", "this call", "too many blocks")
    return right(call)


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
    layer(MemoryErrorHidden),
    layer(MemoryErrorMisread),
    layer(MemoryErrorElsewhere),
)
