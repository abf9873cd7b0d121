"""Typical accuracy: an implementation that secretly rounds more is convicted within its bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fullattention.backends import Backend, Precision, standard
from fullattention.backends.numpy_arrays import ARRAYS
from fullattention.backends.numpy_matmul import attend as matmul
from fullattention.backends.precision import UNIT_ROUNDOFF
from fullattention.conformance import check
from fullattention.conformance.accuracy import round_to
from fullattention.records import Result


def typical(attend: Any, precision: Precision) -> Result:
    backend = Backend(name="mine", attend=attend, arrays=ARRAYS, precision={"float32": precision})
    (result,) = check(backend, only="N1: typical").results
    return result


def rounding_operands(bits: int) -> Any:
    def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> Any:
        return matmul(*(round_to(x, 2.0**-bits) for x in (q, k, v)), **options)

    return attend


def test_an_honest_float32_shows_its_bits() -> None:
    result = typical(matmul, standard("float32"))
    assert result.status == "passed"
    assert result.bits is not None
    assert 19 < result.bits < 24
    assert not result.warning


def test_operands_rounded_to_eleven_bits_are_convicted() -> None:
    assert typical(rounding_operands(11), standard("float32")).status == "failed"


def test_operands_rounded_a_little_are_convicted_by_the_typical_error_alone() -> None:
    """Within the worst-case bound of 600 keys, and far outside of what float32 gives."""
    result = typical(rounding_operands(15), standard("float32"))
    assert result.status == "failed"
    assert "rounds more than is declared" in result.detail


def test_declared_rounding_is_honest() -> None:
    declared = Precision(
        **{
            **{name: getattr(standard("float32"), name) for name in ("u_acc", "u_softmax")},
            "u_out": UNIT_ROUNDOFF["float32"],
            "eta_out": 2.0**-150,
            "u_in": 2.0**-11,
            "eta_weights": 2.0**-126,
        }
    )
    assert typical(rounding_operands(11), declared).status == "passed"


@pytest.mark.parametrize("u", [2.0**-11, 2.0**-8])
def test_rounding_is_to_nearest(u: float) -> None:
    x = np.random.default_rng(0).standard_normal(1000)
    relative = abs(round_to(x, u) - x) / abs(x)
    assert relative.max() <= u
    assert relative.max() > u / 4
    kind = np.float16
    if u == 2.0**-11:
        assert np.array_equal(round_to(x, u), x.astype(kind).astype(np.float64))
