"""Wrong results of timed calls are caught, wherever a sample can look."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fullattention.backends import UnsupportedError, load, precision
from fullattention.backends.interface import Sizes
from fullattention.bench.inputs import DRAWN, SEED, SETS, InputPool, spot
from fullattention.bench.modes import DROPOUT, MODES, Inputs, Results, make_call
from fullattention.bench.spot_check import (
    FEWEST_PAIRS,
    PAIRS,
    QUERIES,
    SpotCheck,
    places,
    sample,
)
from fullattention.bench.training_check import gradient_fault
from fullattention.bench.workloads import Workload, parse_shape
from fullattention.conformance.gradient_bound import exact_gradients
from fullattention.conformance.oracle import exact_attention
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
    workload: Workload,
    folder: Path,
    number: int = 1,
    candidate: Subject | None = None,
    look: int = DRAWN,
) -> Callable[[Spoil], float]:
    """What the check finds of a candidate's results, spoiled as it is told."""
    candidate = candidate or subject()
    pool = pool_of(workload, folder)
    placed = candidate.arrays.put(pool.renewed(look), candidate.device)
    inputs = pool.sets(placed, candidate.arrays.strided)[number]
    results = make_call(candidate, workload)(inputs)
    taken = Results(*(None if x is None else candidate.arrays.take(x) for x in results))
    check, model = SpotCheck(pool), candidate.precision[workload.dtype]
    return lambda spoil: check.error(sample(workload, spoil(taken), look), number, model, look)


def error(
    workload: Workload,
    folder: Path,
    spoil: Spoil = lambda results: results,
    number: int = 1,
    candidate: Subject | None = None,
    look: int = DRAWN,
) -> float:
    """What the check finds of a candidate's results, spoiled once."""
    return judge(workload, folder, number, candidate, look)(spoil)


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


@pytest.mark.parametrize("look", [1, 2, 3])
def test_a_look_knows_the_inputs_that_changed_for_it(look: int, tmp_path: Path) -> None:
    for number in range(SETS):
        assert 0 < error(LARGE, tmp_path, number=number, look=look) <= 1


@pytest.mark.parametrize("field", ["q", "k", "v"])
@pytest.mark.parametrize("number", range(SETS))
def test_what_was_kept_of_any_input_from_before_a_look_is_wrong(
    field: str, number: int, tmp_path: Path
) -> None:
    workload = Workload("plain", LARGE.shape, "a test")
    pool = pool_of(workload, tmp_path)
    now = pool.sets(pool.renewed(5))[number]
    before = pool.sets(pool.read_only())[number]
    stale = make_call(subject(), workload)(now._replace(**{field: getattr(before, field)}))
    assert error(workload, tmp_path, lambda _: stale, number, look=5) > 1


def test_every_look_changes_each_input_of_all_sets_at_its_spot(tmp_path: Path) -> None:
    pool = pool_of(MODES["training"](LARGE), tmp_path)
    before = pool.sets(pool.read_only())
    for look in range(1, 30):
        at = spot(LARGE, look)
        for old, new in zip(before, pool.sets(pool.renewed(look)), strict=True):
            for row, x, y in zip((at.query, at.key, at.key, at.query), old, new, strict=True):
                assert (x[at.b, row, at.h] != y[at.b, row, at.h]).all()
    assert len({spot(LARGE, look) for look in range(1, 30)}) == 29
    np.testing.assert_array_equal(pool.renewed(DRAWN), pool.read_only())


def test_a_look_is_at_its_spot_and_at_both_ends_and_elsewhere_than_the_next() -> None:
    for look in range(20):
        at, spotted = places(LARGE, look), spot(LARGE, look)
        pairs = set(zip(at.b, at.h, strict=True))
        assert {(0, 0), (4, 6), (spotted.b, spotted.h)} <= pairs
        assert {0, 39, spotted.query} <= set(at.rows)
        assert (len(pairs), len(at.rows)) == (PAIRS, QUERIES)
    assert len({tuple(places(LARGE, look).rows) for look in range(20)}) > 10


def test_fewer_pairs_are_looked_at_where_each_takes_long() -> None:
    long = parse_shape("4,4096,4096,8,64,64")
    assert len(places(long, 1).b) == FEWEST_PAIRS


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
WIDE = MODES["training"](Workload("wide", Sizes(4, 48, 48, 4, 16, 16), "a test"))
"""With terms enough that a tenth of a gradient is told from what dropout does to it."""


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


def test_right_training_steps_of_a_library_that_gives_vector_jacobian_products_pass(
    tmp_path: Path,
) -> None:
    candidate = dataclasses.replace(torch_subject(), library="another")
    assert 0 < error(TRAINED, tmp_path, candidate=candidate) <= 1
    assert error(TRAINED, tmp_path, scaled(1.01, "dv"), candidate=candidate) > 1


def test_what_gives_no_gradients_is_not_trained() -> None:
    for lacks, reason in (({}, "numpy does not differentiate"), ({"gradient": "why"}, "why")):
        with pytest.raises(UnsupportedError, match=reason):
            make_call(subject(lacks=lacks), TRAINED)


def scaled(factor: float, *fields: str) -> Spoil:
    return lambda results: results._replace(
        **{field: factor * getattr(results, field) for field in fields}
    )


@pytest.mark.parametrize("field", ["dq", "dk", "dv"])
@pytest.mark.parametrize("factor", [1.01, 0.0, math.nan])
def test_wrong_gradients_are_seen(field: str, factor: float, tmp_path: Path) -> None:
    assert error(TRAINED, tmp_path, scaled(factor, field), candidate=torch_subject()) > 1


@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
@pytest.mark.parametrize("factor", [0.0, 16**-0.5, 1 - DROPOUT, 1 / (1 - DROPOUT)])
def test_a_factor_that_gradients_of_q_and_k_share_is_seen(
    factor: float, mask: str, tmp_path: Path
) -> None:
    workload = MODES[mask](WIDE) if mask != "none" else WIDE
    assert error(workload, tmp_path, scaled(factor, "dq", "dk"), candidate=torch_subject()) > 1


def test_no_gradients_at_all_are_seen_in_every_dtype(tmp_path: Path) -> None:
    for dtype in ("float64", "float32", "bfloat16"):
        workload = TRAINED.in_dtype(dtype)
        spoil = scaled(0.0, "dq", "dk")
        assert error(workload, tmp_path, spoil, candidate=torch_subject()) > 1, dtype


@pytest.mark.parametrize(
    "shape", [Sizes(4, 6, 6, 2, 8, 8), Sizes(1, 3, 2, 1, 2, 2), Sizes(2, 3, 1, 2, 4, 4)], ids=str
)
def test_right_gradients_are_hardly_ever_taken_for_wrong(shape: Sizes) -> None:
    """Whatever is dropped, and however few the weights are: with one key the gradient is 0."""
    B, L, S, H, E, D = shape
    random = np.random.default_rng(1)
    sizes = ((B * H, L, 1, E), (B * H, S, 1, E), (B * H, S, 1, D), (B * H, L, 1, D))
    q, k, v, g = (random.standard_normal(size) for size in sizes)
    exact = exact_attention(q, k, v, hidden=None, scale=E**-0.5)
    found = []
    for _ in range(1000):
        keep = (random.random((B * H, 1, L, S)) >= DROPOUT) / (1 - DROPOUT)
        dq = exact_gradients(exact, g, keep=keep).q
        found.append(gradient_fault(dq[:, :, 0], g[:, :, 0], exact, precision.standard("float64")))
    assert max(found) <= 1
    assert (max(found) > 0) is (S > 1)


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.5])
def test_a_wrong_output_of_a_training_step_is_seen(factor: float, tmp_path: Path) -> None:
    assert error(TRAINED, tmp_path, scaled(factor, "out"), candidate=torch_subject()) > 1


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
