"""What a backend declares of itself makes sense, or is refused by its name."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from fullattention.backends import Backend, numpy_arrays, numpy_matmul, standard
from fullattention.backends.precision import DTYPES, MOST, Precision, flash, working
from fullattention.conformance.bound import expected_within
from fullattention.conformance.case import Case, exact


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, -math.inf, "4", None, True, 1e30])
@pytest.mark.parametrize("field", MOST)
def test_a_figure_that_makes_no_sense_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{field} is .*: an? (int|float) from 0 to "):
        dataclasses.replace(standard("float32"), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [("score_roundings", 10**9), ("exp_arg", 2.0), ("tile", 16.0), ("u_acc", np.float32(0.1))],
)
def test_what_is_too_large_or_of_another_type_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field} is "):
        dataclasses.replace(standard("float32"), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["blocked", "recompute"])
def test_a_switch_is_on_or_off(field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field} is 1: True or False"):
        dataclasses.replace(standard("float32"), **{field: 1})  # type: ignore[arg-type]


def test_every_figure_has_a_most() -> None:
    fields = {field.name for field in dataclasses.fields(Precision)}
    assert fields == {*MOST, "blocked", "recompute"}


@pytest.mark.parametrize(
    "model",
    [
        dataclasses.replace(standard("float32"), **{name: MOST[name]})  # type: ignore[arg-type]
        for name in MOST
    ]
    + [working("bfloat16", "bfloat16"), dataclasses.replace(flash("float32"), u_softmax=2.0**-8)],
)
def test_no_bound_is_negative_or_nan_whatever_is_declared(model: Precision) -> None:
    case = Case(shape=Case().shape._replace(S=600))
    found = expected_within(exact(case), model)
    assert (found.out_bound >= 0).all()
    assert (found.weights_bound >= 0).all()


def declared(**fields: Any) -> Backend:
    precision = {dtype: standard(dtype) for dtype in DTYPES}
    given: dict[str, Any] = {"precision": precision, "arrays": numpy_arrays.ARRAYS, **fields}
    return Backend(name="mine", attend=numpy_matmul.attend, **given)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"lacks": {"dropout"}}, "lacks is {'dropout'}: a mapping to the reason why"),
        ({"deviates": ["M6"]}, "deviates is .*: a mapping to the reason why"),
        ({"lacks": {"dropout": " "}}, "lacks has 'dropout' with the reason ' ': say why"),
        ({"deviates": {"M6": None}}, "deviates has 'M6' with the reason None: say why"),
        ({"precision": {"float32": 1e-7}}, "precision of float32 is 1e-07: a Precision"),
        ({"precision": {}}, "precision is {}: a Precision for each dtype"),
        ({"precision": standard("float32")}, "precision is Precision.*: a Precision for each"),
    ],
)
def test_a_declaration_that_makes_no_sense_names_its_field(
    fields: dict[str, object], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        declared(**fields)
