"""Faults in the scale of the scores."""

from __future__ import annotations

import functools
import math

import numpy as np

from tests.zoo.attending import Plain
from tests.zoo.faulty.making import fault, then

wrong = functools.partial(fault, "scale")


SCALE = (
    wrong("no-scale", "scores are not scaled", "S1 S4", Plain(scale=lambda z, c: z)),
    wrong(
        "scale-inverse-e",
        "1 / E instead of 1 / sqrt(E)",
        "S1",
        then(lambda call: call.but(scale=call.scale**2)),
    ),
    wrong(
        "scale-of-values",
        "1 / sqrt(D) instead of 1 / sqrt(E)",
        "S1",
        then(lambda call: call.but(scale=1 / math.sqrt(call.v.shape[-1]))),
    ),
    wrong(
        "scale-of-model",
        "1 / sqrt(H E) instead of 1 / sqrt(E)",
        "S1",
        then(lambda call: call.but(scale=call.scale / math.sqrt(call.q.shape[2]))),
    ),
    wrong(
        "scale-ignored",
        "always 1 / sqrt(E)",
        "S4",
        then(lambda call: call.but(scale=1 / math.sqrt(call.q.shape[-1]))),
    ),
    wrong(
        "scale-absolute",
        "the sign of a negative scale is lost",
        "S4",
        then(lambda call: call.but(scale=abs(call.scale))),
    ),
    wrong(
        "scale-half",
        "the scale is rounded to float16",
        "S1 S4 C1",
        then(lambda call: call.but(scale=float(np.float16(call.scale)))),
    ),
)
