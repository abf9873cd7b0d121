"""Whether what a backend gave while it was timed is right, looked at in random places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fullattention.backends.interface import Array
from fullattention.bench.inputs import Inputs
from fullattention.bench.workloads import Workload
from fullattention.conformance.bound import attention_bound, error_over_bound
from fullattention.conformance.subject import Subject

PAIRS = 32
"""Batch entries and heads that are looked at; the exact result of all would take too long."""

QUERIES = 16


def largest_error(
    subject: Subject,
    workload: Workload,
    inputs: Inputs,
    outputs: Sequence[np.ndarray],
    random: np.random.Generator,
) -> float:
    """Largest error of any output over its bound, in places that include both ends of each axis.

    Args:
        subject: whose rounding the bound is derived from.
        workload: what was computed.
        inputs: queries, keys and values that it was computed from.
        outputs: results (B, L, H, D), each looked at in the same places.
        random: chooses the places.

    Returns:
        At most 1 where all is right; infinity where a shape is wrong or a NaN is out of place.
    """
    B, L, S, H, E, D = workload.shape
    if any(out.shape != (B, L, H, D) for out in outputs):
        return float("inf")
    b, h = np.divmod(_ends_and_random(B * H, PAIRS, random), H)
    rows = _ends_and_random(L, QUERIES, random)
    q, k, v = inputs
    hidden = None
    if workload.mask == "causal":
        hidden = (np.arange(S) > rows[:, None])[None, None]
    expected = attention_bound(
        _queries_of(q, b, h, rows),
        k[b, :, h][:, :, None],
        v[b, :, h][:, :, None],
        hidden=hidden,
        scale=E**-0.5,
        precision=subject.precision[workload.dtype],
    )
    return max(
        error_over_bound(_queries_of(out, b, h, rows), expected.out, expected.out_bound)
        for out in outputs
    )


def changed_inputs(subject: Subject, inputs: Inputs, given: Sequence[Array]) -> list[str]:
    """Names of the arguments that a candidate wrote into."""
    names = ("queries", "keys", "values")
    return [
        name
        for name, original, array in zip(names, inputs, given, strict=True)
        if not np.array_equal(original, subject.arrays.take(array))
    ]


def _ends_and_random(size: int, most: int, random: np.random.Generator) -> np.ndarray:
    """Indices below `size` in order: all, or else both ends and others at random."""
    if size <= most:
        return np.arange(size)
    inner = random.choice(np.arange(1, size - 1), most - 2, replace=False)
    return np.sort(np.concatenate([[0, size - 1], inner]))


def _queries_of(array: np.ndarray, b: np.ndarray, h: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The pairs (b, h) as a batch of one head (pairs, rows, 1, features), at the chosen rows."""
    chosen: np.ndarray = array[b[:, None], rows, h[:, None]]
    return chosen[:, :, None]
