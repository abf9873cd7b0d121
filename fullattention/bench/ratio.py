"""One backend's time over another's, from turns that they took in the same blocks.

The block is the unit: what slows the machine for a while slows both turns of a block, and cancels
in their ratio. Samples of one process are no independent samples, so no test is made of them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from fullattention.records import Speed

REPORTED, FINAL, INTERIM = 0.95, 0.99, 0.998
"""Confidence of the interval that is told; of the one that a verdict needs in the end; and of the
one that a verdict needs before, since each look is one more chance to be wrong."""

PRECISION = 0.02
"""Two backends are tied where they differ by less for certain."""

NEGLIGIBLE = 0.01
"""A smaller difference names no winner, however sure it is: two processes of one backend may differ
by as much, from where their memory happens to lie."""

TRIMMED, FEW = 0.2, 8
"""Share of the blocks that is left out at either end, and how many blocks are too few for that."""

RESAMPLES = 1000


@dataclass(frozen=True)
class Ratio:
    """One backend's time over another's, both in the same blocks."""

    logarithm: float
    """Of the ratio: the trimmed mean over the blocks."""
    error: float
    """The logarithm's standard error."""
    blocks: int

    @property
    def ratio(self) -> float:
        """The ratio itself."""
        return math.exp(self.logarithm)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Where the ratio lies with this confidence."""
        half = self._half_width(confidence)
        return math.exp(self.logarithm - half), math.exp(self.logarithm + half)

    def verdict(self, confidence: float) -> Speed:
        """What is known of the first of the two."""
        low, high = self.interval(confidence)
        if low > 1 and self.ratio > 1 + NEGLIGIBLE:
            return "slower"
        if high < 1 and self.ratio < 1 / (1 + NEGLIGIBLE):
            return "faster"
        near = 1 + PRECISION
        return "tie" if 1 / near < low and high < near else "not settled"

    @property
    def smallest_difference(self) -> float:
        """A difference from 1 that these blocks show nine times in ten."""
        usual = NormalDist().inv_cdf(0.9) * self.error
        return math.expm1(self._half_width(FINAL) + usual)

    def _half_width(self, confidence: float) -> float:
        used = self.blocks - 2 * _cut(self.blocks)
        return student_quantile((1 + confidence) / 2, used - 1) * self.error


def ratio_of(times: np.ndarray, against: np.ndarray) -> Ratio:
    """The ratio of two backends' times in the same blocks, two at least.

    It is a trimmed mean, so that a block in which one turn met a disturbance hardly counts. Its
    error is bootstrapped over the blocks; the resampling is seeded, so that the same times give the
    same verdict.
    """
    logarithms = np.log(times / against)
    blocks = len(logarithms)
    means = _middle(logarithms[_resampled(blocks)])
    # Resamples of so few blocks scatter less than the blocks do.
    error = float(means.std()) * math.sqrt(blocks / (blocks - 1))
    return Ratio(float(_middle(logarithms)), error, blocks)


def _middle(values: np.ndarray) -> np.ndarray:
    """Mean along the last axis without its lowest and its highest values."""
    cut = _cut(values.shape[-1])
    means: np.ndarray = np.sort(values)[..., cut : values.shape[-1] - cut].mean(axis=-1)
    return means


def _cut(blocks: int) -> int:
    return int(TRIMMED * blocks) if blocks >= FEW else 0


@functools.lru_cache(maxsize=256)
def _resampled(blocks: int) -> np.ndarray:
    """Blocks drawn with replacement: (resamples, blocks)."""
    return np.random.default_rng(blocks).integers(0, blocks, (RESAMPLES, blocks))


@functools.cache
def student_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t by its expansion in 1 / freedom: to 3 % from 3 on, to 1 % from 5."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    quantile: float = z + sum(term / freedom**power for power, term in enumerate(terms, 1))
    return quantile
