"""Checks of the contract's section dropout.

No two random generators agree, so dropout is judged through what it leaves: with the identity as
values V holds the weights after dropout, whether or not they are returned.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from fullattention.conformance import masks
from fullattention.conformance.case import (
    Case,
    Failed,
    answer,
    check_case,
    compare,
    expected,
    judge,
    layer_for,
    put,
    put_mask,
    run,
)
from fullattention.conformance.check import Check, Checks, needs_of
from fullattention.conformance.core import refuses
from fullattention.conformance.data import numpy_dtype
from fullattention.conformance.subject import Subject
from fullattention.conformance.weights import compare_product
from fullattention.layer import Sizes

SIGMAS = 6.0
"""Width of every statistical limit: an honest candidate leaves it once in 5e8 trials."""

SHAPE = Sizes(3, 16, 24, 5, 8, 24)
"""D = S, so that the identity fits; 5760 weights."""


def checks(dtype: str, primary: bool) -> Checks:
    """The section's checks for one dtype."""
    base = Case(dtype=dtype, shape=SHAPE, data="uniform")
    yield _check("P1", "p=0.5 in eval", base, _eval_is_identity, needs="")
    yield _check("P2", "p=0.5", base, functools.partial(_statistics, p=0.5))
    if not primary:
        return
    yield _check("P1", "p=0 in training", base, _zero_is_identity, needs="")
    yield _check("P1", "p=1", base, _one_is_zero)
    for p in (-0.1, 1.5, math.nan):
        yield _check("P1", f"p={p} is refused", base, functools.partial(_refused, p=p), needs="")
    yield _check("P2", "p=0.1", base, functools.partial(_statistics, p=0.1))
    masked = base.but(mask="random/BHLS")
    yield _check("P2", "p=0.3", masked, functools.partial(_statistics, p=0.3))
    yield _check("P3", "seeds", base, _seeds)
    weights = base.but(weights=True)
    yield _check("P2", "weights are those after dropout", weights, _weights_after)


def _check(
    requirement: str,
    label: str,
    case: Case,
    trial: Callable[[Subject, Case], float | None],
    needs: str = "dropout",
) -> Check:
    return Check(
        requirement=requirement,
        label=f"{label} {case}",
        dtype=case.dtype,
        run=lambda subject: trial(subject, case),
        needs=needs_of(case) | frozenset(needs.split()),
        quick=True,
    )


def _eval_is_identity(subject: Subject, case: Case) -> float:
    got = run(subject, case, dropout=0.5, training=False)
    return judge(case, got, expected(case, subject.precision[case.dtype]))


def _zero_is_identity(subject: Subject, case: Case) -> float:
    got = run(subject, case, dropout=0.0, training=True)
    return max(
        judge(case, got, expected(case, subject.precision[case.dtype])), check_case(subject, case)
    )


def _one_is_zero(subject: Subject, case: Case) -> None:
    got = run(subject, case, dropout=1.0, training=True).out
    if not (got == 0).all():
        raise Failed(f"p = 1 must give zeros, got {got.ravel()[0]} and others")


def _refused(subject: Subject, case: Case, p: float) -> None:
    refuses(lambda: run(subject, case, dropout=p, training=True))


def _dropped(subject: Subject, case: Case, p: float) -> np.ndarray:
    """Weights after dropout (B, H, L, S), read through values that are the identity."""
    q, k, _ = put(subject, case)
    B, _, S, H, _, _ = case.shape
    identity = np.broadcast_to(np.eye(S)[None, :, None, :], (B, S, H, S))
    v = subject.arrays.put(identity.astype(numpy_dtype(case.dtype)), subject.device)
    layer = layer_for(subject, case, dropout=p, training=True)
    got = answer(subject, case, layer(q, k, v, put_mask(subject, case))).out
    return got.astype(np.float64).transpose(0, 2, 1, 3)


def _statistics(subject: Subject, case: Case, p: float) -> float:
    """Kept weights are the exact ones over 1 - p; each is kept independently, at rate 1 - p."""
    precision = subject.precision[case.dtype]
    want = expected(case, precision)
    subject.seed(1234)
    weights = _dropped(subject, case, p)
    kept = weights != 0
    hidden = masks.hidden_by(case.mask, case.shape, case.seed)
    visible = ~np.broadcast_to(False if hidden is None else hidden, weights.shape)
    if (kept & ~visible).any():
        raise Failed("a hidden key has a weight that is not 0")
    scaled = np.where(kept, want.weights / (1 - p), 0.0)
    rounding = 4 * max(precision.u_out, precision.u_weights, precision.u_softmax)
    bound = want.weights_bound / (1 - p) + rounding * want.weights / (1 - p) + precision.eta_out
    ratio = compare("weights after dropout", "bhls", weights, scaled, bound)
    _require_share(kept[visible], 1 - p, "share of kept weights")
    for axis, name in enumerate("bhls"):
        ahead, behind = _neighbours(kept, axis), _neighbours(kept, axis, last=True)
        both = _neighbours(visible, axis) & _neighbours(visible, axis, last=True)
        _require_share(
            (ahead == behind)[both],
            p**2 + (1 - p) ** 2,
            f"share of neighbours along {name} that are dropped or kept together",
        )
    return ratio


def _neighbours(array: np.ndarray, axis: int, *, last: bool = False) -> np.ndarray:
    """All entries along an axis but the last, or but the first."""
    count = array.shape[axis]
    return np.take(array, range(1, count) if last else range(count - 1), axis)


def _require_share(events: np.ndarray, share: float, what: str) -> None:
    """Require that a share of events lies within its binomial limits.

    Neighbouring pairs overlap, so agreement has at most twice the variance of independent trials.
    """
    deviation = math.sqrt(2 * share * (1 - share) / events.size)
    found = events.mean()
    if not abs(found - share) <= SIGMAS * deviation:
        raise Failed(f"{what}: {found:.4f}, expected {share:.4f} +- {SIGMAS * deviation:.4f}")


def _seeds(subject: Subject, case: Case) -> None:
    subject.seed(7)
    first, second = _dropped(subject, case, 0.5), _dropped(subject, case, 0.5)
    subject.seed(7)
    again = _dropped(subject, case, 0.5)
    if not np.array_equal(first, again):
        raise Failed("the same seed dropped other weights")
    if np.array_equal(first, second):
        raise Failed("two calls in a row dropped the same weights")


def _weights_after(subject: Subject, case: Case) -> float:
    """V equals the returned weights times the values, so they are those that were used."""
    got = run(subject, case, dropout=0.5, training=True)
    assert got.weights is not None
    if (got.weights != 0).all():
        raise Failed("the returned weights are those before dropout: none is 0")
    want = expected(case, subject.precision[case.dtype])
    return compare_product(case, got, want, growth=2.0)
