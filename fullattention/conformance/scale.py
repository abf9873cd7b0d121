"""Checks of the contract's section scale."""

from __future__ import annotations

import math

from fullattention.backends.interface import Sizes
from fullattention.conformance import masks
from fullattention.conformance.case import Case, judged, layer_for
from fullattention.conformance.check import Checks, case_check
from fullattention.conformance.subject import Subject


def checks(dtype: str, primary: bool) -> Checks:
    """The section's checks for one dtype."""
    base = Case(dtype=dtype)
    for scale in (None, 0.0, 0):
        yield case_check("S1" if scale is None else "S2", base.but(scale=scale), quick=True)
    yield case_check("S1", base.but(shape=Sizes(2, 6, 6, 3, 4, 16)), quick=True)
    yield case_check("S1", base.but(shape=Sizes(2, 6, 6, 3, 16, 4)))
    for scale in (0.3, 1.0, 2.5, 1e-3, 12.0, 100.0):
        yield case_check("S4", base.but(scale=scale), quick=primary and scale == 0.3)
    for scale in (-0.3, -1.0):
        yield case_check("S4", base.but(scale=scale), quick=primary)
        yield case_check("S3", base.but(scale=scale, mask="none/B1LS"))
    if not primary:
        return
    yield case_check("S1", base, _features_in_turn, "one layer, other features in turn", quick=True)
    for scale in (math.nan, math.inf, -math.inf):
        yield case_check("S4", base.but(scale=scale), quick=True)
    yield case_check("S4", base.but(scale=math.nan, shape=Sizes(3, 7, 5, 4, 11, 13)), quick=True)
    square = Sizes(2, 6, 6, 3, 11, 13)
    yield case_check("S3", base.but(scale=-0.3, mask="tail/S"), quick=True)
    yield case_check("S3", base.but(scale=-0.3, mask="padding/B1LS"), quick=True)
    yield case_check("S3", base.but(scale=-0.3, mask=masks.CAUSAL, shape=square), quick=True)
    yield case_check("S2", base.but(scale=0.0, mask=masks.CAUSAL, shape=square), quick=True)
    yield case_check("S3", base.but(scale=-0.3, mask="padding/B1LS", weights=True))
    for rows in ("nan", "zero"):  # the profile decides fully hidden rows whatever the scale is
        hidden = base.but(mask="rows/B1LS", masked_rows=rows)
        yield case_check("S3", hidden.but(scale=-0.3), quick=True, needs=f"masked_rows={rows}")
        yield case_check("S4", hidden.but(scale=math.inf), needs=f"masked_rows={rows}")
    yield case_check("S4", base.but(scale=0.3, mask="random/B1LS"), quick=True)


def _features_in_turn(subject: Subject, case: Case) -> float:
    """E is that of the call: a layer must not keep the scale that it found for its first one."""
    layer = layer_for(subject, case)
    shapes = (case.shape._replace(E=E) for E in (4, 16, 4))
    return max(judged(subject, layer, case.but(shape=shape)) for shape in shapes)
