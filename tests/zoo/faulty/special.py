"""Faults in NaN, infinities and subnormal numbers."""

from __future__ import annotations

import functools

import numpy as np

from fullattention.backends.interface import Array
from tests.zoo.attending import Plain, read, softmax
from tests.zoo.faulty.making import fault

wrong = functools.partial(fault, "special")


def flushed(x: Array, kind: np.dtype) -> Array:
    """Numbers below the smallest normal one become 0."""
    smallest = {"float16": 2.0**-14}.get(kind.name, 2.0**-126)
    return np.where(abs(x) < smallest, x.dtype.type(0), x).astype(kind)


def largest_of(x: Array) -> Array:
    return np.nan_to_num(x, nan=np.nan, posinf=np.finfo(x.dtype).max, neginf=np.finfo(x.dtype).min)


def nan_everywhere(z: Array) -> Array:
    a = softmax(z)
    return np.where(np.isnan(a).any((-1, -2), keepdims=True), z.dtype.type(np.nan), a)


SPECIAL = (
    wrong(
        "nan-scores-zeroed",
        "NaN scores count as 0",
        "N4",
        Plain(softmax=lambda z: softmax(np.where(np.isnan(z), z.dtype.type(0), z))),
    ),
    wrong("nan-spreads", "NaN in one row spreads to its head", "N4", Plain(softmax=nan_everywhere)),
    wrong(
        "infinity-clipped",
        "infinity in V becomes the largest number",
        "N4",
        Plain(read_values=lambda v: largest_of(read(v))),
    ),
    wrong(
        "nan-in-values-zeroed",
        "NaN in V becomes 0",
        "N4",
        Plain(read_values=lambda v: np.where(np.isnan(read(v)), 0, read(v)).astype(read(v).dtype)),
    ),
    wrong(
        "infinite-scores-clipped",
        "infinite scores become the largest number",
        "N4",
        Plain(
            softmax=lambda z: softmax(np.where(np.isposinf(z), np.finfo(z.dtype).max, z)),
        ),
    ),
    wrong(
        "half-flushed",
        "subnormal float16 results become 0, undeclared",
        "N1",
        Plain(write=flushed),
        dtypes=("float16",),
    ),
)
