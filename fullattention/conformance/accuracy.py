"""Checks of typical accuracy, where the bound speaks of the worst case.

Over many keys the worst case lies far above what happens. An implementation that rounds as it
declares errs about as much as a simulation that rounds so; one that secretly rounds more does not.
"""

from __future__ import annotations

import math

import numpy as np

from fullattention.backends.interface import Sizes
from fullattention.backends.precision import Precision
from fullattention.conformance.bound import expected_within, ratios
from fullattention.conformance.case import Case, Failed, compare, exact, expected, inputs, run
from fullattention.conformance.check import Checks, Evidence, case_check
from fullattention.conformance.subject import Subject

SUSPICIOUS, WRONG = 4.0, 10.0
"""Root mean square error over that of a simulation: honest ones lie between 0.4 and 8."""

PROBABILISTIC = 6.0
"""Constant of the probabilistic bound: rounding errors that are independent exceed it with a
probability of 2 exp(-18) per sum (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019)."""


def checks(dtype: str, primary: bool) -> Checks:
    """The checks for one dtype."""
    accuracy = "N5" if dtype == "float64" else "N1"
    case = Case(dtype=dtype, shape=Sizes(1, 24, 600, 2, 32, 16))
    yield case_check(accuracy, case, _typical_error, "typical error", quick=True)


def _typical_error(subject: Subject, case: Case) -> Evidence:
    precision = subject.precision[case.dtype]
    want = expected(case, precision)
    got = run(subject, case).out.astype(np.float64)
    ratio = compare("V", "blhd", got, want.out, want.out_bound)
    warning = _improbable(case, precision, got)
    if case.dtype == "float64":  # the oracle is too coarse to measure float64 by
        return Evidence(ratio=ratio, warning=warning)
    error = _rms(got - want.out)
    over = error / _rms(simulate(case, precision) - want.out)
    said = f"the typical error is {over:.3g} of what the declared precision gives"
    if not over <= WRONG:
        raise Failed(f"{said}: something rounds more than is declared", over)
    return Evidence(
        ratio=ratio,
        bits=-math.log2(error / _rms(want.out)),
        warning=said if over > SUSPICIOUS else warning,
    )


def _improbable(case: Case, precision: Precision, got: np.ndarray) -> str:
    """A warning where an error is possible, but improbable for independent roundings."""
    likely = expected_within(exact(case), precision, probabilistic=PROBABILISTIC)
    ratio = ratios(got, likely.out, likely.out_bound).max()
    return f"an error is {ratio:.3g} of the probabilistic bound" if ratio > 1 else ""


def _rms(array: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(array))))


def simulate(case: Case, precision: Precision) -> np.ndarray:
    """V (B, L, H, D) of a case without a mask, rounded at each step as declared."""
    p = precision
    work = np.float64 if p.u_acc < 2.0**-30 else np.float32
    q, k, v = (round_to(array.astype(work), p.u_in) for array in inputs(case))
    scale = work(exact(case).scale)
    scores = round_to(np.matmul(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1)), p.u_scores)
    scores = round_to(scores * scale, p.u_scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    if p.u_scores:  # what stores scores stores the normalised weights too
        weights = weights / weights.sum(-1, keepdims=True)
    weights = round_to(weights, p.u_weights)
    out: np.ndarray = np.matmul(weights, v.transpose(0, 2, 1, 3))
    out = out / weights.sum(-1, keepdims=True)
    return out.transpose(0, 2, 1, 3).astype(inputs(case)[0].dtype).astype(np.float64)


def round_to(array: np.ndarray, u: float) -> np.ndarray:
    """The array with the mantissas that a unit roundoff of u leaves; 0 leaves all."""
    if u == 0:
        return array
    mantissa, exponent = np.frexp(array)
    rounded: np.ndarray = np.ldexp(np.round(mantissa / u) * u, exponent)
    return rounded.astype(array.dtype)
