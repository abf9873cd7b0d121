"""Relations between results that need no oracle: each can convict a candidate by itself.

A candidate is compared with itself on a changed call. What the oracle contributes is how much
rounding may tell the two apart, and nothing where two results must have the same bits.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from fullattention.backends.interface import Sizes
from fullattention.backends.precision import Precision
from fullattention.conformance import addresses, masks
from fullattention.conformance.call import Call, ask, call_of, expected_of
from fullattention.conformance.case import Case, Failed, compare
from fullattention.conformance.check import Check, Checks, Trial, case_check
from fullattention.conformance.subject import Subject

Change = Callable[[Call], Call]
Follows = Callable[[np.ndarray], np.ndarray]

SQUARE = Sizes(2, 7, 7, 3, 11, 13)
LONG = Sizes(1, 6, 70, 2, 12, 9)
"""More keys than a tile."""

DRAWS = 6
"""Shapes that nobody chose on which the full level tries each relation too."""

LENGTHS = ((2, 4), (2, 40), (3, 80), (2, 4), (1, 34), (2, 34))
"""The range of each of their axes: B, L, S, H, E, D."""

REGIMES = ("normal", "uniform", "large", "staircase", "value-offset")
"""Data of those shapes."""

OFF, GIVEN, CAUSAL = masks.OFF, "random/BHLS", masks.CAUSAL


def _unchanged(out: np.ndarray) -> np.ndarray:
    return out


def _never(precision: Precision) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Two calls of which one's V follows from the other's."""

    requirement: str
    change: Change
    follows: Follows = _unchanged
    """V of the call, or its bound -> V of the changed call, or how far it may lie off."""
    masks: tuple[str, ...] = (OFF, GIVEN, CAUSAL)
    """Where the relation holds."""
    prepare: Change = lambda call: call
    """Makes the inputs such that the change itself rounds nothing."""
    exact: Callable[[Precision], bool] = _never
    """Whether both must have the same bits."""

    def __call__(self, subject: Subject, case: Case) -> float:
        """Compare V of the changed call with what follows from V of the call itself."""
        call = self.prepare(call_of(case))
        changed = self.change(call)
        want = self.follows(ask(subject, call).out.astype(np.float64))
        got = ask(subject, changed).out
        exact = self.exact(subject.precision[case.dtype]) and "determinism" not in subject.lacks
        bound = abs(self.follows(expected_of(subject, call).out_bound))
        bound += expected_of(subject, changed).out_bound
        ratio = compare("V of the changed call", "blhd", got, want, bound)
        if exact and not np.array_equal(got.astype(np.float64), want, equal_nan=True):
            raise Failed(
                "V of the changed call must have the bits that follow from the call's, and differs "
                f"by up to {abs(got.astype(np.float64) - want).max():.2g}"
            )
        return ratio


def checks(dtype: str, primary: bool) -> Checks:
    """The relations as checks for one dtype."""
    for name, relation in RELATIONS.items():
        for mask in relation.masks:
            case = _case(dtype, mask)
            yield _check(
                relation.requirement, name, case, relation, quick=mask == relation.masks[0]
            )
            if mask == OFF:
                long = case.but(shape=LONG, data="staircase")
                yield _check(relation.requirement, name, long, relation)
    for requirement, name, trial, kinds in PROPERTIES:
        for mask in kinds:
            yield _check(requirement, name, _case(dtype, mask), trial, quick=mask == kinds[0])
    for mask in (OFF, GIVEN):
        returned = _case(dtype, mask).but(weights=True)
        yield _check("W1", "identity as V gives the weights", returned, _equal_weights, quick=True)
    for requirement, name, trial, mask in trials():
        for case in _drawn(name, dtype, mask):
            yield _check(requirement, name, case, trial, full=True)


def trials() -> Iterator[tuple[str, str, Trial, str]]:
    """Each relation and property under each of its masks: requirement, name, trial, mask."""
    for name, relation in RELATIONS.items():
        for mask in relation.masks:
            yield relation.requirement, name, relation, mask
    for requirement, name, trial, kinds in PROPERTIES:
        for mask in kinds:
            yield requirement, name, trial, mask


def _drawn(name: str, dtype: str, mask: str) -> Iterator[Case]:
    """Cases with drawn shapes and data, the same every time."""
    rng = np.random.default_rng(zlib.crc32(f"{name} {dtype} {mask}".encode()))
    for seed in range(1, DRAWS + 1):
        shape = Sizes(*(int(rng.integers(low, high)) for low, high in LENGTHS))
        if mask == CAUSAL:
            shape = shape._replace(S=shape.L)
        data = str(rng.choice(REGIMES))
        yield Case(shape=shape, dtype=dtype, data=data, mask=mask, seed=seed)


def _case(dtype: str, mask: str) -> Case:
    case = Case(dtype=dtype, mask=mask)
    return case.but(shape=SQUARE) if mask == CAUSAL else case


def _check(
    requirement: str,
    name: str,
    case: Case,
    trial: Trial,
    *,
    quick: bool = False,
    full: bool = False,
) -> Check:
    if requirement == "N1" and case.dtype == "float64":
        requirement = "N5"
    return case_check(requirement, case, trial, f"relation: {name}", quick=quick, full=full)


# What is changed.


def _on_mask(call: Call, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray | None:
    return None if call.mask is None else change(call.mask)


def _take(call: Call, axis: str, index: np.ndarray | slice) -> Call:
    """Some entries of an axis, in another order."""
    taken = {}
    for name, axes in {"q": "BLHE", "k": "BSHE", "v": "BSHD", "mask": "BHLS"}.items():
        array = getattr(call, name)
        if array is not None and axis in axes:
            taken[name] = _along(axes.index(axis), index, array)
    return call.but(**taken)


def _along(axis: int, index: np.ndarray | slice, array: np.ndarray) -> np.ndarray:
    return array[(slice(None),) * axis + (index,)]


def _some(axis: str, pick: slice) -> tuple[Change, Follows]:
    """A change that leaves some entries of an axis, and what it leaves of V."""
    change = functools.partial(_take, axis=axis, index=pick)
    if axis not in "BLHD":
        return change, _unchanged
    return change, functools.partial(_along, "BLHD".index(axis), pick)


def _duplicated(call: Call) -> Call:
    return call.but(
        k=np.concatenate([call.k, call.k], 1),
        v=np.concatenate([call.v, call.v], 1),
        mask=_on_mask(call, lambda mask: np.concatenate([mask, mask], -1)),
    )


def _shuffled(call: Call) -> Call:
    return _take(call, "S", np.random.default_rng(5).permutation(call.shape.S))


def _with_hidden_keys(call: Call) -> Call:
    """Five more keys, hidden from all, with values that would show."""
    B, L, S, H, _, _ = call.shape
    shown = np.zeros((B, H, L, S), bool) if call.mask is None else call.mask
    more = np.ones((B, H, L, 5), bool)
    return call.but(
        k=np.concatenate([call.k, call.k[:, np.arange(5) % S]], 1),
        v=np.concatenate([call.v, call.v[:, np.arange(5) % S] + call.v.dtype.type(64)], 1),
        mask=np.concatenate([shown, more], -1),
        mask_flag=True,
    )


def _on_a_grid(call: Call) -> Call:
    """Keys that are multiples of 1/8, to which small whole numbers can be added exactly."""
    return call.but(k=(np.round(call.k.astype(np.float64) * 8) / 8).astype(call.k.dtype))


def _with_moved_keys(call: Call) -> Call:
    """One vector more in every key adds one number to all scores of a query."""
    move = np.random.default_rng(6).integers(-3, 4, call.k.shape[-1])
    return call.but(k=(call.k.astype(np.float64) + move).astype(call.k.dtype))


def _negated(call: Call) -> Call:
    return call.but(q=-call.q, k=-call.k)


def _explicit(call: Call) -> Call:
    L = call.shape.L
    return call.but(mask=np.triu(np.ones((L, L), bool), 1))


def _with_scale_in_queries(call: Call) -> Call:
    assert call.scale is not None
    return call.but(q=call.q * call.q.dtype.type(4), scale=call.scale / 4)


def _prefix(call: Call) -> Call:
    return call.but(q=call.q[:, :4], k=call.k[:, :4], v=call.v[:, :4])


def _from_one_to_two(call: Call) -> Call:
    """Values in [1, 2): neither they nor their means come near underflow."""
    v = call.v.astype(np.float64)
    return call.but(v=(1 + 0.99 * (v - v.min()) / np.ptp(v)).astype(call.v.dtype))


_queries, _left_queries = _some("L", slice(1, None, 2))
_heads, _left_heads = _some("H", slice(None, 0, -1))
_batch, _left_batch = _some("B", slice(1, None))
_columns, _left_columns = _some("D", slice(None, 0, -2))
_features, _ = _some("E", slice(None, None, -1))


RELATIONS: Mapping[str, Relation] = MappingProxyType(
    {
        "every key twice": Relation(requirement="N1", change=_duplicated, masks=(OFF, GIVEN)),
        "keys in another order": Relation(requirement="N1", change=_shuffled, masks=(OFF, GIVEN)),
        "one vector added to all keys": Relation(
            requirement="N1", change=_with_moved_keys, prepare=_on_a_grid
        ),
        "features in another order": Relation(requirement="N1", change=_features),
        "hidden keys appended": Relation(
            requirement="M7", change=_with_hidden_keys, masks=(GIVEN, OFF)
        ),
        "every other query": Relation(
            requirement="C5", change=_queries, follows=_left_queries, masks=(OFF, GIVEN)
        ),
        "heads reversed and one left out": Relation(
            requirement="C5", change=_heads, follows=_left_heads
        ),
        "first batch entry left out": Relation(
            requirement="C10", change=_batch, follows=_left_batch
        ),
        "columns reversed and some left out": Relation(
            requirement="C5", change=_columns, follows=_left_columns
        ),
        "causal prefix": Relation(
            requirement="M2", change=_prefix, follows=lambda out: out[:, :4], masks=(CAUSAL,)
        ),
        "causal by a mask": Relation(requirement="M2", change=_explicit, masks=(CAUSAL,)),
        "q and k negated": Relation(
            requirement="N1", change=_negated, exact=lambda precision: True
        ),
        "values times -2": Relation(
            requirement="N1",
            change=lambda call: call.but(v=call.v * call.v.dtype.type(-2)),
            follows=lambda out: -2 * out,
            prepare=_from_one_to_two,
            exact=lambda precision: True,
        ),
        "scale / 4 and q times 4": Relation(
            requirement="S4",
            change=_with_scale_in_queries,
            prepare=lambda call: call.but(scale=0.375),
            # A kernel that scales q and k by themselves, perhaps by a root, rounds them.
            exact=lambda precision: precision.u_in == 0,
        ),
    }
)
"""What is changed -> the relation."""


# What a single result must be like.


def _first_row(subject: Subject, case: Case) -> float:
    """Causally the first query sees the first key only."""
    call = call_of(case)
    got = ask(subject, call).out[:, :1]
    bound = expected_of(subject, call).out_bound[:, :1]
    return compare("V of the first query", "blhd", got, call.v[:, :1].astype(np.float64), bound)


def _within_hull(subject: Subject, case: Case) -> float:
    """No mean of values leaves the range of those that are visible."""
    call = call_of(case)
    v = call.v.astype(np.float64).transpose(0, 2, 1, 3)[:, :, None]  # (B, H, 1, S, D)
    hidden = np.zeros((1, 1, 1, 1), bool) if call.hidden is None else call.hidden
    low, high = (
        extreme(np.where(hidden[..., None], filled, v), -2).transpose(0, 2, 1, 3)
        for extreme, filled in ((np.min, np.inf), (np.max, -np.inf))
    )
    got = ask(subject, call).out.astype(np.float64)
    nearest = np.clip(got, low, high)
    bound = expected_of(subject, call).out_bound
    return compare("V, which must not leave the range of the values,", "blhd", got, nearest, bound)


def _uniform(subject: Subject, case: Case) -> float:
    """A scale next to nothing makes all weights equal."""
    call = call_of(case).but(scale=2.0**-100)
    want = call.v.astype(np.float64).mean(1, keepdims=True)
    got = ask(subject, call).out
    bound = expected_of(subject, call).out_bound
    return compare("V at scale = 2^-100", "blhd", got, np.broadcast_to(want, got.shape), bound)


def _with_identity(call: Call) -> Call:
    """V of this call holds the weights."""
    return call.but(v=addresses.identity(call.shape, call.dtype))


def _are_weights(subject: Subject, case: Case) -> float:
    call = _with_identity(call_of(case))
    weights = ask(subject, call).out.astype(np.float64).transpose(0, 2, 1, 3)
    hidden = np.broadcast_to(False if call.hidden is None else call.hidden, weights.shape)
    if weights[hidden].any():
        raise Failed("a hidden key has a weight that is not exactly 0")
    if (weights < 0).any():
        raise Failed(f"a weight is negative: {weights.min():.3g}")
    sums = weights.sum(-1)
    bound = expected_of(subject, call).weights_bound.sum(-1)
    return compare("sum of a row of weights", "bhl", sums, np.ones(sums.shape), bound)


def _equal_weights(subject: Subject, case: Case) -> float:
    call = _with_identity(call_of(case))
    got = ask(subject, call)
    assert got.weights is not None
    bound = 2 * expected_of(subject, call).weights_bound
    shown = got.out.astype(np.float64).transpose(0, 2, 1, 3)
    return compare("returned weights", "bhls", got.weights, shown, bound)


def _merged(subject: Subject, case: Case) -> float:
    """V of all keys is a mean of V of two parts of them, weighted by the parts' exp-sums.

    A column that is 1 in the first part's values and 0 in the other's shows the first's weight.
    """
    call = call_of(case)
    n = call.shape.S // 3
    ones = np.zeros((*call.v.shape[:3], 1), call.v.dtype)
    ones[:, :n] = 1
    whole = call.but(v=np.concatenate([call.v, ones], -1))
    parts = [_take(call, "S", slice(None, n)), _take(call, "S", slice(n, None))]
    got, first, second = (ask(subject, one).out.astype(np.float64) for one in (whole, *parts))
    bound, first_bound, second_bound = (
        expected_of(subject, one).out_bound for one in (whole, *parts)
    )
    share = got[..., -1:]
    want = share * first + (1 - share) * second
    slack = share * first_bound + (1 - share) * second_bound
    slack += bound[..., -1:] * abs(first - second)
    return compare("V of all keys", "blhd", got[..., :-1], want, bound[..., :-1] + slack)


PROPERTIES: tuple[tuple[str, str, Trial, tuple[str, ...]], ...] = (
    ("M2", "causally the first query gets V[0]", _first_row, (CAUSAL,)),
    ("N1", "V within the range of the values", _within_hull, (OFF, GIVEN, CAUSAL)),
    ("S4", "scale near 0 gives the mean of the values", _uniform, (OFF,)),
    ("M5", "identity as V gives weights", _are_weights, (GIVEN, OFF, CAUSAL)),
    ("N1", "keys in two parts, merged", _merged, (OFF,)),
)
"""Requirement, what must hold, how it is tried, under which masks."""
