"""Checks of the contract's section mask."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np

from fullattention.backends.interface import Sizes
from fullattention.conformance import addresses, layouts, masks
from fullattention.conformance.case import (
    DISTINCT,
    Case,
    Failed,
    Refused,
    answer,
    as_mask,
    check_case,
    compare,
    expected,
    expected_of,
    judge,
    layer_for,
    put,
    put_mask,
    run,
)
from fullattention.conformance.check import Check, Checks, Evidence, case_check
from fullattention.conformance.core import refuses, refuses_case
from fullattention.conformance.subject import Subject

SHAPES = (
    "", "S", "1", "LS", "L1", "1S", "HLS", "1LS", "H1S",
    "11LS", "B1LS", "1HLS", "B11S", "BH1S", "B1L1", "BHL1", "11L1", "1H1S", "1111",
)  # fmt: skip
"""Mask shapes: every way to broadcast that is in use, besides the full one."""

SQUARE, WIDE = Sizes(1, 600, 600, 1, 8, 2), Sizes(1, 520, 776, 1, 8, 2)
"""Several of the largest usual tiles both ways."""

MOST_KEYS = 2048
"""Of a call whose size the candidate's tile decides: more would take the oracle seconds."""


def checks(dtype: str, primary: bool) -> Checks:
    """The section's checks for one dtype."""
    base = Case(dtype=dtype)
    square = base.but(shape=Sizes(2, 7, 7, 3, 11, 13))
    yield case_check("M2", square.but(mask=masks.CAUSAL), quick=True)
    yield case_check("M4", base.but(mask="random/BHLS"), quick=True)
    yield from _fully_hidden(base, quick=primary)
    yield from _without_effect(base, quick=primary)
    yield from _long(base)
    if not primary:
        return
    yield from _flag(base)
    yield from _causal(base)
    yield from _polarity_and_kind(base)
    yield from _broadcast(base)
    yield from _strided(base)
    yield from _weights(base)


def _flag(base: Case) -> Checks:
    for label, mask in (
        ("random", np.random.default_rng(0).random((2, 1, 5, 7)) < 0.5),
        ("all hidden", np.ones((2, 1, 5, 7), bool)),
        ("wrong shape", np.ones((9, 9), bool)),
        ("wrong dtype", np.ones((5, 7), np.float32)),
    ):

        def trial(subject: Subject, case: Case, mask: np.ndarray = mask) -> float:
            given = as_mask(subject, mask)
            got = answer(subject, case, layer_for(subject, case)(*put(subject, case), given))
            return judge(got, expected_of(subject, case))

        yield case_check("M1", base, trial, label, quick=True, needs="arguments")


def _causal(base: Case) -> Checks:
    for n in (2, 3, 16, 17, 33, 64, 65, 130):
        shape = Sizes(1, n, n, 2, 8, 8)
        quick = n in (2, 17, 65)
        yield case_check("M2", base.but(shape=shape, mask=masks.CAUSAL), quick=quick)
        if n > 2:  # of two keys on a staircase the second has all the weight
            yield case_check("M2", base.but(shape=shape, mask=masks.CAUSAL, data="staircase"))
    enormous = base.but(shape=Sizes(1, 2048, 2048, 1, 8, 2), mask=masks.CAUSAL)
    yield case_check("M2", enormous, full=True)
    for S in (1, 2, 9):
        shape = Sizes(2, 1, S, 3, 8, 8)
        yield case_check("M2", base.but(shape=shape, mask=masks.CAUSAL), quick=True)
    for L, S in ((5, 7), (7, 5), (5, 1)):
        case = base.but(shape=Sizes(2, L, S, 3, 8, 8), mask=masks.CAUSAL)
        yield case_check("M2", case, refuses_case, "L != S is refused", quick=True)
    case = base.but(shape=Sizes(2, 9, 9, 3, 8, 8), mask="later/LS")
    yield case_check("M2", case, quick=True)


def _long(base: Case) -> Checks:
    """Queries and keys of many tiles: kernels and tiles depend on the dtype, so in each."""
    yield case_check("M2", base.but(shape=SQUARE, mask=masks.CAUSAL))
    yield case_check("M4", base.but(shape=WIDE, mask="random/BHLS"))
    tiles = base.but(shape=Sizes(1, 49, 49, 1, 8, 4))
    for requirement, mask in (("M2", masks.CAUSAL), ("M4", "random/BHLS")):
        case = tiles.but(mask=mask)
        yield case_check(requirement, case, _beyond_tiles, "three of its tiles and more")


def _beyond_tiles(subject: Subject, case: Case) -> float:
    """The case, or a longer one of three declared tiles and one key, as far as that can be paid."""
    tile = subject.precision[case.dtype].tile
    n = min(max(3 * tile + 1, case.shape.S), MOST_KEYS)
    return check_case(subject, case.but(shape=case.shape._replace(L=n, S=n)))


def _polarity_and_kind(base: Case) -> Checks:
    case = base.but(mask="tail/LS")
    yield case_check("M3", case, quick=True)
    yield case_check("M3", case, _as_holder, "object with a mask", quick=True)
    for kind in ("float32", "int64", "uint8"):
        yield _refused_mask("M3", base, kind, np.ones((5, 7), kind))


def _as_holder(subject: Subject, case: Case) -> float:
    array = subject.arrays.put(masks.build(case.mask, case.shape, case.seed), subject.device)
    holder = SimpleNamespace(mask=array)
    got = answer(subject, case, layer_for(subject, case)(*put(subject, case), holder))
    return judge(got, expected_of(subject, case))


def _broadcast(base: Case) -> Checks:
    for axes in SHAPES:
        pattern = "random" if axes.endswith("S") else "none"
        quick = axes in ("", "S", "LS", "B11S", "HLS", "B1LS")
        yield case_check("M4", base.but(mask=f"{pattern}/{axes}"), quick=quick)
    for pattern in ("padding/B11S", "tail/S", "band/LS"):
        yield case_check("M4", base.but(mask=pattern))
    for n in (15, 33, 66):
        yield case_check("M4", base.but(shape=Sizes(2, n, n + 2, 3, 8, 8), mask="random/BHLS"))
    long = Sizes(1, 150, 150, 2, 8, 8)
    yield case_check("M4", base.but(shape=long, mask="band/LS"), quick=True)
    yield case_check("M4", base.but(shape=long, mask="padding/B1LS"))
    yield case_check("M4", base.but(shape=WIDE._replace(H=2), mask="band/LS"))
    square = Sizes(2, 7, 7, 3, 8, 8)
    yield case_check("M4", base.but(shape=square, mask="random/LS"), quick=True)
    yield case_check("M4", base.but(shape=square, mask="random/BHLS"), quick=True)
    aligned = Sizes(3, 5, 7, 3, 8, 8)  # B == H: (B, L, S) broadcasts, along the heads
    yield case_check("M4", base.but(shape=aligned, mask="random/HLS"))
    for shape in ((2, 5, 7), (5, 1, 7), (7, 5), (2, 3, 5, 8), (1, 2, 3, 5, 7), (4, 3, 5, 7)):
        yield _refused_mask("M4", base, f"mask {shape}", np.zeros(shape, bool))
    one_query = base.but(shape=Sizes(2, 1, 7, 3, 8, 8))
    yield _refused_mask("M4", one_query, "mask (5, 7) for L = 1", np.zeros((5, 7), bool))


def _strided(base: Case) -> Checks:
    """A mask is often a view: a slice, a transpose, one row expanded to all."""
    for layout in layouts.LAYOUTS:
        axes = {None: "BHLS", 0: "1HLS", 2: "BH1S"}[layouts.EXPANDED_AXIS.get(layout)]
        case = base.but(mask=f"random/{axes}")
        trial = functools.partial(_with_layout, layout=layout)
        quick = layout in ("every-other", "shared-heads")
        yield case_check("M4", case, trial, f"mask is {layout}", quick=quick)


def _with_layout(subject: Subject, case: Case, layout: str) -> float:
    B, L, S, H, _, _ = case.shape
    mask = masks.build(case.mask, case.shape, case.seed)
    full = np.broadcast_to(mask, (B, H, L, S))
    try:
        array = layouts.place(subject.arrays, full, layout, subject.device)
    except ValueError as error:
        raise Refused(str(error)) from error
    layer = layer_for(subject, case)
    got = answer(subject, case, layer(*put(subject, case), SimpleNamespace(mask=array)))
    return judge(got, expected_of(subject, case))


def _refused_mask(requirement: str, base: Case, label: str, mask: np.ndarray) -> Check:
    def trial(subject: Subject, case: Case) -> Evidence:
        given: Any = as_mask(subject, mask)
        flagged = case.but(mask="none/LS")  # any mask: only the flag counts
        return refuses(lambda: layer_for(subject, flagged)(*put(subject, case), given))

    return case_check(requirement, base, trial, f"{label} is refused", quick=True, needs="mask")


def _weights(base: Case) -> Checks:
    for mask in ("random/BHLS", "padding/B11S", "tail/S"):
        yield case_check("M5", base.but(mask=mask, weights=True), quick=mask == "random/BHLS")
        case = base.but(mask=mask, shape=DISTINCT._replace(D=DISTINCT.S))
        yield case_check("M5", case, _rows, "values are the identity", quick=True)


def _rows(subject: Subject, case: Case) -> float:
    """With the identity as values V holds the weights, for a candidate that returns none too."""
    q, k, _ = put(subject, case)
    identity = addresses.identity(case.shape, case.dtype)
    v = subject.arrays.put(identity, subject.device)
    got = answer(subject, case, layer_for(subject, case)(q, k, v, put_mask(subject, case))).out
    want = expected_of(subject, case)
    hidden = masks.hidden_by(case.mask, case.shape, case.seed)
    weights = got.astype(np.float64).transpose(0, 2, 1, 3)
    if weights[np.broadcast_to(False if hidden is None else hidden, weights.shape)].any():
        raise Failed("a hidden key has a weight that is not exactly 0")
    return compare("weights by identity", "bhls", weights, want.weights, want.weights_bound)


def _fully_hidden(base: Case, *, quick: bool) -> Checks:
    long = base.but(mask="rows/LS", shape=Sizes(1, 70, 70, 2, 8, 8))
    cases = [base.but(mask="rows/B1LS"), base.but(mask="all/LS"), long]
    if quick:
        cases += [base.but(mask="rows/BHLS"), base.but(mask="all/B11S"), base.but(mask="all/")]
        cases += [base.but(mask="all/LS", shape=Sizes(2, 1, 1, 3, 8, 8))]
    for case in cases:
        for rows in ("nan", "zero"):
            profile = case.but(masked_rows=rows)
            yield case_check("M6", profile, quick=quick, needs=f"masked_rows={rows}")
    if quick:
        for rows in ("nan", "zero"):
            weights = base.but(mask="rows/B1LS", masked_rows=rows, weights=True)
            yield case_check("M6", weights, needs=f"masked_rows={rows}")


def _without_effect(base: Case, *, quick: bool) -> Checks:
    for poison in ("large-last-key", "large-last-value"):
        for mask in ("tail/S", "tail/BHLS"):
            case = base.but(mask=mask, poison=poison)
            yield case_check("M7", case, _same_bits, quick=quick)
            yield case_check("M7", case.but(weights=True), _same_bits)
    causal = base.but(shape=Sizes(2, 7, 7, 3, 11, 13), mask=masks.CAUSAL)
    for poison in ("large-last-key", "large-last-value"):
        yield case_check("M7", causal.but(poison=poison))
    yield from _no_finite_fill(base, quick=quick)


def _no_finite_fill(base: Case, *, quick: bool) -> Checks:
    for mask in ("tail/S", "tail/BHLS", masks.CAUSAL):
        shape = Sizes(2, 6, 7, 3, 2, 5) if mask != masks.CAUSAL else Sizes(2, 6, 6, 3, 2, 5)
        case = base.but(mask=mask, shape=shape, poison="low-visible-scores")
        yield case_check("M7", case, _lowest_scores, quick=quick)
    for mask in ("tail/S", "tail/LS", "tail/B11S", "tail/BHLS"):
        for returned in (False, True):
            asked = base.but(mask=mask, shape=Sizes(2, 9, 7, 3, 2, 5), weights=returned)
            yield case_check("M7", asked.but(poison="low-visible-scores"), _lowest_scores)


def _lowest_scores(subject: Subject, case: Case) -> float:
    """Visible keys share the weight evenly, however low their score is; hidden ones get none.

    The last query of a causal call sees the last key: there that one has all the weight.
    """
    equal = case.but(poison="equal-scores")
    want = expected(equal, subject.precision[case.dtype])
    got = run(subject, case)
    if case.mask == masks.CAUSAL:
        last = got.out[:, -1].astype(np.float64)
        if not (last == 1000).all():
            raise Failed(f"the last query must read the last key's 1000, got {last.flat[0]:.9g}")
        got.out[:, -1] = want.out[:, -1]
    return judge(got, want)


def _same_bits(subject: Subject, case: Case) -> float:
    """What a hidden key or value holds must not reach a single bit of V."""
    plain = case.but(poison="")
    clean = run(subject, plain)
    poisoned = run(subject, case)
    if "determinism" not in subject.lacks and clean.out.tobytes() != poisoned.out.tobytes():
        apart = abs(clean.out.astype(np.float64) - poisoned.out.astype(np.float64)).max()
        raise Failed(f"a large finite number in a hidden position changed V by up to {apart:.3g}")
    return judge(poisoned, expected_of(subject, plain))
