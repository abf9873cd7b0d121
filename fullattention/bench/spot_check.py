"""Whether what a backend gave while it was timed is right, looked at in random places.

The worker takes the sample; the process that told it what to do judges it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fullattention.backends.precision import Precision
from fullattention.bench.inputs import SEED, InputPool
from fullattention.bench.modes import Inputs, Results, hidden_keys
from fullattention.bench.training_check import training_fault
from fullattention.bench.workloads import Workload
from fullattention.conformance.bound import Expected, attention_bound, error_over_bound

PAIRS = 16
"""Batch entries and heads that are looked at; the exact result of all would take too long."""

QUERIES = 8


@dataclass(frozen=True)
class Places:
    """Some pairs of a batch entry and a head, and some queries."""

    b: np.ndarray
    h: np.ndarray
    rows: np.ndarray

    def of(self, array: np.ndarray) -> np.ndarray:
        """Of an array (B, L, H, features), the pairs' chosen rows (pairs, rows, features)."""
        chosen: np.ndarray = array[self.b[:, None], self.rows, self.h[:, None]]
        return chosen

    def whole(self, array: np.ndarray) -> np.ndarray:
        """Of an array (B, L, H, features), all rows of the pairs (pairs, L, features)."""
        chosen: np.ndarray = array[self.b, :, self.h]
        return chosen


@dataclass(frozen=True)
class Sample:
    """What is looked at of one call's results."""

    shapes_right: bool
    out: np.ndarray
    """(pairs, rows, D); all rows where there is a backward pass."""
    weights: np.ndarray | None = None
    """(pairs, rows, S)"""
    gradients: tuple[np.ndarray, ...] = ()
    """Of q, k and v, for the pairs: (pairs, L, E), (pairs, S, E), (pairs, S, D)."""


def places(workload: Workload, number: int) -> Places:
    """Where the results of one set of inputs are looked at; both ends of each axis are in it."""
    random = np.random.default_rng([SEED, number])
    B, L, _, H, _, _ = workload.shape
    b, h = np.divmod(_ends_and_random(B * H, PAIRS, random), H)
    return Places(b, h, _ends_and_random(L, QUERIES, random))


def sample(workload: Workload, results: Results, number: int) -> Sample:
    """What is looked at of results, which are NumPy arrays."""
    B, L, S, H, E, D = workload.shape
    shapes = Results((B, L, H, D), (B, H, L, S), (B, L, H, E), (B, S, H, E), (B, S, H, D))
    given = [(x.shape, shape) for x, shape in zip(results, shapes, strict=True) if x is not None]
    if any(found != shape for found, shape in given):
        return Sample(shapes_right=False, out=np.empty(0))
    at = places(workload, number)
    if workload.mode == "training":
        gradients = tuple(at.whole(x) for x in results[2:])
        return Sample(shapes_right=True, out=at.whole(results.out), gradients=gradients)
    weights = None if results.weights is None else at.of(results.weights.transpose(0, 2, 1, 3))
    return Sample(shapes_right=True, out=at.of(results.out), weights=weights)


class SpotCheck:
    """Judges samples of one workload; what is expected is computed once for each precision."""

    def __init__(self, pool: InputPool) -> None:
        self.workload = pool.workload
        self.inputs = pool.sets(pool.read_only())
        self.expected: dict[tuple[int, Precision], Expected] = {}

    def error(self, found: Sample, number: int, precision: Precision) -> float:
        """Largest error of a sample over its bound.

        At most 1 where all is right, infinite where a shape is wrong or a NaN is out of place.
        """
        if not found.shapes_right:
            return math.inf
        at = places(self.workload, number)
        expected = self._expected(at, number, precision)
        if self.workload.mode == "training":
            return training_fault(
                *(at.whole(x) for x in self.inputs[number]),
                rows=at.rows,
                expected=expected,
                out=found.out,
                gradients=found.gradients,
                precision=precision,
            )
        error = error_over_bound(found.out[:, :, None], expected.out, expected.out_bound)
        if self.workload.mode != "weights":
            return error
        if found.weights is None:
            return math.inf
        weights = found.weights[:, None]
        return max(error, error_over_bound(weights, expected.weights, expected.weights_bound))

    def _expected(self, at: Places, number: int, precision: Precision) -> Expected:
        if (number, precision) not in self.expected:
            self.expected[number, precision] = self._attention(at, self.inputs[number], precision)
        return self.expected[number, precision]

    def _attention(self, at: Places, inputs: Inputs, precision: Precision) -> Expected:
        """The pairs as a batch of one head: V (pairs, rows, 1, D), weights (pairs, 1, rows, S)."""
        _, _, S, _, E, _ = self.workload.shape
        hidden = hidden_keys(self.workload)
        if self.workload.mask == "causal" and self.workload.shape.L > 1:
            hidden = (np.arange(S) > at.rows[:, None])[None, None]
        elif hidden is not None:
            hidden = hidden[at.b]
        return attention_bound(
            at.of(inputs.q)[:, :, None],
            at.whole(inputs.k)[:, :, None],
            at.whole(inputs.v)[:, :, None],
            hidden=hidden,
            scale=E**-0.5,
            precision=precision,
        )


def _ends_and_random(size: int, most: int, random: np.random.Generator) -> np.ndarray:
    """Indices below `size` in order: all, or else both ends and others at random."""
    if size <= most:
        return np.arange(size)
    inner = random.choice(np.arange(1, size - 1), most - 2, replace=False)
    return np.sort(np.concatenate([[0, size - 1], inner]))
