"""Faults in the form of a result, and whose memory it is."""

from __future__ import annotations

import functools

import numpy as np

from fullattention.backends import UnsupportedError
from tests.zoo.attending import Call, Plain, Result, right
from tests.zoo.faulty.making import HALF, fault, filled, then

wrong = functools.partial(fault, "contract")


def always_weights(call: Call) -> Result:
    return right(call.but(weights=True))


def weights_time_first(call: Call) -> Result:
    out, a = right(call)
    return out, None if a is None else a.swapaxes(1, 2)


def scales_in_place(call: Call) -> Result:
    factor = call.q.dtype.type(0.5)
    call.q[...] = call.q * factor
    return right(call.but(scale=call.scale / float(factor)))


def hides_in_place(call: Call) -> Result:
    out, a = right(call)
    if call.hidden is not None:
        call.hidden[...] = False
    return out, a


def zeroes_values_in_place(call: Call) -> Result:
    out, a = right(call)
    call.v[...] = 0
    return out, a


def aliases_values(call: Call) -> Result:
    """With one key V is the values: why copy?"""
    out, a = right(call)
    alias = call.k.shape[1] == call.q.shape[1] == 1 and call.hidden is None and not call.dropout
    return call.v if alias else out, a


def writes_over_queries(call: Call) -> Result:
    """The result lands in the queries' memory where it fits."""
    out, a = right(call)
    if out.shape == call.q.shape:
        call.q[...] = out
        return call.q, a
    return out, a


def refuses_masks(call: Call) -> Result:
    if call.hidden is not None:
        raise UnsupportedError("masks-refused", "mask", "not written yet")
    return right(call)


def needs_writable(call: Call) -> Result:
    """As compiled code does whose buffers are not declared constant."""
    if not all(x.flags.writeable for x in (call.q, call.k, call.v)):
        raise ValueError("buffer source array is read-only")
    return right(call)


def another_path_with_weights(call: Call) -> Result:
    if not call.weights:
        return right(call)
    return Plain(
        hide=lambda z, hidden: filled(lambda z: -1e9).hide(z, hidden),
        scale=lambda z, c: z * np.float32(1.001 * c),
    )(call)


CONTRACT = (
    wrong("weights-always", "weights come without being asked for", "C2", always_weights),
    wrong(
        "weights-never",
        "weights do not come when asked for",
        "C2 W1",
        then(lambda c: c.but(weights=False)),
    ),
    wrong("weights-time-first", "weights are (B, L, H, S)", "W1", weights_time_first),
    wrong(
        "weights-change-v",
        "V is another one when weights are asked for",
        "C2",
        another_path_with_weights,
    ),
    wrong(
        "weights-of-another-call",
        "weights are not those that made V",
        "W1",
        lambda c: (right(c)[0], right(c.but(scale=1.01 * c.scale))[1]),
    ),
    wrong(
        "heads-first-result",
        "V is (B, H, L, D)",
        "C1",
        lambda c: (right(c)[0].swapaxes(1, 2), right(c)[1]),
    ),
    wrong("mutates-queries", "queries are scaled in place", "C3", scales_in_place),
    wrong("mutates-mask", "the caller's mask is overwritten", "C3", hides_in_place),
    wrong("mutates-values", "values are cleared after use", "C3", zeroes_values_in_place),
    wrong("writes-over-queries", "V lies in the queries' memory", "C3", writes_over_queries),
    wrong(
        "float64-result",
        "V is float64 whatever the inputs are",
        "C1",
        Plain(write=lambda x, dtype: x.astype(np.float64)),
    ),
    wrong(
        "half-result-widened",
        "half inputs give a float32 V",
        "C1",
        Plain(write=lambda x, dtype: x),
        dtypes=HALF,
    ),
    wrong("aliases-values", "V is the values themselves where S = 1", "C3", aliases_values),
    wrong(
        "squeezes",
        "axes of length 1 are squeezed away",
        "C5",
        lambda c: (right(c)[0].squeeze(1) if c.q.shape[1] == 1 else right(c)[0], right(c)[1]),
    ),
    wrong(
        "masks-refused",
        "masks are refused, and no lack of them is declared",
        "M4",
        refuses_masks,
    ),
    wrong("needs-writable", "inputs that forbid writing are refused", "C3", needs_writable),
)
