"""Which cases a pack holds: what can be asked of an implementation by numbers alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fullattention.backends.interface import Sizes
from fullattention.conformance import masks
from fullattention.conformance.addresses import GATHER_SCALE, gather, parity
from fullattention.conformance.case import DISTINCT, Case, inputs
from fullattention.conformance.data import REGIMES, Inputs

SQUARE = Sizes(2, 7, 7, 3, 11, 13)

MASK_AXES = (
    *("", "S", "1", "LS", "L1", "1S", "HLS", "1LS", "H1S"),
    *("11LS", "B1LS", "1HLS", "BHLS", "B11S", "BH1S", "B1L1", "1H1S", "1111"),
)
"""Mask shapes: the axes that are there in full, and 1 for those of length 1."""

LENGTHS = (2, 3, 8, 15, 16, 17, 31, 33, 63, 65, 127, 129, 256, 257)
"""Numbers of keys around the edges of tiles."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One case of a pack."""

    requirement: str
    text: str
    """What it is, in one line."""
    case: Case
    arrays: Inputs
    tolerance: float | None = None
    """Allowed error of V where it is not derived: 0 where the result is exact."""


def entries(dtype: str) -> Iterator[Entry]:
    """The cases of one dtype, in the contract's order."""
    yield from _exact(dtype)
    for requirement, case in _cases(Case(dtype=dtype)):
        yield Entry(requirement, str(case), case, inputs(case))


def _exact(dtype: str) -> Iterator[Entry]:
    for axis in "bshd":
        case = Case(shape=Sizes(3, 5, 16, 4, 8, 6), dtype=dtype, scale=GATHER_SCALE)
        arrays = gather(case.shape, dtype, axis, case.seed)
        text = f"each value is its own index along {axis}, each query reads one key: {case}"
        yield Entry("C1", text, case, arrays, tolerance=0.0)
    for bits in (6, 9):
        case = Case(shape=Sizes(1, 3, 2**bits, 2, 4, bits), dtype=dtype)
        text = f"equal weights, values +-1 by each bit of s: {case}"
        # Half a key's worth: room for weights that are not exactly 1 / S, none for a lost key.
        arrays = parity(case.shape, dtype)
        yield Entry("N1", text, case, arrays, tolerance=0.5 / case.shape.S)


def _cases(base: Case) -> Iterator[tuple[str, Case]]:
    yield from _sizes(base)
    yield from _scales(base)
    yield from _masks(base)
    yield from _hidden_rows(base)
    yield from _regimes(base)
    yield from _special_values(base)


def _sizes(base: Case) -> Iterator[tuple[str, Case]]:
    for shape in (DISTINCT, Sizes(3, 7, 5, 2, 13, 11), Sizes(8, 6, 6, 2, 8, 8)):
        yield "C1", base.but(shape=shape)
    for shape in (Sizes(1, 1, 1, 1, 1, 1), Sizes(2, 1, 9, 3, 8, 8), Sizes(2, 9, 1, 3, 8, 8)):
        yield "C5", base.but(shape=shape)
    for S in LENGTHS:
        yield "C5", base.but(shape=Sizes(1, 2, S, 2, 8, 9))
    yield "C5", base.but(shape=Sizes(1, 129, 5, 2, 8, 3))
    for E in (1, 7, 33, 64):
        yield "C5", base.but(shape=Sizes(2, 3, 5, 2, E, 4))
    yield "C5", base.but(shape=Sizes(2, 3, 5, 2, 4, 33))


def _scales(base: Case) -> Iterator[tuple[str, Case]]:
    yield "S1", base.but(shape=Sizes(2, 5, 6, 3, 16, 4))
    yield "S2", base.but(scale=0.0)
    for scale in (1e-3, 0.3, 1.0, 2.5, -0.3, math.nan, math.inf):
        yield "S4", base.but(scale=scale)
    yield "S3", base.but(scale=-0.3, mask="padding/B1LS")
    yield "S3", base.but(scale=-0.3, mask=masks.CAUSAL, shape=SQUARE)


def _masks(base: Case) -> Iterator[tuple[str, Case]]:
    for n, H in ((2, 3), (7, 3), (17, 2), (33, 2), (65, 1)):
        yield "M2", base.but(shape=Sizes(1, n, n, H, 8, 9), mask=masks.CAUSAL)
    yield "M2", base.but(shape=Sizes(2, 1, 9, 3, 8, 8), mask=masks.CAUSAL)
    for axes in MASK_AXES:
        pattern = "random" if axes.endswith("S") else "none"
        yield "M4", base.but(mask=f"{pattern}/{axes}")
    yield "M4", base.but(shape=Sizes(1, 40, 40, 1, 8, 9), mask="band/LS")
    yield "M4", base.but(shape=SQUARE, mask="random/LS")
    yield "M5", base.but(mask="padding/B11S")


def _hidden_rows(base: Case) -> Iterator[tuple[str, Case]]:
    for mask in ("rows/B1LS", "rows/BHLS", "all/LS", "all/"):
        for rows in ("nan", "zero"):
            yield "M6", base.but(mask=mask, masked_rows=rows)


def _regimes(base: Case) -> Iterator[tuple[str, Case]]:
    """All but scores beyond float16's range, which not every class promises."""
    requirement = "N5" if base.dtype == "float64" else "N1"
    for regime in REGIMES:
        if regime != "wide-scores":
            yield requirement, base.but(data=regime)
            yield requirement, base.but(data=regime, shape=Sizes(1, 4, 70, 2, 12, 9))
    yield requirement, base.but(data="staircase", shape=SQUARE, mask=masks.CAUSAL)
    yield requirement, base.but(data="uniform", shape=Sizes(1, 2, 600, 2, 16, 8))


def _special_values(base: Case) -> Iterator[tuple[str, Case]]:
    for poison in ("large-last-key", "large-last-value", "low-visible-scores"):
        yield "M7", base.but(poison=poison, mask="tail/S")
    yield "M7", base.but(poison="low-visible-scores", mask=masks.CAUSAL, shape=SQUARE)
    for value in ("nan", "infinity"):
        for place in ("query", "key", "value"):
            yield "N4", base.but(poison=f"{value}-in-{place}")
    for poison in ("nan-in-last-key", "nan-in-last-value", "overflow-in-last-key"):
        yield "N4", base.but(poison=poison, mask="tail/S")
