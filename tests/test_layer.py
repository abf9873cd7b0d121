"""The layer's policy: what it refuses and why, how it resolves scale and mask, what it repairs."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fullattention import (
    Backend,
    FullAttention,
    InvalidInputError,
    UnavailableError,
    UnsupportedError,
    load,
    names,
)
from fullattention.backends.interface import MaskedRows, Sizes
from tests.available import each, found
from tests.zoo.attending import Call, Result, right
from tests.zoo.specimen import backend

B, L, S, H, E, D = 2, 5, 7, 3, 4, 6


AVAILABLE = [name for name in names() if found(name) is not None]
TORCH = [name for name in AVAILABLE if name.startswith("torch")]


def draw(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


Inputs = tuple[np.ndarray, np.ndarray, np.ndarray]


def qkv(L: int = L, S: int = S, E: int = E, dtype: str = "float32") -> Inputs:
    return (
        draw(B, L, H, E, dtype=dtype, seed=0),
        draw(B, S, H, E, dtype=dtype, seed=1),
        draw(B, S, H, D, dtype=dtype, seed=2),
    )


def call(
    arrays: Inputs,
    mask: Any = None,
    *,
    backend: str | Backend = "numpy-matmul",
    training: bool = False,
    **arguments: Any,
) -> tuple[np.ndarray, np.ndarray | None]:
    """The layer's answer as NumPy arrays, whatever the backend's library."""
    layer = FullAttention(backend=backend, **arguments).train(training)
    library = layer.backend.arrays
    q, k, v = (library.put(x, "cpu") for x in arrays)
    mask = library.put(mask, "cpu") if isinstance(mask, np.ndarray) else mask
    out, weights = layer(q, k, v, mask)
    return library.take(out), None if weights is None else library.take(weights)


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, hidden: Any = False, scale: float | None = None
) -> np.ndarray:
    """The definition, in float64."""
    scores = np.einsum("blhe,bshe->bhls", q.astype(np.float64), k)
    with np.errstate(all="ignore"):
        scores = (scale or 1 / math.sqrt(q.shape[-1])) * np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
    return np.asarray(np.einsum("bhls,bshd->blhd", weights, v))


def causal(n: int) -> np.ndarray:
    return np.triu(np.ones((n, n), bool), 1)


# Refusals of the constructor.


@pytest.mark.parametrize("value", [-0.1, 1.5, math.nan, "0.1", None, 1j])
def test_a_dropout_that_is_no_probability_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"attention_dropout is .*\[0, 1\] \[P1\]"):
        FullAttention(attention_dropout=value)


@pytest.mark.parametrize("value", ["1", 1j, [0.5]])
def test_a_scale_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"scale is .*real number or None \[S1\]"):
        FullAttention(scale=value)


def test_an_unknown_profile_of_hidden_rows_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"masked_rows is 'mean': .* \[M6\]"):
        FullAttention(masked_rows="mean")  # type: ignore[arg-type] # what is refused


def test_numbers_of_numpy_are_numbers() -> None:
    layer = FullAttention(scale=np.float32(0.5), attention_dropout=np.float64(0.25))  # type: ignore[arg-type] # real all the same
    assert (layer.scale, layer.attention_dropout) == (0.5, 0.25)


# Refusals of a call: the message names the argument, what it is, and the rule.


def swapped(index: int, array: Any) -> list[Any]:
    arrays: list[Any] = list(qkv())
    arrays[index] = array
    return arrays


REFUSED: dict[str, tuple[Callable[[], list[Any]], str]] = {
    "queries 3-D": (lambda: swapped(0, draw(L, H, E)), r"queries has shape \(5, 3, 4\).*4-D.*C8"),
    "keys 5-D": (lambda: swapped(1, draw(1, B, S, H, E)), r"keys has shape .*4-D.*C8"),
    "values 2-D": (lambda: swapped(2, draw(S, D)), r"values has shape \(7, 6\).*4-D.*C8"),
    "keys' features": (lambda: swapped(1, draw(B, S, H, 5)), r"keys has 5 .*features.*queries 4"),
    "keys' batch": (lambda: swapped(1, draw(1, S, H, E)), r"keys has 1 .*batch.*not broadcast"),
    "values' batch": (lambda: swapped(2, draw(3, S, H, D)), r"values has 3 .*batch.*queries 2"),
    "keys' heads": (lambda: swapped(1, draw(B, S, 1, E)), r"keys has 1 .*heads.*not grouped"),
    "values' heads": (lambda: swapped(2, draw(B, S, 2, D)), r"values has 2 .*heads.*queries 3"),
    "keys' time": (lambda: swapped(1, draw(B, 1, H, E)), r"keys has 1 .*time.*values 7"),
    "integers": (
        lambda: [x.astype(np.int32) for x in qkv()],
        r"queries has dtype int32.*floating-point.*C8",
    ),
    "complex": (
        lambda: [x.astype(np.complex64) for x in qkv()],
        r"queries has dtype complex64.*floating-point.*C8",
    ),
    "keys' dtype": (
        lambda: swapped(1, draw(B, S, H, E, dtype="float64")),
        r"keys has dtype float64 and queries float32.*C8",
    ),
    "values' dtype": (
        lambda: swapped(2, draw(B, S, H, D, dtype="float16")),
        r"values has dtype float16 and queries float32.*C8",
    ),
    "a list": (lambda: swapped(0, [[1.0]]), r"queries is a builtins.list.*numpy.ndarray.*C8"),
    "a masked array": (
        lambda: swapped(1, np.ma.masked_invalid(draw(B, S, H, E))),
        r"keys is a MaskedArray, whose mask would be ignored: hide keys by attn_mask \[C8\]",
    ),
    "a tensor": (lambda: swapped(2, torch.ones(B, S, H, D)), r"values is a torch.Tensor.*numpy"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_argument_is_refused_by_name(name: str) -> None:
    arrays, message = REFUSED[name]
    q, k, v = arrays()
    with pytest.raises(InvalidInputError, match=message):
        FullAttention(mask_flag=False)(q, k, v, None)


def test_a_backend_may_be_set_later_but_not_by_name() -> None:
    layer = FullAttention(mask_flag=False).eval()
    with pytest.raises(InvalidInputError, match=r"backend is 'numba-cpu': only the constructor"):
        layer.backend = "numba-cpu"  # type: ignore[assignment]
    layer.backend = load("numpy-matmul")
    assert layer(*qkv(), None)[0].shape == (B, L, H, D)


def test_no_features_and_no_scale_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"E = 0 .*scale must be given \[C6\]"):
        call(qkv(E=0), mask_flag=False)


@pytest.mark.parametrize(("rows", "keys"), [(5, 7), (7, 5), (5, 1)])
def test_causal_with_other_lengths_is_refused(rows: int, keys: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"L = {rows} and keys S = {keys} \[M2\]"):
        call(qkv(L=rows, S=keys))


MASKS_REFUSED: dict[str, tuple[Any, str]] = {
    "float": (np.ones((L, S), np.float32), r"attn_mask has dtype float32.*True = hidden \[M3\]"),
    "uint8": (np.ones((L, S), np.uint8), r"attn_mask has dtype uint8.*\[M3\]"),
    "number": (3, r"attn_mask is a int: .*`mask` \[M3\]"),
    "list": ([[True]], r"attn_mask is a list: .*\[M3\]"),
    "empty holder": (SimpleNamespace(), r"attn_mask is a SimpleNamespace: .*\[M3\]"),
    "holder of a list": (SimpleNamespace(mask=[True]), r"attn_mask is a builtins.list.*numpy"),
    "tensor": (torch.ones(L, S, dtype=torch.bool), r"attn_mask"),
    "transposed": (np.ones((S, L), bool), r"attn_mask has shape \(7, 5\).*\(2, 3, 5, 7\) \[M4\]"),
    "batch at heads": (np.ones((B, L, S), bool), r"attn_mask has shape \(2, 5, 7\).*\[M4\]"),
    "too many axes": (np.ones((1, 1, 1, L, S), bool), r"attn_mask has shape .*\[M4\]"),
    "too long": (np.ones((L, S + 1), bool), r"attn_mask has shape \(5, 8\).*\[M4\]"),
}


@pytest.mark.parametrize("name", MASKS_REFUSED)
def test_a_wrong_mask_is_refused_by_name(name: str) -> None:
    mask, message = MASKS_REFUSED[name]
    q, k, v = qkv()
    with pytest.raises(InvalidInputError, match=message):
        FullAttention()(q, k, v, mask)


def test_a_wrong_mask_is_ignored_while_mask_flag_is_off() -> None:
    out, _ = call(qkv(), np.ones((S, L), np.float32), mask_flag=False)
    np.testing.assert_allclose(out, reference(*qkv()), rtol=1e-5, atol=1e-6)


# Capabilities.


@pytest.mark.parametrize(
    ("capability", "arguments", "mask"),
    [
        ("weights", {"output_attention": True}, np.zeros((L, S), bool)),
        ("mask", {}, np.zeros((L, S), bool)),
        ("dropout", {"mask_flag": False, "training": True, "attention_dropout": 0.1}, None),
    ],
)
def test_a_call_that_needs_what_is_lacking_is_refused(
    capability: str, arguments: dict[str, Any], mask: Any
) -> None:
    lacking = backend("lacking", right, lacks={capability: "left out"})
    with pytest.raises(UnsupportedError, match=f"'lacking' lacks {capability}: left out") as caught:
        call(qkv(), mask, backend=lacking, **arguments)
    assert caught.value.capability == capability


def test_causal_is_a_capability_of_its_own() -> None:
    lacking = backend("lacking", right, lacks={"causal": "left out"})
    with pytest.raises(UnsupportedError, match="lacks causal"):
        call(qkv(L=5, S=5), backend=lacking)
    call(qkv(L=5, S=5), causal(5), backend=lacking)


def test_a_dtype_that_is_not_declared_is_refused() -> None:
    single = backend("single", right, dtypes=("float32",))
    with pytest.raises(UnsupportedError, match="lacks float64: it takes float32"):
        call(qkv(dtype="float64"), mask_flag=False, backend=single)


def test_what_is_lacking_does_not_matter_while_it_is_not_needed() -> None:
    lacks = dict.fromkeys(("mask", "causal", "weights", "dropout"), "left out")
    fewest = backend("fewest", right, lacks=lacks)
    out, _ = call(qkv(), mask_flag=False, attention_dropout=0.5, backend=fewest)
    np.testing.assert_allclose(out, reference(*qkv()), rtol=1e-5, atol=1e-6)


# What a backend is sent.


class Spy:
    """Remembers what it is sent."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __call__(self, call: Call) -> Result:
        self.calls.append(call)
        return right(call)


def sent(
    arrays: Inputs, mask: Any = None, *, rows: MaskedRows | None = "nan", **arguments: Any
) -> Call:
    spy = Spy()
    call(arrays, mask, backend=backend("spy", spy, masked_rows=rows), **arguments)
    (only,) = spy.calls
    return only


@pytest.mark.parametrize(
    ("scale", "factor"),
    [(None, 0.5), (0, 0.5), (0.0, 0.5), (-0.0, 0.5), (0.3, 0.3), (-2, -2.0), (math.inf, 1.0)],
)
def test_the_scale_that_is_sent(scale: Any, factor: float) -> None:
    assert sent(qkv(), mask_flag=False, scale=scale).scale == factor  # E = 4


@pytest.mark.parametrize("flag", [True, False])
def test_without_a_mask_the_flag_decides_on_causal(flag: bool) -> None:
    got = sent(qkv(L=5, S=5), mask_flag=flag)
    assert got.causal is flag
    assert got.hidden is None


@pytest.mark.parametrize("keys", [1, 7])
def test_a_single_query_sees_every_key(keys: int) -> None:
    got = sent(qkv(L=1, S=keys))
    assert not got.causal
    assert got.hidden is None


@pytest.mark.parametrize("shape", [(), (S,), (L, S), (H, 1, S), (B, 1, L, 1), (1, 1, 1, 1)])
def test_a_mask_is_sent_with_four_axes_and_its_own_sizes(shape: tuple[int, ...]) -> None:
    got = sent(qkv(), np.zeros(shape, bool))
    assert got.hidden is not None
    assert got.hidden.shape == (1,) * (4 - len(shape)) + shape
    assert not got.causal


def test_a_mask_object_counts_by_what_it_holds() -> None:
    mask = np.random.default_rng(0).random((L, S)) < 0.4
    direct, _ = call(qkv(), mask)
    held, _ = call(qkv(), SimpleNamespace(mask=mask))
    np.testing.assert_array_equal(direct, held)
    np.testing.assert_allclose(direct, reference(*qkv(), hidden=mask), rtol=1e-5, atol=1e-6)


def test_dropout_is_sent_in_training_only() -> None:
    for training, dropout in ((True, 0.25), (False, 0.0)):
        got = sent(qkv(), mask_flag=False, attention_dropout=0.25, training=training)
        assert got.dropout == dropout


def test_train_and_eval_switch_and_return_the_layer() -> None:
    layer = FullAttention()
    assert layer.training
    assert layer.eval() is layer
    assert not layer.training
    assert layer.train() is layer
    assert layer.training
    assert not layer.train(False).training


def test_a_backend_that_never_takes_fully_hidden_rows_is_never_sent_one() -> None:
    mask = np.zeros((L, S), bool)
    mask[2] = True
    got = sent(qkv(), mask, rows=None)
    assert got.hidden is not None
    assert not got.hidden.all(-1).any()


# Special answers.


@pytest.mark.parametrize("name", each(AVAILABLE))
@pytest.mark.parametrize(("rows", "value"), [("nan", math.nan), ("zero", 0.0)])
def test_fully_hidden_rows_follow_the_profile_in_every_backend(
    name: str, rows: MaskedRows, value: float
) -> None:
    if "mask" in load(name).lacks:
        pytest.skip(f"{name} takes no mask: {load(name).lacks['mask']}")
    mask = np.random.default_rng(0).random((B, 1, L, S)) < 0.4
    mask[0, 0, 1] = mask[1, 0, 3] = True
    weighty = "weights" not in load(name).lacks
    out, weights = call(qkv(), mask, backend=name, masked_rows=rows, output_attention=weighty)
    want = reference(*qkv(), hidden=mask)
    want[0, 1] = want[1, 3] = value
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    if weights is not None:
        np.testing.assert_equal(np.unique(weights[0, :, 1]), [value])
        np.testing.assert_allclose(weights[0, :, 0].sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", each(AVAILABLE))
def test_a_negative_scale_gives_nan_exactly_where_a_key_is_hidden(name: str) -> None:
    if "mask" in load(name).lacks:
        pytest.skip(f"{name} takes no mask: {load(name).lacks['mask']}")
    mask = np.zeros((L, S), bool)
    mask[1, 3] = mask[4] = True
    out, _ = call(qkv(), mask, scale=-0.5, backend=name)
    want = reference(*qkv(), scale=-0.5)
    want[:, [1, 4]] = math.nan
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", each(AVAILABLE))
def test_a_negative_causal_scale_leaves_the_last_row(name: str) -> None:
    out, _ = call(qkv(L=5, S=5), scale=-0.5, backend=name)
    assert np.isnan(out[:, :-1]).all()
    want = reference(*qkv(L=5, S=5), scale=-0.5)[:, -1]
    np.testing.assert_allclose(out[:, -1], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", each(AVAILABLE))
@pytest.mark.parametrize("scale", [-0.5, math.nan, math.inf])
def test_fully_hidden_rows_follow_the_profile_whatever_the_scale(name: str, scale: float) -> None:
    if "mask" in load(name).lacks:
        pytest.skip(f"{name} takes no mask: {load(name).lacks['mask']}")
    mask = np.zeros((L, S), bool)
    mask[2] = True
    out, _ = call(qkv(), mask, scale=scale, backend=name, masked_rows="zero")
    assert (out[:, 2] == 0).all()


@pytest.mark.parametrize("name", each(AVAILABLE))
@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf])
def test_a_scale_that_is_not_finite_gives_nan_everywhere(name: str, scale: float) -> None:
    weighty = "weights" not in load(name).lacks
    out, weights = call(qkv(), mask_flag=False, scale=scale, backend=name, output_attention=weighty)
    assert np.isnan(out).all()
    assert weights is None or np.isnan(weights).all()


@pytest.mark.parametrize("name", each(AVAILABLE))
def test_no_features_mean_equal_weights(name: str) -> None:
    arrays = qkv(E=0)
    out, _ = call(arrays, mask_flag=False, scale=2.0, backend=name)
    np.testing.assert_allclose(out, np.broadcast_to(arrays[2].mean(1)[:, None], out.shape), 1e-5)


@pytest.mark.parametrize("name", each(AVAILABLE))
@pytest.mark.parametrize("axis", range(6))
def test_an_empty_axis_gives_the_right_shapes_and_zeros(name: str, axis: int) -> None:
    sizes = [B, L, S, H, E, D]
    sizes[axis] = 0
    b, rows, keys, h, e, d = sizes
    arrays = (draw(b, rows, h, e), draw(b, keys, h, e), draw(b, keys, h, d))
    weighty = "weights" not in load(name).lacks
    out, weights = call(arrays, mask_flag=False, scale=1.0, backend=name, output_attention=weighty)
    assert out.shape == (b, rows, h, d)
    assert axis == 4 or not out.any()
    assert weights is None or weights.shape == (b, h, rows, keys)


@pytest.mark.parametrize("name", each(AVAILABLE))
def test_v_is_contiguous_and_its_own(name: str) -> None:
    layer = FullAttention(mask_flag=False, backend=name).eval()
    arrays = layer.backend.arrays
    q, k, v = (arrays.put(x, "cpu") for x in qkv(L=1, S=1))
    out, _ = layer(q, k, v, None)
    assert arrays.contiguous(out) is out
    before = arrays.take(out)
    if arrays.library == "jax":
        return  # its arrays are never edited, so whether two share memory shows nowhere
    v[...] = 7
    np.testing.assert_array_equal(arrays.take(out), before)


# Which backend answers.


def test_a_backend_is_named_pointed_to_or_given() -> None:
    given = load("numpy-reference")
    spec = "fullattention.backends.numpy_reference:backend"
    results = [
        call(qkv(), mask_flag=False, backend=which)[0] for which in ("numpy-reference", spec, given)
    ]
    assert FullAttention(backend=given).backend is given
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_an_unknown_or_unavailable_backend_is_not_replaced_by_another() -> None:
    with pytest.raises(LookupError, match="no backend is called 'numpy-fast'"):
        FullAttention(backend="numpy-fast")
    with pytest.raises(UnavailableError, match=r"cupy is not installed|CuPy runs on"):
        FullAttention(backend="cupy-matmul")


# Torch: gradients go through.


def gradients(name: str, mask: torch.Tensor, rows: MaskedRows) -> list[torch.Tensor]:
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in qkv(dtype="float64"))
    out, _ = FullAttention(backend=name, masked_rows=rows).eval()(q, k, v, mask)
    return list(torch.autograd.grad(out.square().sum(), (q, k, v)))


@pytest.mark.parametrize("name", each(TORCH))
def test_gradients_match_those_of_the_einsum_path(name: str) -> None:
    if "float64" in load(name).lacks or "mask" in load(name).lacks:
        pytest.skip(f"{name} lacks {', '.join(load(name).lacks)}")
    mask = torch.from_numpy(np.random.default_rng(0).random((L, S)) < 0.4)
    mask[2] = True
    got, want = (gradients(which, mask, "zero") for which in (name, "torch-einsum"))
    assert len(got) == len(want) == 3
    for mine, theirs in zip(got, want, strict=True):
        assert theirs.abs().max() > 0
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", each(TORCH))
@pytest.mark.parametrize("empty", "BLSHED")
def test_gradients_of_an_empty_axis_are_those_of_the_einsum_path(name: str, empty: str) -> None:
    backend = load(name)
    if "float64" in backend.lacks:
        pytest.skip(f"{name} lacks float64")
    b, rows, keys, h, e, d = Sizes(B, L, S, H, E, D)._replace(**{empty: 0})
    shapes = ((b, rows, h, e), (b, keys, h, e), (b, keys, h, d))
    q, k, v = (torch.from_numpy(draw(*x, dtype="float64")).requires_grad_() for x in shapes)
    weighty = "weights" not in backend.lacks
    layer = FullAttention(False, scale=1.0, output_attention=weighty, backend=backend).eval()
    out, a = layer(q, k, v, None)
    weights = torch.softmax(torch.einsum("blhe,bshe->bhls", q, k), -1)
    assert_same_gradients(out, torch.einsum("bhls,bshd->blhd", weights, v), (q, k, v))
    if a is not None:
        assert_same_gradients(a, weights, (q, k))


def assert_same_gradients(
    got: torch.Tensor, want: torch.Tensor, inputs: tuple[torch.Tensor, ...]
) -> None:
    mine, theirs = (torch.autograd.grad(x.sum(), inputs, retain_graph=True) for x in (got, want))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("scale", [1e-46, 1e39])
def test_a_scale_that_float32_cannot_hold_is_refused_except_in_float64(scale: float) -> None:
    layer = FullAttention(False, scale=scale, attention_dropout=0.0)
    x = np.ones((1, 3, 1, 2))
    assert np.isfinite(layer(x, x, x, None)[0]).all()
    single = x.astype(np.float32)
    with pytest.raises(InvalidInputError, match=r"scale is .*float32's range \[S4\]"):
        layer(single, single, single, None)


def test_a_backend_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="backend is None"):
        FullAttention(backend=None)  # type: ignore[arg-type]


def test_a_numpy_layer_is_pickled() -> None:
    layer = pickle.loads(pickle.dumps(FullAttention(False, attention_dropout=0.0)))
    x = np.ones((1, 3, 1, 2))
    assert np.array_equal(layer(x, x, x, None)[0], x)
