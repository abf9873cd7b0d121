"""Times of shapes that were not measured, told from those that were.

A Gaussian process over the logarithms of B * H, L, S and E + D: a linear trend, since time grows by
powers of the sizes, and a smooth departure from it, since kernels change their regime. Its reach
and its size are those that predict the measured shapes best, each from all the others.

It tells nothing of sizes beyond those that were measured: a trend in sizes that never varied gives
times that no machine can reach.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fullattention.backends.interface import Sizes

FEWEST = 4
"""Measured shapes without which nothing is told: a trend in four sizes has five unknowns, and a
prior that holds them back."""

AXES = ("B * H", "L", "S", "E + D")
"""What a time is told from."""

TOTALS = ("B * H * (L + S) * (E + D)", "B * H * L * S * (E + D)")
"""What a call moves and what it multiplies: a shape whose every size was measured in some call may
still be smaller than all calls, and what a call costs beside its work then counts most."""

MARGIN = 2.0
"""Factor by which a size may lie beyond the measured ones; at most that by which these vary."""

ALIKE = 1.1
"""Factor by which a size may lie beyond even where all measured ones are the same."""

REACHES = (0.5, 1.0, 2.0, 4.0)
"""Distances, in natural logarithms of a size, over which the departure may stay alike."""

DEPARTURES = (0.1, 0.3, 1.0)
"""Standard deviations of the departure, in natural logarithms of a time."""

NOISES = (0.02, 0.1)
"""Standard deviations of a measured time's logarithm."""

LEVEL, SLOPE = 10.0, 1.0
"""Standard deviations of the trend's constant and of its powers: a time grows by about the first
power of a size."""


@dataclass(frozen=True)
class Estimate:
    """A time that was not measured."""

    seconds: float
    factor: float
    """The time lies within this factor: two standard deviations, which grow with the
    cross-validated error and with the distance to what was measured."""


@dataclass(frozen=True, eq=False)
class TimeModel:
    """What a backend's measured shapes tell of others."""

    places: np.ndarray
    solved: np.ndarray
    inverse: np.ndarray
    mean: float
    reach: float
    departure: float
    error: float
    """Root mean square of the logarithmic errors when each shape is told from all the others."""

    def at(self, shape: Sizes) -> Estimate:
        """What a call of this shape takes."""
        place = _places([shape])
        near = _alike(place, self.places, self.reach, self.departure)
        own = _alike(place, place, self.reach, self.departure)
        spread = float(own[0, 0] - near[0] @ self.inverse @ near[0])
        deviation = math.sqrt(max(spread, 0.0) + self.error**2)
        return Estimate(math.exp(self.mean + float(near[0] @ self.solved)), math.exp(2 * deviation))


def fit(shapes: Sequence[Sizes], seconds: Sequence[float]) -> TimeModel | None:
    """The model of a backend's measured times; None where they are too few to tell anything."""
    if len(shapes) < FEWEST:
        return None
    places, logs = _places(shapes), np.log(seconds)
    models = (
        _fitted(places, logs, reach, departure, noise)
        for reach, departure, noise in itertools.product(REACHES, DEPARTURES, NOISES)
    )
    return min(models, key=lambda model: model.error)


def beyond(shape: Sizes, measured: Sequence[Sizes]) -> str:
    """Which size of a shape, or total of its sizes, lies beyond the measured; empty where none."""
    sizes = _sizes([shape, *measured]).T.tolist()
    for axis, (size, *others) in zip(AXES, sizes, strict=True):
        margin = min(MARGIN, max(ALIKE, max(others) / min(others)))
        if not _within(size, others, margin):
            return _outside(axis, size, others)
    totals = _totals([shape, *measured]).T.tolist()
    for total, (size, *others) in zip(TOTALS, totals, strict=True):
        if not _within(size, others, MARGIN):
            return _outside(total, size, others)
    return ""


def _within(size: int, measured: Sequence[int], margin: float) -> bool:
    return min(measured) / margin <= size <= max(measured) * margin


def _outside(what: str, size: int, measured: Sequence[int]) -> str:
    low, high = min(measured), max(measured)
    known = str(low) if low == high else f"{low} to {high}"
    return f"{what} is {size}, the measured shapes have {known}"


def _fitted(
    places: np.ndarray, logs: np.ndarray, reach: float, departure: float, noise: float
) -> TimeModel:
    mean = float(logs.mean())
    alike = _alike(places, places, reach, departure) + noise**2 * np.eye(len(places))
    inverse = np.linalg.inv(alike)
    solved = inverse @ (logs - mean)
    # Rasmussen and Williams, Gaussian Processes for Machine Learning, equation 5.12.
    left_out = solved / np.diag(inverse)
    error = float(np.sqrt(np.mean(left_out**2)))
    return TimeModel(places, solved, inverse, mean, reach, departure, error)


def _alike(a: np.ndarray, b: np.ndarray, reach: float, departure: float) -> np.ndarray:
    """Covariance of the logarithms of two shapes' times."""
    squares = ((a[:, None] - b[None]) ** 2).sum(-1)
    covariance: np.ndarray = departure**2 * np.exp(-squares / (2 * reach**2))
    trend: np.ndarray = SLOPE**2 * (a @ b.T) + LEVEL**2
    together: np.ndarray = covariance + trend
    return together


def _places(shapes: Sequence[Sizes]) -> np.ndarray:
    """The logarithms of `_sizes`."""
    places: np.ndarray = np.log(_sizes(shapes))
    return places


def _sizes(shapes: Sequence[Sizes]) -> np.ndarray:
    """A row of `AXES` for each shape."""
    return np.array([(s.B * s.H, s.L, s.S, s.E + s.D) for s in shapes])


def _totals(shapes: Sequence[Sizes]) -> np.ndarray:
    """A row of `TOTALS` for each shape."""
    pairs, L, S, features = _sizes(shapes).T
    return np.array([pairs * (L + S) * features, pairs * L * S * features]).T
