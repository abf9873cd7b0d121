"""Random queries, keys and values for a workload, made once and read by every process.

Before a result is looked at, some of the numbers change in place. A backend that kept something of
an earlier call, and knows it again by addresses or by a few of the values, is then wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fullattention.bench.modes import Inputs
from fullattention.bench.workloads import Workload
from fullattention.conformance.data import numpy_dtype

SEED = 2017
"""Every timing uses the same numbers, so that a wrong one can be looked into."""

SETS = 4
"""Different inputs that calls take in turn: the result of the last call is wrong for this one."""

PAGE = 4096
"""Bytes. Every array begins on a page, and each set of inputs one page after the last."""

AT_ONCE = 2**22
"""Numbers that are drawn at once, to spare memory."""

RENEWED = 16
"""Queries or keys that change for a look, at most: so few that only who reads all inputs is sure to
see it."""

DRAWN = 0
"""In place of a look's number where there is none: the inputs are as they were drawn."""

Strided = Callable[[Any, tuple[int, ...], tuple[int, ...], int], Any]
"""Makes a view of a 1-D array: shape, strides and offset in elements."""


def _view(
    numbers: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> np.ndarray:
    return numbers[offset : offset + math.prod(shape)].reshape(shape)


class Spot(NamedTuple):
    """Where a look is sure to look: batch entry, head and query, and a key that changes for it."""

    b: int
    h: int
    query: int
    key: int


def spot(workload: Workload, look: int) -> Spot:
    """A random place for each look."""
    B, L, S, H, _, _ = workload.shape
    return Spot(*map(int, np.random.default_rng([SEED, look]).integers((B, H, L, S))))


def _draw(numbers: np.ndarray, random: np.random.Generator) -> None:
    """Fill an array with normal deviates."""
    kind = np.float64 if numbers.dtype == np.float64 else np.float32
    numbers[:] = random.standard_normal(len(numbers), kind).astype(numbers.dtype, copy=False)


@dataclass(frozen=True)
class InputPool:
    """A file of random numbers, and where in it the inputs of a workload lie.

    The sets overlap: each argument is that of the set before it, one page further on. So they have
    other values at other addresses, and hardly take more memory than one.
    """

    path: Path
    workload: Workload

    @property
    def bytes(self) -> int:
        """Size of the file."""
        elements = sum(map(self._room, self._shapes()))
        return elements * numpy_dtype(self.workload.dtype).itemsize

    def write(self, seed: int) -> None:
        """Draw the numbers.

        Normal deviates: unlike small whole numbers, they round in every step, so that an error in
        precision shows.
        """
        random = np.random.default_rng(seed)
        numbers = self._map("w+")
        for start in range(0, len(numbers), AT_ONCE):
            _draw(numbers[start : start + AT_ONCE], random)

    def read_only(self) -> np.ndarray:
        """The numbers, 1-D, as they were drawn."""
        return self._map("r")

    def private(self) -> np.ndarray:
        """The numbers, 1-D, in memory shared until this process writes to it."""
        return self._map("c")

    def renewed(self, look: int) -> np.ndarray:
        """As `private`, with other numbers in the `spans` of a look."""
        numbers, random = self.private(), np.random.default_rng([SEED, look])
        for span in self.spans(look):
            _draw(numbers[span], random)
        return numbers

    def spans(self, look: int) -> list[slice]:
        """Where the numbers of a look differ from those that were drawn.

        It is some rows of the spot's batch entry in each argument of each set.
        """
        if look == DRAWN:
            return []
        at = spot(self.workload, look)
        found, begin = [], 0
        for shape, row in zip(self._shapes(), (at.query, at.key, at.key, at.query), strict=False):
            start = begin + int(np.ravel_multi_index((at.b, row, 0, 0), shape))
            length = min(RENEWED, shape[1] - row) * math.prod(shape[2:])
            steps = (number * self._page for number in range(SETS))
            found += [slice(start + step, start + step + length) for step in steps]
            begin += self._room(shape)
        return found

    def sets(self, numbers: Any, strided: Strided = _view) -> list[Inputs]:
        """Each set of inputs, as views, which read nothing.

        q is (B, L, H, E), k (B, S, H, E), v (B, S, H, D), and where the workload has a backward
        pass g is (B, L, H, D).

        Args:
            numbers: what `read_only` or `private` gives, or an array of another library over it.
            strided: makes views of `numbers`.
        """
        return [self._inputs(numbers, number * self._page, strided) for number in range(SETS)]

    def _inputs(self, numbers: Any, offset: int, strided: Strided) -> Inputs:
        arrays = []
        for shape in self._shapes():
            strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
            arrays.append(strided(numbers, shape, strides, offset))
            offset += self._room(shape)
        return Inputs(*arrays, *[None] * (len(Inputs._fields) - len(arrays)))

    def _shapes(self) -> list[tuple[int, ...]]:
        B, L, S, H, E, D = self.workload.shape
        shapes: list[tuple[int, ...]] = [(B, L, H, E), (B, S, H, E), (B, S, H, D)]
        return [*shapes, (B, L, H, D)] if self.workload.mode == "training" else shapes

    @property
    def _page(self) -> int:
        return PAGE // numpy_dtype(self.workload.dtype).itemsize

    def _room(self, shape: tuple[int, ...]) -> int:
        """Elements between one argument and the next: whole pages, enough for all sets."""
        return (-(-math.prod(shape) // self._page) + SETS - 1) * self._page

    def _map(self, mode: Any) -> np.ndarray:
        mapped = np.memmap(self.path, np.uint8, mode, shape=(self.bytes,))
        return np.asarray(mapped).view(numpy_dtype(self.workload.dtype))
