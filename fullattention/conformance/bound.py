"""How far an honest result may lie from the oracle, element by element.

The bound is a standard forward error analysis (Higham, Accuracy and Stability of Numerical
Algorithms, chapter 3: gamma_n = n u / (1 - n u)) carried through the three steps of attention:
scores, softmax, weighted sum. Scores perturbed by `d` leave the weights inside the interval that
`w exp(+-d)` spans; the output's error is that spread times the distance of the values from the
output, so it stays tight where softmax merely averages and where values share a large offset.
`docs/bound.md` derives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fullattention.backends.interface import MaskedRows
from fullattention.backends.precision import Precision, working
from fullattention.conformance.oracle import Exact, exact_attention

ORACLE = working("float64", "float64")
"""The oracle rounds too: its own bound is part of every tolerance."""


ELEMENTS_AT_ONCE = 2**17
"""Of a temporary array (B, H, some L, S, D)."""


UNKNOWN = 1e100
"""A relative error of which nothing is known: an infinite one would make NaN of some bounds."""

LOST = 1e3
"""Error of an exponent beyond which nothing is known of a weight: exp(-2 LOST) is 0."""


@dataclass(frozen=True)
class Expected:
    """What a result is compared with; all arrays float64."""

    out: np.ndarray
    """(B, L, H, D)"""
    weights: np.ndarray
    """(B, H, L, S)"""
    out_bound: np.ndarray
    weights_bound: np.ndarray


def attention_bound(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    hidden: np.ndarray | None,
    scale: float,
    precision: Precision,
    masked_rows: MaskedRows = "nan",
) -> Expected:
    """The oracle's result, and the largest error an implementation with `precision` can make.

    Shapes as in `oracle.exact_attention`; memory is two dozen float64 arrays (B, H, L, S).
    """
    exact = exact_attention(q, k, v, hidden=hidden, scale=scale, masked_rows=masked_rows)
    return expected_within(exact, precision)


def expected_within(exact: Exact, precision: Precision, *, probabilistic: float = 0.0) -> Expected:
    """The oracle's result with the bound of `precision`, the oracle's own included.

    With `probabilistic` the bound is that of independent roundings, for this constant.
    """
    with np.errstate(all="ignore"):
        scores = _scores_of(exact)
        own = _softmax(exact, scores, precision, probabilistic)
        oracle = _softmax(exact, scores, ORACLE)
        own_out, oracle_out = _out_bounds(exact, scores, (own, oracle))
        return Expected(exact.out, exact.weights, own_out + oracle_out, own.bound + oracle.bound)


def error_over_bound(got: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> float:
    """The largest error divided by its bound; infinite where NaN or infinities differ."""
    return float(ratios(got, expected, bound).max(initial=0.0))


def ratios(got: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Error over bound for each element: 0 where equal, infinite where NaN or infinities differ."""
    got = np.asarray(got, np.float64)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    comparable = np.isfinite(got) & np.isfinite(expected) & (bound > 0)
    with np.errstate(all="ignore"):
        quotient = np.abs(got - expected) / bound
    return np.where(same, 0.0, np.where(comparable, quotient, np.inf))


def gamma(n: int, u: float, probabilistic: float = 0.0) -> float:
    """Relative error of a sum of n rounded products, in any order.

    The worst case, or with a constant what independent roundings stay below (Higham and Mary).
    """
    worst = n * u / (1 - n * u) if n * u < 1 else UNKNOWN
    if not probabilistic:
        return worst
    return min(worst, math.expm1(probabilistic * math.sqrt(n) * u + n * u * u / (1 - u)))


def weights_bound(exact: Exact, precision: Precision) -> np.ndarray:
    """Bound on |A - weights| (B, H, L, S), without the oracle's own."""
    with np.errstate(all="ignore"):
        return _softmax(exact, _scores_of(exact), precision).bound


@dataclass(frozen=True)
class _Scores:
    """What every precision's bounds take from the exact scores: (B, H, L, S)."""

    visible: np.ndarray
    magnitude: np.ndarray
    """|c| |q|.|k|"""
    maximum: np.ndarray
    """(B, H, L, 1)"""
    logarithms: np.ndarray
    """Of the exact weights over the row's largest: -inf where hidden."""


def _scores_of(exact: Exact) -> _Scores:
    visible = np.isfinite(exact.scores)
    maximum = exact.scores.max(-1, keepdims=True)
    q, k = abs(exact.q).transpose(0, 2, 1, 3), abs(exact.k).transpose(0, 2, 3, 1)
    return _Scores(
        visible,
        magnitude=abs(exact.scale) * np.matmul(q, k),
        maximum=maximum,
        logarithms=np.where(visible, exact.scores - maximum, -np.inf),
    )


@dataclass(frozen=True)
class _Softmax:
    """The softmax of a precision, and the roundings that follow."""

    precision: Precision
    interval: _Interval
    bound: np.ndarray
    """On the error of the weights as they are returned: (B, H, L, S)."""
    growth: float
    """Largest factor by which rounding grows a weight."""
    product: float
    """Relative error of the second product."""


def _softmax(
    exact: Exact, scores: _Scores, precision: Precision, probabilistic: float = 0.0
) -> _Softmax:
    p = precision
    S = exact.k.shape[1]
    tiles = math.ceil(S / p.tile) if p.tile else 0
    terms = (min(S, p.tile) if p.blocked and p.tile else S) + tiles
    score_error = _score_error(exact, p, scores, probabilistic)
    exponent = _exponent_error(p, scores, score_error, tiles)
    interval = _softmax_interval(exact, scores, exponent)
    gamma_sum = gamma(terms, p.u_softmax, probabilistic)
    inverse = gamma_sum / (1 - gamma_sum) if gamma_sum < 1 else UNKNOWN
    growth = (1 + inverse) * (1 + p.u_softmax) ** 3 * (1 + p.u_weights)
    bound = _weights_bound(exact, p, scores, interval, score_error, growth)
    bound = np.where(exact.settled, 0.0, bound)
    return _Softmax(p, interval, bound, growth, gamma(terms, p.u_acc, probabilistic))


def _score_error(exact: Exact, p: Precision, scores: _Scores, probabilistic: float) -> np.ndarray:
    """Bound on the error of each scaled score."""
    E = exact.q.shape[-1]
    relative = (1 + gamma(E, p.u_acc, probabilistic)) * (1 + p.u_in) ** 2 - 1
    error = relative * scores.magnitude
    storing = (1 + p.u_scores) ** p.score_roundings * (1 + p.u_softmax) ** 2 - 1
    error += storing * (np.where(scores.visible, abs(exact.scores), 0.0) + error)
    error += 2 * p.score_roundings * p.eta_out
    return np.where(scores.visible, error, 0.0)


def _exponent_error(
    p: Precision, scores: _Scores, score_error: np.ndarray, tiles: int
) -> np.ndarray:
    """Bound d: each unnormalised weight lies within exp(+-d) of the exact one.

    A shift by an inexact maximum is common to numerator and denominator and cancels.
    """
    depth = np.where(scores.visible, -scores.logarithms, 0.0)
    worst = score_error.max(-1, keepdims=True)
    argument = p.exp_arg * p.u_softmax * (depth + score_error + worst)
    exp_error = (1 + 2 * p.exp_ulp * p.u_softmax) ** (1 + tiles) * (1 + p.u_softmax) ** tiles - 1
    lost = -math.log1p(-exp_error) if exp_error < 1 else LOST
    error: np.ndarray = np.minimum(score_error + argument + lost, LOST)
    return error


@dataclass(frozen=True)
class _Interval:
    """Where the computed softmax can lie, scaled by the largest weight an error can produce."""

    error: np.ndarray
    """Largest distance of a computed weight from the exact one."""
    high: np.ndarray
    upper: np.ndarray
    """Largest unnormalised weight."""
    spread: np.ndarray
    """Largest error of the unnormalised weight."""
    lower_sum: np.ndarray

    @property
    def _known(self) -> np.ndarray:
        """Where d is so large that even the largest w e^-d underflows, quotients mean nothing."""
        return self.lower_sum > 1e-200

    @property
    def by_quotient(self) -> np.ndarray:
        """The error again: that of the numerator over the smallest sum."""
        return np.where(self._known, self.spread / self.lower_sum, self.error)

    @property
    def highest(self) -> np.ndarray:
        """The largest weight: as `high`, or the largest numerator over the smallest sum."""
        share = np.where(self._known, self.upper / self.lower_sum, self.high)
        highest: np.ndarray = np.minimum(self.high, share)
        return highest


def _softmax_interval(exact: Exact, scores: _Scores, exponent: np.ndarray) -> _Interval:
    visible, logarithms = scores.visible, scores.logarithms
    shift = (logarithms + exponent).max(-1, keepdims=True)
    upper = np.exp(logarithms + exponent - shift)
    lower = np.exp(logarithms - exponent - shift)
    high = _share(upper, upper + _sum_of_others(lower), 1.0)
    low = _share(lower, lower + _sum_of_others(upper), 0.0)
    high = np.where(visible, np.maximum(high, exact.weights), 0.0)
    low = np.where(visible, np.minimum(low, exact.weights), 0.0)
    spread = upper * -np.expm1(-exponent)  # w (e^d - 1), as w e^d (1 - e^-d), which cannot overflow
    return _Interval(
        error=np.maximum(high - exact.weights, exact.weights - low),
        high=high,
        upper=upper,
        spread=np.where(visible, spread, 0.0),
        lower_sum=np.maximum(lower.sum(-1, keepdims=True), 1e-300),
    )


def _share(part: np.ndarray, whole: np.ndarray, empty: float) -> np.ndarray:
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), empty)


def _sum_of_others(x: np.ndarray) -> np.ndarray:
    """Sum over the last axis of all entries but one's own.

    The total minus oneself cancels for the largest entry: that one sums the rest afresh.
    """
    largest = np.arange(x.shape[-1]) == x.argmax(-1, keepdims=True)
    rest = np.where(largest, 0.0, x).sum(-1, keepdims=True)
    others: np.ndarray = np.where(
        largest, rest, np.maximum(rest + x.max(-1, keepdims=True) - x, 0.0)
    )
    return others


def _weights_bound(
    exact: Exact,
    p: Precision,
    scores: _Scores,
    interval: _Interval,
    score_error: np.ndarray,
    growth: float,
) -> np.ndarray:
    error, high = interval.error, interval.high
    if p.recompute:  # numerator and denominator carry errors of their own, nothing cancels
        S = exact.scores.shape[-1]
        worst = score_error.max(-1, keepdims=True)
        delta = 2 * p.u_softmax * (abs(scores.maximum) + math.log(S) + worst)
        high = np.maximum(interval.upper * np.exp(delta) / interval.lower_sum, exact.weights)
        error = np.maximum(high - exact.weights, exact.weights * -np.expm1(-2 * delta))
        error = np.maximum(error, interval.error)
    bound = error + (growth * (1 + p.u_out) - 1) * high + 2 * p.eta_weights + p.eta_out
    return np.where(scores.visible, bound, 0.0)


def _out_bounds(exact: Exact, scores: _Scores, softmaxes: Sequence[_Softmax]) -> list[np.ndarray]:
    """Bounds on |V - out| (B, L, H, D) after each softmax."""
    values = abs(exact.v).transpose(0, 2, 1, 3)
    magnitude = np.matmul(scores.visible.astype(np.float64), values).transpose(0, 2, 1, 3)
    largest = _largest_visible(scores.visible, values)
    errors = [e for one in softmaxes for e in (one.interval.error, one.interval.by_quotient)]
    spreads = _spreads_of_values(exact, errors)
    perturbations = np.minimum(spreads[::2], spreads[1::2])
    return [
        _out_bound(exact, one, perturbation, magnitude, largest)
        for one, perturbation in zip(softmaxes, perturbations, strict=True)
    ]


def _out_bound(
    exact: Exact,
    softmax: _Softmax,
    perturbation: np.ndarray,
    magnitude: np.ndarray,
    largest: np.ndarray,
) -> np.ndarray:
    p, interval = softmax.precision, softmax.interval
    rounding = (1 + softmax.product) * softmax.growth * (1 + p.u_in) - 1
    values = abs(exact.v).transpose(0, 2, 1, 3)
    rounded = rounding * np.matmul(interval.highest, values).transpose(0, 2, 1, 3)
    derived = perturbation + rounded + 2 * p.eta_weights * magnitude
    # No weighted mean leaves the hull of the values, however wrong the weights are.
    S = exact.v.shape[1]
    hull = abs(exact.out) + largest * (1 + rounding + 2 * S * p.eta_weights)
    before = np.minimum(derived, hull)
    bound = before + p.u_out * (abs(exact.out) + before) + p.eta_out
    return np.where(exact.settled.transpose(0, 2, 1, 3), 0.0, bound)


def _largest_visible(visible: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The max over visible s of |v_s|: (B, L, H, D), or L = 1 where all queries see all keys."""
    if visible.all():
        everywhere: np.ndarray = values.max(2, keepdims=True).transpose(0, 2, 1, 3)
        return everywhere
    return _by_rows(
        visible,
        values,
        lambda rows, span: np.where(rows[..., None], values[:, :, None], 0.0).max(3),
    ).transpose(0, 2, 1, 3)


def _spreads_of_values(exact: Exact, weight_errors: Sequence[np.ndarray]) -> np.ndarray:
    """sum_s error_s |v_s - out| for each array of errors: one more axis before (B, L, H, D)."""
    values = exact.v.transpose(0, 2, 1, 3)
    out = exact.out.transpose(0, 2, 1, 3)

    def spread(rows: np.ndarray, span: slice) -> np.ndarray:
        distance = values[:, :, None] - out[:, :, span, None]
        sums: np.ndarray = np.matmul(rows, np.abs(distance, out=distance))
        return sums

    return _by_rows(np.stack(weight_errors, 3), values, spread).transpose(3, 0, 2, 1, 4)


def _by_rows(
    matrix: np.ndarray, values: np.ndarray, function: Callable[[np.ndarray, slice], np.ndarray]
) -> np.ndarray:
    """A function of rows (B, H, l, ..., S) of a matrix, some queries at a time to spare memory.

    The function returns (B, H, l, ..., D); so does this, of all queries.
    """
    L = matrix.shape[2]
    step = max(1, ELEMENTS_AT_ONCE // max(1, values.size))
    spans = [slice(start, start + step) for start in range(0, L, step)]
    return np.concatenate([function(matrix[:, :, span], span) for span in spans], axis=2)
