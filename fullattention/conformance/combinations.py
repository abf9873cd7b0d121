"""Checks of calls that differ from the plain one in several traits at once.

An implementation takes another path for another mask, layout, size or result, and the paths of two
traits may be right and that of both wrong: so any two of them meet in a case here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from fullattention.backends.interface import Sizes
from fullattention.conformance import core, masks, weights
from fullattention.conformance.case import Case
from fullattention.conformance.check import Checks, case_check
from fullattention.conformance.covering import covering

GIVEN = ("random/S", "padding/B11S", "random/LS", "padding/B1LS", "random/BHLS")
HIDING = (masks.OFF, masks.CAUSAL, "padding/B11S", "random/BHLS")
"""The kinds of masks that most implementations tell apart."""

LAYOUTS = ("contiguous", "heads-first", "packed", "every-other", "shared-heads")

LENGTHS = ((6, 9), (6, 264), (264, 9), (128, 128))
"""L and S: few, more than any usual tile holds, and whole tiles."""

FEATURES = ((11, 13), (32, 32), (64, 64), (128, 128), (80, 24))
"""E and D: those that kernels are made for, and others."""

SCALES = (None, 0.7)


def checks(dtype: str, primary: bool) -> Checks:
    """The combinations for one dtype: what calls of each kind give, and what they leave alone."""
    for case in dict.fromkeys(_calls(dtype)):
        yield case_check(_requirement(case), case)
    yield from _form(dtype)
    if primary:
        yield from _hidden_rows(dtype)


def _calls(dtype: str) -> Iterator[Case]:
    """Without mask and weights first, for candidates that lack these."""
    sizes = (LAYOUTS, LENGTHS, FEATURES)
    for layout, lengths, features in covering(*sizes):
        yield combined(dtype, masks.OFF, layout, lengths, features)
    hiding = (masks.OFF, masks.CAUSAL, *GIVEN)
    for returned in (False, True):
        for mask, layout, lengths, features, scale in covering(hiding, *sizes, SCALES):
            case = combined(dtype, mask, layout, lengths, features)
            yield case.but(scale=scale, weights=returned)


def combined(
    dtype: str, mask: str, layout: str, lengths: tuple[int, int], features: tuple[int, int]
) -> Case:
    """A case with some traits; causally L and S are both the longer length."""
    L, S = (max(lengths),) * 2 if mask == masks.CAUSAL else lengths
    B, H = (2, 3) if L * S < 2_000 else (1, 2)  # what is long both ways is dear
    return Case(dtype=dtype, mask=mask, layout=layout, shape=Sizes(B, L, S, H, *features))


def _requirement(case: Case) -> str:
    """The one that a case is named after: it asks for all that its traits do."""
    for requirement, asked in (
        ("C4", case.layout != "contiguous"),
        ("W1", case.weights),
        ("M2", case.mask == masks.CAUSAL),
        ("M4", case.mask != masks.OFF),
        ("S4", case.scale is not None),
    ):
        if asked:
            return requirement
    return "C5"


def _form(dtype: str) -> Checks:
    """In each kind of call: whose memory it is, and how it lies."""
    kinds = covering(
        (masks.OFF, masks.CAUSAL, "random/B1LS"),
        (None, 0.3),
        LAYOUTS[:3],
        (0.0, 0.5),
    )
    for returned in (False, True):
        for mask, scale, layout, p in kinds:
            case = combined(dtype, mask, layout, (6, 9), (11, 13))
            case = case.but(scale=scale, weights=returned)
            one_key = case.but(shape=Sizes(3, 1, 1, 2, 8, 8))
            told = f"in training with p={p}" if p else ""
            needs = "dropout" if p else ""
            trials = [
                ("C3", case, core.inputs_unchanged, "inputs unchanged"),
                ("C3", one_key, core.no_alias, "V shares no memory"),
                ("C1", case, core.contiguous, "contiguous"),
            ]
            if not p:
                yield case_check("C3", case, core.read_only, "read-only inputs")
            if returned:
                trials.append(("W1", case, weights.contiguous, "contiguous"))
            for requirement, one, trial, name in trials:
                tried = functools.partial(trial, p=p)
                yield case_check(requirement, one, tried, f"{name} {told}".strip(), needs=needs)


def _hidden_rows(dtype: str) -> Checks:
    """Rows that are hidden altogether, in tiles where others are not."""
    patterns = ("rows/LS", "rows/B1LS", "rows/BHLS")
    for returned in (False, True):
        for mask, layout, *sizes in covering(patterns, LAYOUTS[:3], LENGTHS, FEATURES[:4]):
            case = combined(dtype, mask, layout, *sizes).but(weights=returned)
            for rows in ("nan", "zero"):
                profile = case.but(masked_rows=rows)
                yield case_check("M6", profile, needs=f"masked_rows={rows}")
