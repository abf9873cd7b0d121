"""Whether what a backend gave while it was timed is right, looked at in random places.

The worker takes the sample; the process that told it what to do judges it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fullattention.backends.precision import Precision
from fullattention.bench.inputs import SEED, InputPool, spot
from fullattention.bench.modes import Inputs, Results, hidden_keys
from fullattention.bench.training_check import gradient_fault, training_fault
from fullattention.bench.workloads import Workload
from fullattention.conformance.bound import Expected, error_over_bound, expected_within
from fullattention.conformance.oracle import Exact, exact_attention

PAIRS = 16
"""Pairs of a batch entry and a head that are looked at, at most; the exact result of all of them
would take too long."""

FEWEST_PAIRS = 3
"""Both ends and the spot, however many keys there are."""

QUERIES = 8
"""Queries of each pair that are looked at, at most."""

TERMS = 2**18
"""Terms of all sums over keys in one look, so that it takes some milliseconds."""


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


def places(workload: Workload, look: int) -> Places:
    """Where results are looked at: both ends of each axis, the look's spot, and others."""
    random = np.random.default_rng([SEED, look])
    B, L, S, H, _, D = workload.shape
    at = spot(workload, look)
    pairs = min(PAIRS, max(FEWEST_PAIRS, TERMS // (min(L, QUERIES) * S * D)))
    b, h = np.divmod(_some(B * H, pairs, at.b * H + at.h, random), H)
    return Places(b, h, _some(L, QUERIES, at.query, random))


def sample(workload: Workload, results: Results, look: int) -> Sample:
    """What a look sees of results, which are NumPy arrays."""
    B, L, S, H, E, D = workload.shape
    shapes = Results((B, L, H, D), (B, H, L, S), (B, L, H, E), (B, S, H, E), (B, S, H, D))
    given = [(x.shape, shape) for x, shape in zip(results, shapes, strict=True) if x is not None]
    if any(found != shape for found, shape in given):
        return Sample(shapes_right=False, out=np.empty(0))
    at = places(workload, look)
    if workload.mode == "training":
        gradients = tuple(at.whole(x) for x in results[2:])
        return Sample(shapes_right=True, out=at.whole(results.out), gradients=gradients)
    weights = None if results.weights is None else at.of(results.weights.transpose(0, 2, 1, 3))
    return Sample(shapes_right=True, out=at.of(results.out), weights=weights)


class SpotCheck:
    """Judges samples of one workload."""

    def __init__(self, pool: InputPool) -> None:
        self.pool = pool
        self.workload = pool.workload

    def error(self, found: Sample, number: int, precision: Precision, look: int) -> float:
        """Largest error of a sample over its bound.

        At most 1 where all is right, infinite where a shape is wrong or a NaN is out of place.

        Args:
            found: the sample.
            number: of the set of inputs that it comes from.
            precision: how the candidate rounds.
            look: number of the look that took the sample, for which the inputs had changed.
        """
        if not found.shapes_right:
            return math.inf
        at = places(self.workload, look)
        inputs = self.pool.sets(self.pool.renewed(look))[number]
        expected = expected_within(self._attention(at, inputs), precision)
        if self.workload.mode == "training":
            return self._training_error(found, at, inputs, expected, precision)
        error = error_over_bound(found.out[:, :, None], expected.out, expected.out_bound)
        if self.workload.mode != "weights":
            return error
        if found.weights is None:
            return math.inf
        weights = found.weights[:, None]
        return max(error, error_over_bound(weights, expected.weights, expected.weights_bound))

    def _training_error(
        self, found: Sample, at: Places, inputs: Inputs, expected: Expected, precision: Precision
    ) -> float:
        whole = Inputs(*(at.whole(x) for x in inputs))
        fault = training_fault(
            *whole,
            rows=at.rows,
            expected=expected,
            out=found.out,
            gradients=found.gradients,
            precision=precision,
        )
        if fault > 1:
            return fault
        # The more rows, the less chance there is in the size of a gradient.
        L, S = self.workload.shape.L, self.workload.shape.S
        more = replace(at, rows=np.arange(L)[:: -(-len(at.b) * L * S // TERMS)])
        dq, g = found.gradients[0][:, more.rows], whole.g[:, more.rows]
        return max(fault, gradient_fault(dq, g, self._attention(more, inputs), precision))

    def _attention(self, at: Places, inputs: Inputs) -> Exact:
        """The pairs as a batch of one head: V (pairs, rows, 1, D), weights (pairs, 1, rows, S)."""
        _, _, S, _, E, _ = self.workload.shape
        hidden = hidden_keys(self.workload)
        if self.workload.mask == "causal" and self.workload.shape.L > 1:
            hidden = (np.arange(S) > at.rows[:, None])[None, None]
        elif hidden is not None:
            hidden = hidden[at.b]
        return exact_attention(
            at.of(inputs.q)[:, :, None],
            at.whole(inputs.k)[:, :, None],
            at.whole(inputs.v)[:, :, None],
            hidden=hidden,
            scale=E**-0.5,
        )


def _some(size: int, most: int, one: int, random: np.random.Generator) -> np.ndarray:
    """Indices below `size` in order: all, or else both ends, `one`, and random others."""
    if size <= most:
        return np.arange(size)
    certain = {0, size - 1, one}
    others = np.delete(np.arange(size), list(certain))
    return np.sort([*certain, *random.choice(others, most - len(certain), replace=False)])
