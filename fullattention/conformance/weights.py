"""Checks of the contract's section weights."""

from __future__ import annotations

import numpy as np

from fullattention.backends.interface import Sizes
from fullattention.conformance import masks
from fullattention.conformance.bound import Expected
from fullattention.conformance.case import (
    Answer,
    Case,
    Failed,
    compare,
    expected_of,
    inputs,
    judge,
    put,
    put_mask,
    run,
    trained_layer,
)
from fullattention.conformance.check import Checks, case_check
from fullattention.conformance.subject import Subject


def checks(dtype: str, primary: bool) -> Checks:
    """The section's checks for one dtype."""
    base = Case(dtype=dtype, weights=True)
    square = base.but(shape=Sizes(2, 7, 7, 3, 11, 13))
    cases = [base, base.but(mask="random/BHLS"), square.but(mask=masks.CAUSAL)]
    for case in cases:
        yield case_check("W1", case, quick=True)
        yield case_check("W2", case, _row_sums, "rows", quick=True)
    if not primary:
        return
    for shape in (Sizes(8, 6, 6, 2, 8, 8), Sizes(1, 33, 65, 2, 8, 8), Sizes(3, 1, 1, 2, 4, 4)):
        yield case_check("W1", base.but(shape=shape))
    # More keys than a tile holds: each row is normalised by the sum over all of them.
    yield case_check("W2", base.but(shape=Sizes(1, 4, 600, 2, 8, 8)), _row_sums, "rows")
    yield case_check("W1", base, contiguous, "contiguous", quick=True)
    for case in cases:
        yield case_check("W1", case, _product, "V is their product with the values", quick=True)


def _row_sums(subject: Subject, case: Case) -> float:
    weights = run(subject, case).weights
    assert weights is not None
    bound = expected_of(subject, case).weights_bound.sum(-1)
    sums = weights.astype(np.float64).sum(-1)
    return compare("sum of a row of weights", "bhl", sums, np.ones(sums.shape), bound)


def contiguous(subject: Subject, case: Case, *, p: float = 0.0) -> None:
    """The weights lie in C order, in training where p, the dropout, is not 0.

    Raises:
        Failed: they do not.
    """
    _, weights = trained_layer(subject, case, p)(*put(subject, case), put_mask(subject, case))
    if subject.arrays.contiguous(weights) is not weights:
        raise Failed("weights are not contiguous")


def _product(subject: Subject, case: Case) -> float:
    got, want = run(subject, case), expected_of(subject, case)
    return max(judge(got, want), compare_product(case, got, want))


def compare_product(case: Case, got: Answer, want: Expected, growth: float = 1.0) -> float:
    """Compare V with the returned weights times the values.

    Dropout divides by 1 - p, which multiplies every error: that is `growth`.

    Raises:
        Failed: they differ by more than both may be wrong.
    """
    assert got.weights is not None
    values = inputs(case)[2].astype(np.float64).transpose(0, 2, 1, 3)
    product = np.matmul(got.weights.astype(np.float64), values).transpose(0, 2, 1, 3)
    slack = np.matmul(want.weights_bound, abs(values)).transpose(0, 2, 1, 3)
    bound = growth * (want.out_bound + slack)
    return compare("V against weights @ values", "blhd", got.out, product, bound)
