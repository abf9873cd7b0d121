"""Wrong results of timed calls are caught, wherever a sample can look."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fullattention.backends import load, precision
from fullattention.backends.interface import Sizes
from fullattention.bench.inputs import SEED, SETS, InputPool
from fullattention.bench.modes import MODES, Inputs, Results, make_call
from fullattention.bench.spot_check import PAIRS, QUERIES, SpotCheck, sample
from fullattention.bench.workloads import Workload, parse_shape
from fullattention.conformance.subject import Subject, from_backend
from tests.bench_fakes import subject

SMALL = parse_shape("2,5,7,3,4,6")
SQUARE = parse_shape("3,9,9,2,4,6")
LARGE = Workload("large", Sizes(5, 40, 40, 7, 8, 8), "a test", mask="causal")
"""More heads and queries than are looked at, and causal."""

Spoil = Callable[[Results], Results]


def pool_of(workload: Workload, folder: Path) -> InputPool:
    pool = InputPool(folder / "inputs", workload)
    pool.write(SEED)
    return pool


def judge(
    workload: Workload, folder: Path, number: int = 1, candidate: Subject | None = None
) -> Callable[[Spoil], float]:
    """What the check finds of a candidate's results, spoiled as it is told."""
    candidate = candidate or subject()
    pool = pool_of(workload, folder)
    placed = candidate.arrays.put(pool.private(), candidate.device)
    inputs = pool.sets(placed, candidate.arrays.strided)[number]
    results = make_call(candidate, workload)(inputs)
    taken = Results(*(None if x is None else candidate.arrays.take(x) for x in results))
    check, model = SpotCheck(pool), candidate.precision[workload.dtype]
    return lambda spoil: check.error(sample(workload, spoil(taken), number), number, model)


def error(
    workload: Workload,
    folder: Path,
    spoil: Spoil = lambda results: results,
    number: int = 1,
    candidate: Subject | None = None,
) -> float:
    """What the check finds of a candidate's results, spoiled once."""
    return judge(workload, folder, number, candidate)(spoil)


def adding(field: str, place: tuple[int, ...], amount: float = 1e-3) -> Spoil:
    def spoil(results: Results) -> Results:
        changed = getattr(results, field).copy()
        changed[place] += amount
        return results._replace(**{field: changed})

    return spoil


@pytest.mark.parametrize("number", range(SETS))
@pytest.mark.parametrize("workload", [SMALL, LARGE, SMALL.in_dtype("bfloat16")], ids=str)
def test_a_right_output_is_within_its_bound(
    workload: Workload, number: int, tmp_path: Path
) -> None:
    assert 0 < error(workload, tmp_path, number=number) <= 1


@pytest.mark.parametrize("mode", ["weights", "causal", "padding"])
def test_right_results_of_every_mode_are_within_their_bound(mode: str, tmp_path: Path) -> None:
    assert 0 < error(MODES[mode](SQUARE), tmp_path) <= 1


def test_in_a_small_output_every_wrong_element_is_seen(tmp_path: Path) -> None:
    B, L, _, H, _, D = SMALL.shape
    judged = judge(SMALL, tmp_path)
    for place in np.ndindex(B, L, H, D):
        assert judged(adding("out", place)) > 1, place


def test_in_a_large_output_the_corners_are_always_seen(tmp_path: Path) -> None:
    assert LARGE.shape.B * LARGE.shape.H > PAIRS
    assert LARGE.shape.L > QUERIES
    for corner in [(0, 0, 0, 0), (-1, -1, -1, -1), (0, -1, 0, 0), (-1, 0, -1, 0)]:
        assert error(LARGE, tmp_path, adding("out", corner)) > 1, corner


@pytest.mark.parametrize("mask", ["causal", "padding"])
def test_a_workload_without_its_mask_is_wrong(mask: str, tmp_path: Path) -> None:
    plain, masked = SQUARE, MODES[mask](SQUARE)
    inputs = pool_of(plain, tmp_path).sets(pool_of(plain, tmp_path).private())[1]
    unmasked = make_call(subject(), plain)(inputs)
    assert error(masked, tmp_path, lambda _: unmasked) > 1


def test_results_for_other_inputs_are_wrong(tmp_path: Path) -> None:
    inputs = pool_of(SMALL, tmp_path).sets(pool_of(SMALL, tmp_path).private())[2]
    stale = make_call(subject(), SMALL)(inputs)
    assert error(SMALL, tmp_path, lambda _: stale, number=1) > 1


def test_wrong_or_missing_weights_are_wrong(tmp_path: Path) -> None:
    workload = MODES["weights"](SMALL)
    assert error(workload, tmp_path, adding("weights", (1, 2, 4, 6))) > 1
    assert math.isinf(error(workload, tmp_path, lambda results: results._replace(weights=None)))


def test_nan_and_a_wrong_shape_are_infinitely_wrong(tmp_path: Path) -> None:
    nan = adding("out", (-1, -1, -1, -1), math.nan)
    assert math.isinf(error(SMALL, tmp_path, nan))
    for change in (lambda out: out[:, :, :, :-1], lambda out: out.transpose(0, 2, 1, 3)):
        spoil: Spoil = lambda r, change=change: r._replace(out=change(r.out))  # type: ignore[misc]  # noqa: E731
        assert math.isinf(error(SMALL, tmp_path, spoil))


# Training


TRAINED = MODES["training"](Workload("trained", Sizes(4, 24, 24, 3, 8, 8), "a test"))


def torch_subject(name: str = "torch-einsum") -> Subject:
    pytest.importorskip("torch")
    candidate = from_backend(load(name))
    candidate.seed(1)
    return candidate


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", ["torch-einsum", "torch-sdpa"])
@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
def test_right_training_steps_pass(name: str, dtype: str, mask: str, tmp_path: Path) -> None:
    workload = (MODES[mask](TRAINED) if mask != "none" else TRAINED).in_dtype(dtype)
    for number in range(SETS):
        found = error(workload, tmp_path, number=number, candidate=torch_subject(name))
        assert found <= 1


def scaled(field: str, factor: float) -> Spoil:
    return lambda results: results._replace(**{field: factor * getattr(results, field)})


@pytest.mark.parametrize("field", ["dq", "dk", "dv"])
@pytest.mark.parametrize("factor", [1.01, 0.0, math.nan])
def test_wrong_gradients_are_seen(field: str, factor: float, tmp_path: Path) -> None:
    assert error(TRAINED, tmp_path, scaled(field, factor), candidate=torch_subject()) > 1


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.5])
def test_a_wrong_output_of_a_training_step_is_seen(factor: float, tmp_path: Path) -> None:
    assert error(TRAINED, tmp_path, scaled("out", factor), candidate=torch_subject()) > 1


def test_a_training_step_that_drops_nothing_is_wrong(tmp_path: Path) -> None:
    def evaluated(**arguments: Any) -> Any:
        return candidate.build(**arguments | {"attention_dropout": 0.0})

    candidate = torch_subject()
    cheat = dataclasses.replace(candidate, build=evaluated)
    assert math.isinf(error(TRAINED, tmp_path, candidate=cheat))


# Inputs


def test_inputs_are_repeatable_and_full_of_digits(tmp_path: Path) -> None:
    first = pool_of(SMALL, tmp_path)
    q, k, v, g = first.sets(first.read_only())[0]
    assert (q.shape, k.shape, v.shape, g) == ((2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 3, 6), None)
    assert (q != q.astype(np.float16)).all()
    assert abs(np.concatenate([q.ravel(), k.ravel(), v.ravel()]).std() - 1) < 0.2
    again = InputPool(tmp_path / "again", SMALL)
    again.write(SEED)
    np.testing.assert_array_equal(again.read_only(), first.read_only())
    again.write(SEED + 1)
    assert not np.array_equal(again.read_only(), first.read_only())


def test_each_set_has_other_values_at_other_addresses(tmp_path: Path) -> None:
    pool = pool_of(SMALL, tmp_path)
    sets = pool.sets(pool.private())
    for field in ("q", "k", "v"):
        arrays = [getattr(one, field) for one in sets]
        assert len({array.ctypes.data for array in arrays}) == SETS
        assert all(array.ctypes.data % 4096 == 0 for array in arrays)
        assert all((arrays[0] != other).any() for other in arrays[1:])


def test_what_is_drawn_cannot_be_written_to_and_private_numbers_stay_private(
    tmp_path: Path,
) -> None:
    pool = pool_of(SMALL, tmp_path)
    original = pool.read_only()
    with pytest.raises(ValueError, match="read-only"):
        original[0] = 0
    before = original.copy()
    mine = pool.private()
    mine[:] = 0
    np.testing.assert_array_equal(pool.read_only(), before)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_inputs_come_in_the_workloads_dtype(dtype: str, tmp_path: Path) -> None:
    pool = pool_of(SMALL.in_dtype(dtype), tmp_path)
    assert str(pool.sets(pool.read_only())[0].q.dtype) == dtype


def test_a_backward_pass_has_a_gradient_to_begin_with(tmp_path: Path) -> None:
    pool = pool_of(MODES["training"](SMALL), tmp_path)
    inputs: Inputs = pool.sets(pool.read_only())[3]
    assert inputs.g.shape == (2, 5, 3, 6)


def test_the_precision_is_that_of_the_candidate(tmp_path: Path) -> None:
    """The same output is right for one that rounds more."""
    spoil = adding("out", (0, 0, 0, 0), 1e-5)
    strict = subject()
    loose = precision.stored("bfloat16")
    relaxed = dataclasses.replace(strict, precision={"float32": loose})
    assert error(SMALL, tmp_path, spoil, candidate=strict) > 1
    assert error(SMALL, tmp_path, spoil, candidate=relaxed) <= 1
