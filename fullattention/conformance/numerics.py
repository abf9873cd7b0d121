"""Checks of the contract's section numerics: regimes, exact sums, range, special values."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from fullattention.backends.interface import Sizes
from fullattention.conformance import addresses, masks
from fullattention.conformance.case import (
    DISTINCT,
    Case,
    Failed,
    answer,
    compare,
    layer_for,
)
from fullattention.conformance.check import Check, Checks, case_check
from fullattention.conformance.core import gather
from fullattention.conformance.data import REGIMES
from fullattention.conformance.subject import Subject

EXTREME = {"float64": 2.0**500, "float32": 2.0**60, "float16": 2.0**6, "bfloat16": 2.0**60}
"""q and k whose scores, 8 squares, are the largest that a dtype holds with room to spare."""

COARSEST = 2.0**-50
"""Largest unit roundoff that counts as float64's: some steps round twice, some truncate."""

SAFE = ("large", "huge", "deep-negative", "staircase")
"""Regimes whose scores overflow exp where no maximum is subtracted, or where it is a wrong one."""


def checks(dtype: str, primary: bool) -> Checks:
    """The section's checks for one dtype."""
    base = Case(dtype=dtype)
    accuracy = "N5" if dtype == "float64" else "N1"
    for regime in REGIMES:
        if regime == "wide-scores":  # beyond what every backend promises: see _half
            continue
        requirement = "N2" if regime in SAFE else accuracy
        quick = regime in ("large", "huge", "deep-negative", "value-offset", "tiny-values")
        for shape in (DISTINCT, Sizes(1, 6, 70, 2, 12, 9)):
            yield case_check(requirement, base.but(data=regime, shape=shape), quick=quick)
        if primary:
            causal = base.but(data=regime, shape=Sizes(1, 37, 37, 2, 8, 8), mask=masks.CAUSAL)
            yield case_check(requirement, causal)
    yield case_check(accuracy, base.but(shape=Sizes(1, 4, 600, 2, 64, 8), data="uniform"))
    yield case_check(accuracy, base.but(shape=Sizes(1, 33, 64, 2, 128, 32)), quick=True)
    for S in (64, 4096):
        case = base.but(shape=Sizes(1, 3, S, 2, 8, S.bit_length()))
        yield case_check(accuracy, case, _parity, "parity", quick=True)
    extreme = base.but(shape=Sizes(2, 9, 16, 3, 8, 5))
    among = functools.partial(gather, axis="s", size=EXTREME[dtype])
    yield case_check("N2", extreme, among, "gather among extreme scores", quick=True)
    yield from _half(base)
    yield from _special(base, quick=primary)
    if dtype == "float64":
        yield Check(
            requirement="N5",
            label=f"declared precision dtype={dtype}",
            dtype=dtype,
            run=_declares_float64,
            quick=True,
        )


def _declares_float64(subject: Subject) -> None:
    """Require figures near float64's own: results are judged by what is declared."""
    declared = dataclasses.asdict(subject.precision["float64"])
    for name, u in declared.items():
        if name.startswith("u_") and not u <= COARSEST:
            raise Failed(f"declares {name} = {u:.2g} for float64, whose own is {2.0**-53:.2g}")


def _parity(subject: Subject, case: Case) -> float:
    """Equal weights, and values of +-1 by each bit of s: their mean is 0, that of a last column 1.

    One key missing, doubled or misread shows as 1 / S, which any precision represents.
    """
    inputs = addresses.parity(case.shape, case.dtype)
    arrays = (subject.arrays.put(array, subject.device) for array in inputs)
    got = answer(subject, case, layer_for(subject, case)(*arrays, None)).out
    want = np.zeros(got.shape)
    want[..., -1] = 1
    # Half a key's worth: room for weights that are not exactly 1 / S, none for a lost key.
    rounding = 2 * subject.precision[case.dtype].u_out * want
    return compare("V", "blhd", got, want, 0.5 / case.shape.S + rounding)


def _half(base: Case) -> Checks:
    if base.dtype not in ("float16", "bfloat16"):
        return
    yield case_check("N3", base.but(shape=Sizes(1, 6, 1030, 2, 8, 8), data="uniform"), quick=True)
    yield case_check("N3", base.but(shape=Sizes(1, 6, 520, 2, 8, 8), data="value-offset"))
    if base.dtype == "float16":
        wide = base.but(shape=Sizes(2, 5, 7, 3, 8, 13), data="wide-scores")
        yield case_check("N3", wide, quick=True, needs="wide_scores")


def _special(base: Case, *, quick: bool) -> Checks:
    for poison in (
        "nan-in-query",
        "infinity-in-query",
        "nan-in-key",
        "infinity-in-key",
        "nan-in-value",
        "infinity-in-value",
    ):
        yield case_check("N4", base.but(poison=poison), quick=quick)
        # Sums of 33: matrix units read whole tiles, and what lies behind a row must not matter.
        yield case_check("N4", base.but(poison=poison, shape=Sizes(2, 20, 40, 3, 33, 8)))
    for poison in ("nan-in-last-key", "nan-in-last-value", "overflow-in-last-key"):
        yield case_check("N4", base.but(poison=poison, mask="tail/S"), quick=quick)
    with_weights = base.but(weights=True)  # a row of them may be spoilt while its V is right
    for poison in ("nan-in-query", "infinity-in-query", "nan-in-key", "infinity-in-key"):
        first = quick and poison == "nan-in-key"
        yield case_check("N4", with_weights.but(poison=poison), quick=first)
    yield case_check("N4", with_weights.but(poison="nan-in-last-key", mask="tail/S"))
    if quick:
        causal = base.but(shape=Sizes(1, 40, 40, 2, 8, 8), mask=masks.CAUSAL)
        for poison in ("nan-in-last-key", "nan-in-last-value"):
            yield case_check("N4", causal.but(poison=poison))
        for mask in ("tail/B1LS", "tail/BHLS"):
            yield case_check("N4", with_weights.but(poison="nan-in-last-key", mask=mask))
