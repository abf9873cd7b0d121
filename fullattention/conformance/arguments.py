"""Pairs of calls that differ in one argument: V must change, or must not, whatever its value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fullattention.conformance import masks
from fullattention.conformance.call import Call, ask, call_of, expected_of
from fullattention.conformance.case import Case, Failed
from fullattention.conformance.check import Check, Checks
from fullattention.conformance.relations import SQUARE
from fullattention.conformance.subject import Subject

Change = Callable[[Call], Call]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two calls that differ in one argument."""

    requirement: str
    argument: str
    label: str
    """What the two give for it."""
    first: Change
    second: Change
    mask: str = masks.OFF
    needs: str = ""


def checks(dtype: str, primary: bool) -> Checks:
    """The pairs as checks for one dtype."""
    for pair in DIFFERENT:
        yield _check(dtype, pair, _must_differ, quick=primary)
    for pair in ALIKE:
        yield _check(dtype, pair, _must_agree, quick=primary)


def _check(
    dtype: str, pair: Pair, trial: Callable[[Subject, Case, Pair], float | None], *, quick: bool
) -> Check:
    case = Case(dtype=dtype, mask=pair.mask)
    if pair.mask == masks.CAUSAL:
        case = case.but(shape=SQUARE)
    verb = "changes V" if trial is _must_differ else "changes nothing"
    return Check(
        requirement=pair.requirement,
        label=f"pair: {pair.argument} {verb}, {pair.label} {case}",
        dtype=dtype,
        run=lambda subject: trial(subject, case, pair),
        needs=frozenset(pair.needs.split()),
        quick=quick,
    )


def _must_differ(subject: Subject, case: Case, pair: Pair) -> None:
    apart, allowed = _compared(subject, case, pair)
    if not (np.isnan(apart) | (apart > allowed)).any():
        raise Failed(
            f"ignores `{pair.argument}`: with {pair.label} V is the same "
            f"(largest difference {apart.max():.2g})"
        )


def _must_agree(subject: Subject, case: Case, pair: Pair) -> float:
    apart, allowed = _compared(subject, case, pair)
    ratio = float((apart / allowed).max())
    if not ratio <= 1:
        raise Failed(
            f"`{pair.argument}` changes V: with {pair.label} it differs by up to "
            f"{np.nanmax(apart, initial=0.0):.2g}, allowed {allowed.max():.2g}"
        )
    return ratio


def _compared(subject: Subject, case: Case, pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """How far V of the two calls is apart, NaN where one is NaN; and what rounding allows."""
    calls = [change(call_of(case)) for change in (pair.first, pair.second)]
    one, other = (ask(subject, call).out.astype(np.float64) for call in calls)
    # Without dropout: what it drops is far more than what rounding does.
    allowed = sum(expected_of(subject, call).out_bound for call in calls)
    apart = np.where(np.isnan(one) & np.isnan(other), 0.0, abs(one - other))
    return apart, np.asarray(allowed)


def _with(**changes: Any) -> Change:
    return lambda call: call.but(**changes)


def _as_it_is(call: Call) -> Call:
    return call


def _other(name: str) -> Change:
    """Other numbers of the same kind, the last first in every axis."""
    return lambda call: call.but(**{name: getattr(call, name)[::-1, ::-1, ::-1, ::-1]})


def _masked(call: Call, **changes: Any) -> Call:
    """Hides the last keys."""
    L, S = call.shape.L, call.shape.S
    hidden = np.broadcast_to(np.arange(S) >= S // 2, (L, S)).copy()
    return call.but(mask=hidden, **changes)


def _option(name: str) -> Change:
    return lambda call: call.but(options={name: np.full((call.shape.B, 1), 7.5, call.q.dtype)})


DIFFERENT = (
    *(
        Pair(
            requirement="C1",
            argument=argument,
            label="other numbers",
            first=_as_it_is,
            second=_other(name),
        )
        for argument, name in (("queries", "q"), ("keys", "k"), ("values", "v"))
    ),
    Pair(
        requirement="S4",
        argument="scale",
        label="0.3 and 2.5",
        first=_with(scale=0.3),
        second=_with(scale=2.5),
    ),
    Pair(
        requirement="S4",
        argument="scale",
        label="0.5 and -0.5",
        first=_with(scale=0.5),
        second=_with(scale=-0.5),
    ),
    Pair(
        requirement="M3",
        argument="attn_mask",
        label="some keys hidden and none",
        first=_as_it_is,
        second=_masked,
        mask="none/LS",
        needs="mask",
    ),
    Pair(
        requirement="M1",
        argument="mask_flag",
        label="a mask given, on and off",
        first=lambda call: _masked(call, mask_flag=True),
        second=lambda call: _masked(call, mask_flag=False),
        needs="mask",
    ),
    Pair(
        requirement="M2",
        argument="mask_flag",
        label="no mask given, on and off",
        first=_with(mask_flag=True),
        second=_with(mask_flag=False),
        mask=masks.CAUSAL,
        needs="causal",
    ),
    Pair(
        requirement="M6",
        argument="masked_rows",
        label="'nan' and 'zero'",
        first=_with(masked_rows="nan"),
        second=_with(masked_rows="zero"),
        mask="rows/B1LS",
        needs="mask masked_rows=zero",
    ),
    Pair(
        requirement="P1",
        argument="attention_dropout",
        label="0 and 0.5 in training",
        first=_with(training=True),
        second=_with(training=True, dropout=0.5),
        needs="dropout",
    ),
    Pair(
        requirement="P1",
        argument="train",
        label="dropout 0.5, in eval and in training",
        first=_with(dropout=0.5),
        second=_with(training=True, dropout=0.5),
        needs="dropout",
    ),
)
"""What must change V."""

ALIKE = (
    *(
        Pair(
            requirement="S2",
            argument="scale",
            label=f"None and {zero!r}",
            first=_as_it_is,
            second=_with(scale=zero),
        )
        for zero in (0, 0.0)
    ),
    Pair(
        requirement="S1",
        argument="scale",
        label="None and 1 / sqrt(E)",
        first=_as_it_is,
        second=lambda call: call.but(scale=call.shape.E**-0.5),
    ),
    Pair(
        requirement="M1",
        argument="attn_mask",
        label="mask_flag off, a mask and none",
        first=_as_it_is,
        second=_masked,
    ),
    Pair(
        requirement="C2",
        argument="output_attention",
        label="on and off",
        first=_with(weights=True),
        second=_as_it_is,
        needs="weights",
    ),
    Pair(
        requirement="C2",
        argument="output_attention",
        label="a mask given, on and off",
        first=_with(weights=True),
        second=_as_it_is,
        mask="random/BHLS",
        needs="mask weights",
    ),
    Pair(
        requirement="C7",
        argument="factor",
        label="5 and 1",
        first=_as_it_is,
        second=_with(factor=1),
    ),
    *(
        Pair(
            requirement="C7",
            argument=name,
            label="none and 7.5",
            first=_as_it_is,
            second=_option(name),
        )
        for name in ("tau", "delta")
    ),
    Pair(
        requirement="P1",
        argument="attention_dropout",
        label="0 and 0.5 in eval",
        first=_as_it_is,
        second=_with(dropout=0.5),
    ),
    Pair(
        requirement="P1",
        argument="train",
        label="dropout 0, in eval and in training",
        first=_as_it_is,
        second=_with(training=True),
    ),
)
"""What must not change V."""
