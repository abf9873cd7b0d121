"""No case counts unless answers that ignore the question fail it, here and there for a reason."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from fullattention.backends import Precision, UnsupportedError, flash, prescaled, standard, stored
from fullattention.backends.precision import DTYPES, widest
from fullattention.conformance.catalogue import catalogue
from fullattention.conformance.check import Check
from fullattention.conformance.subject import load_subject
from fullattention.conformance.trial import run_check
from tests.zoo.attending import Call, Method, Result, right
from tests.zoo.faulty.making import mean_of_values
from tests.zoo.specimen import backend

SECTIONS = ("core", "scale", "mask", "numerics", "weights", "dropout")


def zeros(call: Call) -> Result:
    out, a = right(call)
    return np.zeros_like(out), None if a is None else np.zeros_like(a)


def values_themselves(call: Call) -> Result:
    L, S = call.q.shape[1], call.v.shape[1]
    if L != S:
        raise UnsupportedError("null", "L = S", f"V has {S} rows, and there are {L} queries")
    return call.v.copy(), mean_of_values(call)[1]


def keys_permuted(call: Call) -> Result:
    return right(call.but(k=np.roll(call.k, 1, axis=1)))


NULLS: Mapping[str, Method] = {
    "zeros": zeros,
    "mean of V": mean_of_values,
    "V itself": values_themselves,
    "keys permuted": keys_permuted,
}
"""Answers that a case must tell from the right one."""


@dataclass(frozen=True)
class Read:
    """What the id of a check says."""

    id: str

    @functools.cached_property
    def fields(self) -> Mapping[str, str]:
        return dict(re.findall(r"(\w+)=(\S+)", self.id))

    @property
    def lengths(self) -> tuple[int, int, int]:
        """L, S and E."""
        _, L, S, _, E, _ = map(int, self.fields["shape"].split(","))
        return L, S, E

    def __getitem__(self, name: str) -> str:
        return self.fields.get(name, "")


def one_key(read: Read) -> bool:
    return read.lengths[1] == 1 and not all_hidden(read)


def one_query_and_key(read: Read) -> bool:
    return read.lengths[0] == 1 and one_key(read)


def equal_keys(read: Read) -> bool:
    return read["data"] == "ties" or "parity" in read.id or read.lengths[2] == 0


def equal_keys_all_visible(read: Read) -> bool:
    return equal_keys(read) and not read["mask"]


def all_hidden(read: Read) -> bool:
    return read["mask"].startswith("all/")


def all_hidden_and_zero(read: Read) -> bool:
    return all_hidden(read) and read["masked_rows"] == "zero"


def all_hidden_one_key_and_zero(read: Read) -> bool:
    return all_hidden_and_zero(read) and read.lengths[:2] == (1, 1)


def undefined(read: Read) -> bool:
    scale = float(read["scale"] or 1)
    hides_in_every_row = read["mask"] in ("tail/S", "rows/B1LS")
    return not math.isfinite(scale) or (scale < 0 and hides_in_every_row)


def sum_of_weights(read: Read) -> bool:
    return read.id.startswith("W2")


def square_sum_of_weights(read: Read) -> bool:
    return sum_of_weights(read) and read.lengths[0] == read.lengths[1]


ONE_KEY = "one key has all the weight, whatever q and k are"
EQUAL = "all keys are equal, so the right weights are too"
HIDDEN = "every key is hidden, so the layer's profile decides and not the backend"
UNDEFINED = "the layer makes every row NaN, whatever the backend answers"
SUM = "rows of weights sum to 1 for any keys: the check asks nothing else"

Exceptions = Mapping[str, Mapping[str, Callable[[Read], bool]]]

EXCEPTIONS: Exceptions = {
    "zeros": {HIDDEN: all_hidden_and_zero, UNDEFINED: undefined},
    "mean of V": {
        ONE_KEY: one_key,
        EQUAL: equal_keys_all_visible,
        HIDDEN: all_hidden_and_zero,
        UNDEFINED: undefined,
        SUM: sum_of_weights,
    },
    "V itself": {
        ONE_KEY: one_query_and_key,
        HIDDEN: all_hidden_one_key_and_zero,
        SUM: square_sum_of_weights,
    },
    "keys permuted": {
        ONE_KEY: one_key,
        EQUAL: equal_keys,
        HIDDEN: all_hidden,
        UNDEFINED: undefined,
        SUM: sum_of_weights,
    },
}
"""Null answer -> why it is right -> which checks that is true of."""


def usual_of_classes(dtype: str) -> Precision:
    """What a class, which declares nothing, is judged by."""
    return widest(stored(dtype), prescaled(dtype), flash(dtype))


MODELS: Mapping[str, tuple[Callable[[str], Precision], tuple[str, ...]]] = {
    "standard": (standard, DTYPES),
    # Half scores that are stored leave some half cases no information: honest results err so much.
    "of-classes": (usual_of_classes, ("float64", "float32")),
}


@functools.cache
def compared(model: str) -> tuple[Check, ...]:
    """The checks that compare numbers with the oracle, and pass for a right backend."""
    precision, dtypes = MODELS[model]
    subject = load_subject(backend("right", right, precision=precision, dtypes=dtypes))
    checks = [
        one
        for one in catalogue(dtypes, "standard")
        # Relations hold for many a wrong answer: each convicts another kind, as its own tests show.
        if one.section in SECTIONS
        and "gradient" not in one.needs
        and not one.label.startswith(("relation: ", "pair: "))
    ]
    results = [run_check(subject, one) for one in checks]
    # What asks for torch's modes is nothing for arrays of NumPy.
    assert all(
        result.status == "passed" or (result.status == "unsupported" and "torch" in result.detail)
        for result in results
    ), [result for result in results if result.status != "passed"]
    return tuple(
        one for one, result in zip(checks, results, strict=True) if result.ratio is not None
    )


@pytest.mark.proof
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("null", NULLS)
def test_a_null_answer_fails_every_case_but_those_where_it_is_right(null: str, model: str) -> None:
    precision, dtypes = MODELS[model]
    subject = load_subject(backend("null", NULLS[null], precision=precision, dtypes=dtypes))
    statuses = {one.id: run_check(subject, one).status for one in compared(model)}
    asked = {name for name, status in statuses.items() if status != "unsupported"}
    weak = {name for name in asked if statuses[name] == "passed"}
    excused = {
        reason: {name for name in asked if predicate(Read(name))}
        for reason, predicate in EXCEPTIONS[null].items()
    }
    assert weak == set().union(*excused.values())
    assert all(excused.values()), "an exception that excuses nothing"


@pytest.mark.proof
def test_every_dtype_has_many_cases() -> None:
    for dtype in DTYPES:
        assert sum(one.dtype == dtype for one in compared("standard")) > 200
