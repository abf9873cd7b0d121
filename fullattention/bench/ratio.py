"""One backend's time over another's, from turns that their processes took in the same blocks.

The block is the unit against what slows the machine for a while: it slows all turns of a block, and
cancels in their ratio. The process is the unit against what a process keeps as long as it lives,
whatever makes it faster or slower than the next one of the same backend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from fullattention.records import Speed

REPORTED, FINAL, INTERIM = 0.95, 0.99, 0.998
"""Confidence of the interval that is reported, of the one that decides the final verdict, and of
the one that decides while the contest runs: there each look is one more chance to be wrong."""

PRECISION = 0.02
"""Two backends are tied where they certainly differ by less than this."""

USUAL_SPREAD = 0.01
"""Standard deviation between the logarithmic times of a backend's processes, before any are seen:
that of calls of microseconds, where it is least."""

USUAL_WEIGHT = 0.5
"""How many differences between processes that counts for. It keeps processes that agree by chance
from making everything else a winner; a larger weight would hide a large spread."""

SEEN = 0.05
"""How far the mean of a process's turns may scatter before it tells little of processes."""

TRIMMED, FEW = 0.2, 8
"""Share of the blocks that is left out at either end; of fewer than `FEW` none are."""


@dataclass(frozen=True)
class Spread:
    """How much the processes of one backend differ; the scatter of their turns' means is in it."""

    variance: float
    """Of the logarithm of a process's time."""
    freedom: float
    """Degrees of freedom of that figure."""

    @property
    def difference(self) -> float:
        """What two processes of one backend usually differ by, as a share of their time."""
        return math.expm1(math.sqrt(2 * self.variance))


SAME_PROCESS = Spread(0.0, math.inf)
"""Of two that take their turns in one process."""


@dataclass(frozen=True)
class Ratio:
    """One backend's time over another's, both in the same blocks."""

    logarithm: float
    """Of the ratio."""
    error: float
    """The logarithm's standard error."""
    freedom: float
    """Degrees of freedom of the error."""
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
        if low > 1:
            return "slower"
        if high < 1:
            return "faster"
        near = 1 + PRECISION
        return "tie" if 1 / near < low and high < near else "not settled"

    @property
    def smallest_difference(self) -> float:
        """A difference from 1 that such turns show nine times in ten."""
        usual = NormalDist().inv_cdf(0.9) * self.error
        return math.expm1(self._half_width(FINAL) + usual)

    def _half_width(self, confidence: float) -> float:
        return student_quantile((1 + confidence) / 2, self.freedom) * self.error


def spread_of(times: Sequence[np.ndarray]) -> Spread:
    """How much the processes of one backend differ, pooled over backends.

    A backend counts for less the more the means of its processes scatter by themselves: by the
    inverse of the variance that its variance would have if processes differed by `SEEN`.

    Args:
        times: of each backend, (blocks, processes), two blocks at least.
    """
    found = [_between_processes(one) for one in times]
    least = min(scatter for _, scatter in found)
    squares, freedom = USUAL_WEIGHT * USUAL_SPREAD**2, USUAL_WEIGHT
    for one, (deviations, scatter) in zip(times, found, strict=True):
        weight = ((SEEN**2 + least) / (SEEN**2 + scatter)) ** 2
        squares += weight * float((deviations**2).sum())
        freedom += weight * (one.shape[1] - 1)
    return Spread(squares / freedom, freedom)


def _between_processes(times: np.ndarray) -> tuple[np.ndarray, float]:
    """Deviations of each process's logarithmic time from the mean of all, and their variance."""
    logarithms = np.log(times)
    pairings = logarithms[:, :, None] - logarithms[:, None, :]
    deviations: np.ndarray = _middle(pairings).mean(axis=1)
    return deviations, float(_variance(_winsorized(pairings).mean(axis=2)).mean())


def ratio_of(times: np.ndarray, against: np.ndarray, spread: Spread) -> Ratio:
    """The ratio of two backends' times (blocks, processes) in the same blocks, two at least.

    Each pairing of their processes gives a trimmed mean over the blocks, so that a block in which a
    turn met a disturbance hardly counts; the logarithm is the mean of all pairings. Its variance is
    that over the blocks and that of two samples of processes. Degrees of freedom by Welch and
    Satterthwaite.
    """
    pairings = np.log(times)[:, :, None] - np.log(against)[:, None, :]
    blocks, *processes = pairings.shape
    of_blocks = float(_variance(_winsorized(pairings).mean(axis=(1, 2))))
    of_processes = spread.variance * sum(1 / number for number in processes)
    variance = of_blocks + of_processes
    share = of_blocks / variance if variance else 1.0
    freedom = 1 / (share**2 / (_used(blocks) - 1) + (1 - share) ** 2 / spread.freedom)
    return Ratio(float(_middle(pairings).mean()), math.sqrt(variance), freedom, blocks)


def _middle(values: np.ndarray) -> np.ndarray:
    """Mean over the blocks, along the first axis, without the lowest and the highest values."""
    cut = _cut(len(values))
    means: np.ndarray = np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)
    return means


def _winsorized(values: np.ndarray) -> np.ndarray:
    """The values, those that `_middle` leaves out replaced by the nearest that it does not."""
    cut, ordered = _cut(len(values)), np.sort(values, axis=0)
    nearest: np.ndarray = np.clip(values, ordered[cut], ordered[len(values) - cut - 1])
    return nearest


def _variance(values: np.ndarray) -> np.ndarray:
    """Of the trimmed mean, by winsorized values (Tukey and McLaughlin 1963, Yuen 1974)."""
    used = _used(len(values))
    squares: np.ndarray = ((values - values.mean(axis=0)) ** 2).sum(axis=0)
    return squares / (used * (used - 1))


def _used(blocks: int) -> int:
    """Blocks that a trimmed mean is of."""
    return blocks - 2 * _cut(blocks)


def _cut(blocks: int) -> int:
    return int(TRIMMED * blocks) if blocks >= FEW else 0


def student_quantile(probability: float, freedom: float) -> float:
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
