"""One backend's time over another's, from turns that they took in the same blocks.

The block is the unit: what slows the machine for a while slows both turns of a block, and cancels
in their ratio. Samples of one process are no independent samples, so no test is made of them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from fullattention.records import Speed

REPORTED, DECIDING = 0.95, 0.99
"""Confidence of the interval that is told, and of the one that a verdict needs."""

PRECISION = 0.02
"""Two backends are tied where they differ by less for certain."""

TRIMMED = 0.2
"""Share of the blocks that is left out at either end."""

RESAMPLES = 2000

NINE_IN_TEN = (2.576 + 1.282) / 2.576
"""Half-widths of the deciding interval by which a ratio must differ from 1 for the interval to
exclude 1 nine times in ten: normal quantiles of 0.995 and 0.9."""


@dataclass(frozen=True)
class Ratio:
    """One backend's time over another's."""

    ratio: float
    low: float
    high: float
    """The 95 % interval."""
    surely_above: float
    surely_below: float
    """The 99 % interval."""
    blocks: int

    @property
    def verdict(self) -> Speed:
        """What is known of the first of the two."""
        if self.surely_above > 1:
            return "slower"
        if self.surely_below < 1:
            return "faster"
        near = 1 + PRECISION
        tied = self.surely_above > 1 / near and self.surely_below < near
        return "tie" if tied else "not settled"

    @property
    def smallest_difference(self) -> float:
        """A difference from 1 that these blocks would show nine times in ten."""
        half = math.log(self.surely_below / self.surely_above) / 2
        return math.expm1(NINE_IN_TEN * half)


def ratio_of(times: np.ndarray, against: np.ndarray) -> Ratio:
    """The ratio of two backends' times in the same blocks, in seconds.

    It is the trimmed mean of the blocks' logarithms, so that a block in which one turn met a
    disturbance hardly counts. Its intervals are bootstrapped over the blocks; the resampling is
    seeded, so that the same times give the same verdict.
    """
    logarithms = np.log(times / against)
    means = _middle(logarithms[_resampled(len(logarithms))])
    tails = [(1 - confidence) / 2 for confidence in (REPORTED, DECIDING)]
    quantiles = np.quantile(means, [tails[0], 1 - tails[0], tails[1], 1 - tails[1]])
    low, high, above, below = (float(x) for x in np.exp(quantiles))
    center = float(np.exp(_middle(logarithms)))
    return Ratio(center, low, high, above, below, len(logarithms))


def _middle(values: np.ndarray) -> np.ndarray:
    """Mean along the last axis without its lowest and its highest values."""
    cut = int(TRIMMED * values.shape[-1])
    middle = np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut]
    means: np.ndarray = middle.mean(axis=-1)
    return means


@functools.lru_cache(maxsize=256)
def _resampled(blocks: int) -> np.ndarray:
    """Blocks drawn with replacement: (resamples, blocks)."""
    return np.random.default_rng(blocks).integers(0, blocks, (RESAMPLES, blocks))
