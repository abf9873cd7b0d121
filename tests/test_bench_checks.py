"""Wrong results of timed calls are caught, wherever a sample can look."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fullattention.bench.calls import build_layer
from fullattention.bench.inputs import SEED, random_inputs
from fullattention.bench.spot_check import PAIRS, QUERIES, changed_inputs, largest_error
from fullattention.bench.workloads import Workload, parse_shape
from fullattention.layer import Sizes
from tests.bench_fakes import subject

SMALL = parse_shape("2,5,7,3,4,6")
LARGE = Workload("large", Sizes(5, 40, 40, 7, 8, 8), "a test", mask="causal")
"""More heads and queries than are looked at, and causal."""


def right_output(workload: Workload) -> np.ndarray:
    q, k, v = random_inputs(workload, SEED)
    out: np.ndarray
    out, _ = build_layer(subject(), workload)(q, k, v, None)
    return out


def error(workload: Workload, *outputs: np.ndarray) -> float:
    inputs = random_inputs(workload, SEED)
    return largest_error(subject(), workload, inputs, outputs, np.random.default_rng(1))


@pytest.mark.parametrize("workload", [SMALL, LARGE, SMALL.in_dtype("bfloat16")], ids=str)
def test_a_right_output_is_within_its_bound(workload: Workload) -> None:
    assert 0 < error(workload, right_output(workload)) <= 1


def test_in_a_small_output_every_wrong_element_is_seen() -> None:
    right = right_output(SMALL)
    for place in np.ndindex(right.shape):
        wrong = right.copy()
        wrong[place] += 1e-3
        assert error(SMALL, wrong) > 1, place


def test_in_a_large_output_the_corners_are_always_seen() -> None:
    right = right_output(LARGE)
    assert right.shape[0] * right.shape[2] > PAIRS
    assert right.shape[1] > QUERIES
    for corner in [(0, 0, 0, 0), (-1, -1, -1, -1), (0, -1, 0, 0), (-1, 0, -1, 0)]:
        wrong = right.copy()
        wrong[corner] += 1e-3
        assert error(LARGE, wrong) > 1, corner


def test_a_causal_workload_without_its_mask_is_wrong() -> None:
    q, k, v = random_inputs(LARGE, SEED)
    unmasked, _ = subject().build(mask_flag=False, attention_dropout=0.0, masked_rows="nan")(
        q, k, v, None
    )
    assert error(LARGE, unmasked) > 1


def test_one_wrong_output_among_right_ones_is_seen() -> None:
    right = right_output(SMALL)
    assert error(SMALL, right, right + 1e-3) > 1
    assert error(SMALL, right + 1e-3, right) > 1


def test_nan_and_a_wrong_shape_are_infinitely_wrong() -> None:
    right = right_output(SMALL)
    holed = right.copy()
    holed[-1, -1, -1, -1] = np.nan
    assert math.isinf(error(SMALL, holed))
    assert math.isinf(error(SMALL, right[:, :, :, :-1]))
    assert math.isinf(error(SMALL, right.transpose(0, 2, 1, 3)))


def test_changed_inputs_are_named() -> None:
    inputs = random_inputs(SMALL, SEED)
    q, k, v = (array.copy() for array in inputs)
    assert changed_inputs(subject(), inputs, (q, k, v)) == []
    v[-1, -1, -1, -1] = np.nextafter(v[-1, -1, -1, -1], np.inf)
    q[0] = 0
    assert changed_inputs(subject(), inputs, (q, k, v)) == ["queries", "values"]


def test_inputs_are_repeatable_full_of_digits_and_safe_from_writers() -> None:
    q, k, v = random_inputs(SMALL, SEED)
    assert q.shape == (2, 5, 3, 4)
    assert k.shape == (2, 7, 3, 4)
    assert v.shape == (2, 7, 3, 6)
    random_inputs.cache_clear()
    again, _, _ = random_inputs(SMALL, SEED)
    assert again is not q
    np.testing.assert_array_equal(again, q)
    other, _, _ = random_inputs(SMALL, SEED + 1)
    assert not np.array_equal(other, q)
    assert (q != q.astype(np.float16)).all()
    with pytest.raises(ValueError, match="read-only"):
        q[0, 0, 0, 0] = 0


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_inputs_come_in_the_workloads_dtype(dtype: str) -> None:
    q, _, _ = random_inputs(SMALL.in_dtype(dtype), SEED)
    assert str(q.dtype) == dtype
