"""The gradient oracle and its bound."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from fullattention.backends import load
from fullattention.backends.precision import DTYPES, standard
from fullattention.conformance import check
from fullattention.conformance.catalogue import selected
from fullattention.conformance.gradient_bound import exact_gradients, gradient_bound
from fullattention.conformance.oracle import exact_attention
from fullattention.conformance.subject import from_backend
from fullattention.layer import FullAttention
from tests.zoo.judging import first_failed

RNG = np.random.default_rng(3)
Q, K, V = (RNG.standard_normal(shape) for shape in ((2, 4, 2, 5), (2, 6, 2, 5), (2, 6, 2, 3)))
QKV = (Q, K, V)
G_OUT, G_WEIGHTS = RNG.standard_normal((2, 4, 2, 3)), RNG.standard_normal((2, 2, 4, 6))
HIDDEN = np.triu(np.ones((4, 6), bool), 2)[None, None]
SCALE = 0.7


def loss(q: np.ndarray, k: np.ndarray, v: np.ndarray, keep: np.ndarray | float) -> float:
    exact = exact_attention(q, k, v, hidden=HIDDEN, scale=SCALE)
    weights = keep * exact.weights
    out = np.einsum("bhls,bshd->blhd", weights, v)
    return float((G_OUT * out).sum() + (G_WEIGHTS * weights).sum())


@pytest.mark.parametrize("dropped", [False, True])
def test_exact_gradients_are_the_slopes_of_the_loss(dropped: bool) -> None:
    keep = 2.0 * (RNG.random((2, 2, 4, 6)) < 0.5) if dropped else 1.0
    exact = exact_attention(Q, K, V, hidden=HIDDEN, scale=SCALE)
    gradients = exact_gradients(exact, G_OUT, G_WEIGHTS, hidden=HIDDEN, keep=keep)
    for index, gradient in enumerate(gradients):
        direction = RNG.standard_normal(gradient.shape)
        step = 1e-6
        moved = [list(QKV), list(QKV)]
        moved[0][index] = QKV[index] + step * direction
        moved[1][index] = QKV[index] - step * direction
        ahead, behind = (loss(q, k, v, keep) for q, k, v in moved)
        slope = (ahead - behind) / (2 * step)
        assert slope == pytest.approx((gradient * direction).sum(), rel=1e-6, abs=1e-8)


def test_a_fully_hidden_row_makes_dv_of_its_head_nan_and_nothing_else() -> None:
    hidden = np.zeros((2, 2, 4, 6), bool)
    hidden[0, 1, 2] = True
    exact = exact_attention(Q, K, V, hidden=hidden, scale=SCALE)
    d_q, d_k, d_v = exact_gradients(exact, G_OUT, hidden=hidden)
    assert np.isfinite(d_q).all()
    assert np.isfinite(d_k).all()
    lost = np.isnan(d_v).all(axis=(1, 3))
    assert lost[0, 1]
    assert lost.sum() == 1
    assert np.isnan(d_v).sum() == d_v[0, :, 1].size


def test_the_bound_grows_with_the_roundoff() -> None:
    exact = exact_attention(Q, K, V, hidden=HIDDEN, scale=SCALE)
    bounds = [
        gradient_bound(exact, G_OUT, G_WEIGHTS, standard(dtype), hidden=HIDDEN) for dtype in DTYPES
    ]
    for tight, loose in itertools.pairwise(bounds[:3]):
        assert all((a < b).all() for a, b in zip(tight, loose, strict=True))


@pytest.mark.parametrize(
    "fault",
    ["no scale in dq", "dk missing", "dv of the last key dropped", "dropout not in backward"],
)
def test_a_wrong_backward_pass_is_convicted(fault: str) -> None:
    pytest.importorskip("torch")
    from tests.faulty_backward import backend_with

    checks = selected(("float32",), "full", only="G")
    assert first_failed(from_backend(backend_with(fault)), checks)


def test_a_right_pair_of_passes_is_conformant_through_autograd() -> None:
    pytest.importorskip("torch")
    from tests.faulty_backward import backend_with

    sound = check(backend_with("none"))
    assert sound.conformant, [one for one in sound.results if one.status == "failed"]
    tried = {one.requirement for one in sound.results if one.status == "passed"}
    assert {"G1", "G2", "G3", "P2", "P3"} <= tried


def test_a_second_derivative_through_a_pair_of_passes_is_refused_and_never_left_out() -> None:
    torch = pytest.importorskip("torch")
    from tests.faulty_backward import backend_with

    layer = FullAttention(False, attention_dropout=0.0, backend=backend_with("none"))
    w = torch.eye(8, dtype=torch.float64, requires_grad=True)
    x = torch.randn((2, 5, 3, 8), dtype=torch.float64, requires_grad=True)
    y, _ = layer(x @ w, x, x, None)
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="lacks double_backward"):
        torch.autograd.grad(g.square().sum(), w)


def test_a_lazily_negated_tensor_is_read_negated() -> None:
    torch = pytest.importorskip("torch")
    from fullattention.backends.torch_autograd import differentiable
    from tests.faulty_backward import Passes

    class ByMemory(Passes):
        def forward(self, q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> Any:
            assert not any(x.is_neg() for x in (q, k, v))
            return super().forward(q, k, v, *rest, **options)

    negated = torch.randn((2, 5, 3, 8), dtype=torch.complex128).conj().imag
    assert negated.is_neg()
    attend = differentiable("by-memory", ByMemory("none"))
    attend(*(negated,) * 3, hidden=None, causal=False, scale=1.0, dropout=0.0, weights=False)


def test_a_gradient_that_is_left_out_where_an_axis_is_empty_is_found() -> None:
    pytest.importorskip("torch")
    einsum = load("torch-einsum")
    detached = dataclasses.replace(
        einsum.arrays, zeros=lambda shape, like, *others: like.new_zeros(shape)
    )
    candidate = dataclasses.replace(einsum, name="detached", arrays=detached)
    for only in ("G1: gradient empty", "G2: gradient empty"):
        verdict = check(candidate, only=only, dtypes=("float32",))
        assert not verdict.conformant
        assert check(einsum, only=only, dtypes=("float32",)).conformant
