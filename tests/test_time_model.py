"""Times of shapes that were not measured."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fullattention.backends.interface import Sizes
from fullattention.choosing.model import FEWEST, beyond, fit

SHAPES = [
    Sizes(B, L, L, H, E, E) for B, L, H, E in itertools.product((8, 64), (8, 96), (2, 8), (8, 64))
]


def power_law(shape: Sizes) -> float:
    B, L, S, H, E, D = shape
    return float(1e-9 * (B * H) ** 0.9 * L * S**0.8 * (E + D) ** 0.7)


def test_a_power_law_is_found_within_a_few_percent() -> None:
    model = fit(SHAPES, [power_law(shape) for shape in SHAPES])
    assert model is not None
    for unseen in (Sizes(16, 42, 42, 4, 16, 16), Sizes(32, 24, 24, 8, 32, 32)):
        estimate = model.at(unseen)
        assert estimate.seconds == pytest.approx(power_law(unseen), rel=0.05)
        assert estimate.seconds / estimate.factor < power_law(unseen)
        assert power_law(unseen) < estimate.seconds * estimate.factor


def test_the_error_is_that_of_shapes_that_were_left_out() -> None:
    random = np.random.default_rng(5)
    noisy = [power_law(s) * math.exp(random.normal(0, 0.3)) for s in SHAPES]
    smooth = fit(SHAPES, [power_law(shape) for shape in SHAPES])
    rough = fit(SHAPES, noisy)
    assert smooth is not None
    assert rough is not None
    assert smooth.error < 0.05
    assert 0.2 < rough.error < 0.6


def test_far_from_what_was_measured_the_factor_grows() -> None:
    model = fit(SHAPES, [power_law(shape) for shape in SHAPES])
    assert model is not None
    near, far = model.at(SHAPES[3]), model.at(Sizes(10**5, 4096, 4096, 16, 2, 2))
    assert far.factor > near.factor


@pytest.mark.parametrize(
    ("shape", "outside"),
    [
        (Sizes(896, 42, 42, 4, 4, 4), ""),
        (Sizes(56, 42, 42, 4, 4, 4), ""),  # half of the least
        (Sizes(1792, 42, 42, 4, 4, 4), ""),
        (Sizes(2000, 42, 42, 4, 4, 4), "B * H is 8000, the measured shapes have 448 to 3584"),
        (Sizes(112, 45, 42, 4, 4, 4), ""),
        (Sizes(112, 48, 42, 4, 4, 4), "L is 48, the measured shapes have 42"),
        (Sizes(112, 42, 12, 4, 4, 4), "S is 12, the measured shapes have 42"),
        (Sizes(112, 42, 42, 4, 64, 4), "E + D is 68, the measured shapes have 8"),
        (Sizes(1, 2048, 2048, 8, 64, 64), "B * H is 8, the measured shapes have 448 to 3584"),
    ],
)
def test_sizes_beyond_the_measured_ones_are_named(shape: Sizes, outside: str) -> None:
    measured = [Sizes(B, 42, 42, 4, 4, 4) for B in (896, 448, 224, 112)]
    assert beyond(shape, measured) == outside


def test_sizes_that_hardly_varied_are_not_left_far_behind() -> None:
    measured = [Sizes(8, 40, 40, 1, 4, 4), Sizes(8, 60, 40, 1, 4, 4)]
    assert beyond(Sizes(8, 90, 40, 1, 4, 4), measured) == ""
    assert beyond(Sizes(8, 91, 40, 1, 4, 4), measured).startswith("L is 91")


def test_a_call_smaller_than_all_is_beyond_them_though_each_size_was_measured() -> None:
    measured = [Sizes(8, 1000, 1000, 1, 4, 4), Sizes(1000, 10, 10, 1, 4, 4)]
    assert beyond(Sizes(8, 10, 10, 1, 4, 4), measured).startswith(
        "B * H * (L + S) * (E + D) is 1280, the measured shapes have 128000 to 160000"
    )


def test_too_few_shapes_tell_nothing() -> None:
    few = SHAPES[: FEWEST - 1]
    assert fit(few, [power_law(shape) for shape in few]) is None
