"""Checks of the contract's section dropout.

No two random generators agree, so dropout is judged through what it leaves: with the identity as
values V holds the weights after dropout, whether or not they are returned.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from fullattention.backends.interface import Sizes
from fullattention.backends.precision import Precision
from fullattention.conformance import addresses, masks
from fullattention.conformance.bound import Expected
from fullattention.conformance.case import (
    Case,
    Failed,
    answer,
    compare,
    expected,
    expected_of,
    judge,
    judged,
    layer_for,
    put,
    put_mask,
    run,
)
from fullattention.conformance.check import Checks, Evidence, case_check
from fullattention.conformance.combinations import HIDING, LAYOUTS, combined
from fullattention.conformance.core import refuses
from fullattention.conformance.covering import covering
from fullattention.conformance.subject import Layer, Subject
from fullattention.conformance.weights import compare_product

EXPONENT = 32.0
"""Strictness of every statistical limit: an honest candidate exceeds one in 4e13 of them."""

SHAPE = Sizes(3, 16, 24, 5, 8, 48)
"""D = 2 S, so that the identity fits twice; 5760 weights."""

LONG = Sizes(4, 32, 64, 8, 8, 128)
"""The same with 65536 weights, for what shows in many only."""


MANY_KEYS = Sizes(2, 32, 1000, 4, 8, 96)
MANY_QUERIES = Sizes(2, 1000, 8, 4, 8, 16)
"""Most of two of the largest usual tiles; D is twice the number of keys that are watched."""

WATCHED = (0, 32, 64, 128, 256, 512)
"""Of many keys the first eight of some tiles are watched, whatever the size of a tile."""

P = 0.75
"""Of returned weights: p and 1 - p differ, and 1 / (1 - p) is exact."""


def checks(dtype: str, primary: bool) -> Checks:
    """The section's checks for one dtype."""
    base = Case(dtype=dtype, shape=SHAPE, data="uniform")
    told = functools.partial(case_check, quick=True, needs="arguments")
    drops = functools.partial(case_check, quick=True, needs="dropout")
    # The first of all: no other check has given a seed yet.
    yield told("P2", base, _by_default, "p=0.1 by default, never seeded", needs="dropout arguments")
    masked = base.but(mask="random/BHLS")
    square = base.but(mask=masks.CAUSAL, shape=Sizes(3, 24, 24, 5, 8, 48))
    for case in (base, masked, square):
        for returned in (False, True):
            asked = case.but(weights=returned)
            usual = primary or asked == base
            yield told("P1", asked, eval_is_identity, "p=0.5 in eval", quick=usual)
            yield told("P1", asked, _zero_is_identity, "p=0 in training", quick=primary)
    scaled = base.but(scale=0.3)
    yield told("P1", scaled, _zero_is_identity, "p=0 in training", quick=primary)
    yield drops("P2", base, functools.partial(statistics, p=0.5), "p=0.5")
    for case in (masked, square, scaled):
        yield drops("P2", case, functools.partial(statistics, p=0.3), "p=0.3", quick=primary)
    for mask, layout, E, scale in covering(HIDING, LAYOUTS[:3], (8, 64), (None, 0.7)):
        case = combined(dtype, mask, layout, (16, 24), (E, 48)).but(scale=scale, data="uniform")
        yield drops("P2", case, functools.partial(statistics, p=0.25), "p=0.25", quick=False)
    if not primary:
        return
    yield told("P1", base, _after_eval, "p=0.5 after eval()")
    yield drops("P1", base, _after_train, "p=0.5 after eval() and train()")
    yield drops("P1", base, _one_is_zero, "p=1")
    for p in (-0.1, 1.5, math.nan):
        yield told("P1", base, functools.partial(_refused, p=p), f"p={p} is refused")
    yield drops("P2", base.but(shape=LONG), functools.partial(statistics, p=0.1), "p=0.1")
    yield drops("P2", base.but(scale=-0.5), functools.partial(statistics, p=0.5), "p=0.5")
    for shape in (MANY_KEYS, MANY_QUERIES):
        yield drops("P2", base.but(shape=shape), _tiles_differ, "tiles differ", quick=False)
    yield drops("P3", base, _one_seed_twice, "one seed twice", needs="dropout seed")
    yield drops("P3", base, two_calls, "two calls")
    for case in (base, masked, square):
        asked = case.but(weights=True)
        yield drops("P2", asked, _weights_after, "weights are those after dropout")


def _by_default(subject: Subject, case: Case) -> None:
    """A new layer is in training, and drops one weight in ten."""
    layer = subject.build(mask_flag=False, masked_rows=case.masked_rows)
    kept = _dropped_by(layer, subject, case) != 0
    _require_rate(kept, np.ones_like(kept), 0.9)


def eval_is_identity(subject: Subject, case: Case) -> float:
    """Dropout is set and training off: the exact result."""
    got = run(subject, case, dropout=0.5, training=False)
    return judge(got, expected_of(subject, case))


def _after_eval(subject: Subject, case: Case) -> float:
    layer = layer_for(subject, case, dropout=0.5, training=True)
    layer.eval()
    return judged(subject, layer, case)


def _after_train(subject: Subject, case: Case) -> None:
    layer = layer_for(subject, case, dropout=0.5, training=True)
    layer.eval()
    layer.train()
    if _dropped_by(layer, subject, case).all():
        raise Failed("nothing is dropped after train()")


def _zero_is_identity(subject: Subject, case: Case) -> float:
    got = run(subject, case, dropout=0.0, training=True)
    return judge(got, expected_of(subject, case))


def _one_is_zero(subject: Subject, case: Case) -> None:
    got = run(subject, case, dropout=1.0, training=True).out
    if not (got == 0).all():
        raise Failed(f"p = 1 must give zeros, got {got.ravel()[0]} and others")


def _refused(subject: Subject, case: Case, p: float) -> Evidence:
    return refuses(lambda: run(subject, case, dropout=p, training=True))


def _dropped(subject: Subject, case: Case, p: float) -> np.ndarray:
    """Weights after dropout (B, H, L, S)."""
    return _dropped_by(layer_for(subject, case, dropout=p, training=True), subject, case)


def _dropped_by(
    layer: Layer, subject: Subject, case: Case, keys: Sequence[int] | None = None
) -> np.ndarray:
    """Weights after dropout, read through values that are the identity, twice side by side.

    They are (B, H, L, S), or those of some keys: where S is long, values would be as wide.

    Raises:
        Failed: the two differ in what is dropped, so it is not the weights.
    """
    q, k, _ = put(subject, case)
    identity = addresses.identity(case.shape, case.dtype, copies=2, keys=keys)
    v = subject.arrays.put(identity, subject.device)
    got = answer(subject, case, layer(q, k, v, put_mask(subject, case))).out
    weights, again = np.split(got.astype(np.float64).transpose(0, 2, 1, 3), 2, axis=-1)
    if not np.array_equal(weights == 0, again == 0):
        raise Failed("equal columns of the values lose other keys: V is dropped, not the weights")
    return weights


def _tiles_differ(subject: Subject, case: Case) -> None:
    """No tile of keys or of queries drops what another does, at p = 0.5.

    The weights that are watched lie side by side as in a call that has no others: what drops alike
    at the distance of a tile is dropped alike there at another.
    """
    S = case.shape.S
    keys = [start + s for start in WATCHED for s in range(8) if start + s < S]
    layer = layer_for(subject, case, dropout=0.5, training=True)
    kept = _dropped_by(layer, subject, case, keys) != 0
    everywhere = np.ones_like(kept)
    _require_rate(kept, everywhere, 0.5)
    _require_independence(kept, everywhere, 0.5)


def statistics(subject: Subject, case: Case, p: float) -> float:
    """Kept weights are the exact ones over 1 - p; each is kept independently, at rate 1 - p.

    Raises:
        Failed: another share of them is kept, or some are kept together.
    """
    precision = subject.precision[case.dtype]
    # Only the weights count, and they do not depend on the columns of the values.
    want = expected(case.but(shape=case.shape._replace(D=1)), precision)
    subject.seed(1234)
    weights = _dropped(subject, case, p)
    kept = weights != 0
    visible = _visible(case)
    if (kept & ~visible).any():
        raise Failed("a hidden key has a weight that is not 0")
    ratio = _compare_kept(weights, want, p, precision)
    _require_rate(kept, visible, 1 - p)
    _require_independence(kept, visible, 1 - p)
    return ratio


def _visible(case: Case) -> np.ndarray:
    """Which keys a query sees: (B, H, L, S)."""
    B, L, S, H, _, _ = case.shape
    hidden = masks.hidden_by(case.mask, case.shape, case.seed)
    return ~np.broadcast_to(False if hidden is None else hidden, (B, H, L, S))


def _compare_kept(weights: np.ndarray, want: Expected, p: float, precision: Precision) -> float:
    """Compare the weights that were kept with the exact ones over 1 - p."""
    scaled = np.where(weights != 0, want.weights / (1 - p), 0.0)
    rounding = 4 * max(precision.u_out, precision.u_weights, precision.u_softmax)
    bound = (want.weights_bound + rounding * want.weights) / (1 - p) + precision.eta_out
    return compare("weights after dropout", "bhls", weights, scaled, bound)


def _require_rate(kept: np.ndarray, visible: np.ndarray, rate: float) -> None:
    """Require the right share of kept weights, in all and for each index of each axis."""
    for axis in ("", *"bhls"):
        others = tuple(other for other, name in enumerate("bhls") if name != axis)
        found, count = (np.atleast_1d(x.sum(others)) for x in (kept & visible, visible))
        limit = _limit(count * rate * (1 - rate), max(rate, 1 - rate))
        for index in np.flatnonzero(~(abs(found - count * rate) <= limit)):
            place = f"at {axis}={index}" if axis else "in all"
            raise Failed(
                f"{found[index]} of {count[index]} weights are kept {place}, expected "
                f"{count[index] * rate:.0f} +- {limit[index]:.0f}"
            )


def _require_independence(kept: np.ndarray, visible: np.ndarray, rate: float) -> None:
    """Require that no two weights are dropped together, whatever the distance between them.

    The correlation at every distance along all four axes at once is one product of Fourier
    transforms, of arrays that are padded so that nothing wraps around.
    """
    padded = [2 * n - 1 for n in kept.shape]

    def pairs(x: np.ndarray) -> np.ndarray:
        """Sum of x[i] x[i + distance] for every distance."""
        transformed = np.fft.rfftn(x.astype(np.float32), padded, axes=range(4))
        return np.fft.irfftn(abs(transformed) ** 2, padded, axes=range(4))

    together = abs(pairs(np.where(visible, kept - rate, 0.0)).astype(np.float64))
    together[0, 0, 0, 0] = 0
    variance = pairs(visible.astype(np.float64)) * (rate * (1 - rate)) ** 2
    excess = together - _limit(abs(variance), max(rate, 1 - rate) ** 2)
    if excess.max() > 0:
        index = np.unravel_index(excess.argmax(), excess.shape)
        apart = ", ".join(
            f"{axis}{int(i) - n * (i > n // 2):+d}"
            for axis, i, n in zip("bhls", index, padded, strict=True)
        )
        raise Failed(f"weights at a distance of ({apart}) are not dropped independently")


def _limit(variance: np.ndarray, largest: float) -> np.ndarray:
    """How far a sum of independent terms strays from its mean: Bernstein's inequality.

    `variance` is that of the sum, `largest` bounds a term.
    """
    linear = EXPONENT * largest / 3
    return linear + np.sqrt(linear**2 + 2 * EXPONENT * variance)


def _one_seed_twice(subject: Subject, case: Case) -> None:
    subject.seed(7)
    first = _dropped(subject, case, 0.5)
    subject.seed(7)
    if not np.array_equal(first == 0, _dropped(subject, case, 0.5) == 0):
        raise Failed("the same seed dropped other weights")


def two_calls(subject: Subject, case: Case) -> None:
    """Calls of one layer drop differently.

    Raises:
        Failed: they do not.
    """
    subject.seed(7)
    layer = layer_for(subject, case, dropout=0.5, training=True)
    patterns = [_dropped_by(layer, subject, case) == 0 for _ in range(4)]
    if any(np.array_equal(patterns[0], other) for other in patterns[1:]):
        raise Failed("two calls dropped the same weights")


def _weights_after(subject: Subject, case: Case) -> float:
    """V equals the returned weights times the values, so they are those that were used."""
    got = run(subject, case, dropout=P, training=True)
    assert got.weights is not None
    kept = got.weights != 0
    visible = _visible(case)
    if kept[visible].all():
        raise Failed("the returned weights are those before dropout: none is 0")
    _require_rate(kept, visible, 1 - P)
    precision = subject.precision[case.dtype]
    want = expected(case, precision)
    return max(
        _compare_kept(got.weights.astype(np.float64), want, P, precision),
        compare_product(case, got, want, growth=1 / (1 - P)),
    )
