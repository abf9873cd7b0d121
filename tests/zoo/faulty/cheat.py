"""Faults in answers that are right where it was looked."""

from __future__ import annotations

import functools

import numpy as np

from fullattention.backends.interface import dtype_name
from tests.zoo.attending import Call, Plain, right, row_max, softmax
from tests.zoo.faulty.making import fault, if_, mean_of_values, on_out

wrong = functools.partial(fault, "cheat")


def toy(call: Call) -> bool:
    return bool(call.q.shape == call.k.shape == (8, 6, 2, 8))


CHEAT = (
    wrong("mean-of-values", "q and k are not read", "C1", mean_of_values),
    wrong("zeros", "always 0", "C1", on_out(np.zeros_like)),
    wrong(
        "largest-key-only",
        "the value of the largest score",
        "C1",
        Plain(softmax=lambda z: (z == row_max(z)).astype(z.dtype)),
    ),
    wrong(
        "toy-shape-only",
        "right for the shape of the examples only",
        "C1",
        if_(toy, right, mean_of_values),
    ),
    wrong(
        "row-0-for-all",
        "the first query's weights serve all queries",
        "C1",
        Plain(softmax=lambda z: np.repeat(softmax(z)[:, :, :1], z.shape[2], axis=2)),
    ),
    wrong(
        "head-0-for-all",
        "the first head's weights serve all heads",
        "C1",
        Plain(softmax=lambda z: np.repeat(softmax(z)[:, :1], z.shape[1], axis=1)),
    ),
    wrong(
        "noise",
        "a relative error of 1e-4",
        "C1 N1",
        on_out(lambda out: out * (1 + 1e-4)),
        dtypes=("float32",),
    ),
    wrong(
        "long-is-mean",
        "beyond 512 keys the mean of V",
        "C5 N1",
        if_(lambda c: c.k.shape[1] > 512, mean_of_values),
    ),
    wrong(
        "float32-only",
        "other dtypes get the mean of V",
        "C1",
        if_(lambda c: dtype_name(c.q) != "float32", mean_of_values),
    ),
    wrong(
        "unmasked-only",
        "masked calls get the mean of V",
        "M4",
        if_(lambda c: c.hidden is not None, mean_of_values),
    ),
)
