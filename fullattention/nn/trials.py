"""Trials of a layer that is other people's: whether it computes what FullAttention does."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fullattention.backends import Precision, load
from fullattention.backends.interface import dtype_name
from fullattention.conformance.bound import Expected, error_over_bound, expected_within
from fullattention.conformance.gradient_bound import exact_gradients, gradient_bound
from fullattention.conformance.oracle import Exact, exact_attention

B, H, E, D = 2, 3, 8, 5

LENGTH, SHORTER, LONG = 70, 37, 200
"""Lengths of the time axes; `LONG` exceeds any buffer of a power of two made for `LENGTH`."""

LARGE = 8.0
"""What queries and keys are multiplied with for scores of some hundreds, beyond any clamp."""

SEED = 31

DROPPED = 0.5
"""Probability of dropping a weight where that is tried: what is left doubles, without rounding."""

Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values, or the gradients of them."""


class _Mask:
    def __init__(self, mask: torch.Tensor) -> None:
        self.mask = mask


@dataclass(frozen=True)
class _Trial:
    """A call of the layer."""

    what: str
    given: Triple
    hidden: torch.Tensor | None
    """What the layer hides then; broadcasts to (B, H, L, S)."""
    mask: _Mask | None = None
    more: Mapping[str, torch.Tensor] = field(default_factory=dict)
    training: bool = False

    @property
    def precision(self) -> Precision:
        """How the layer may round."""
        return load("torch-einsum").precision[dtype_name(self.given[0])]

    def exact(self, scale: float | None) -> Exact:
        """What FullAttention gives, without dropout."""
        q, k, v = map(_in_numpy, self.given)
        hidden = None if self.hidden is None else self.hidden.numpy()
        return exact_attention(q, k, v, hidden=hidden, scale=scale or E**-0.5)


@dataclass(frozen=True)
class _Answer:
    """What the layer returned, and what torch made of that."""

    results: Any
    cotangents: tuple[torch.Tensor | None, ...] = ()
    """Gradients of a loss by each result."""
    gradients: Triple | tuple[()] = ()
    """Those of the same loss."""


def difference(module: Any) -> str:
    """What a layer computes otherwise than FullAttention, told by trials on the CPU; or nothing."""
    # Whatever the caller has switched on: trials are to be exact, and differentiated.
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
    ):
        return next(_all_differences(module), "")


def _all_differences(module: Any) -> Iterator[str]:
    try:
        layer = copy.deepcopy(module).cpu()
    except Exception as error:  # noqa: BLE001 - the layer is other people's code
        yield f"it cannot be copied, to be tried: {_told(error)}"
        return
    layer.dropout.p = DROPPED
    for trial in _trials(masks=bool(module.mask_flag)):
        layer.train(trial.training)
        try:
            answer = _answer(layer, trial)
        except Exception as error:  # noqa: BLE001 - the layer is other people's code
            yield f"{trial.what} it raises {_told(error)}"
            continue
        for one in _differences(answer, trial, module):
            yield f"{trial.what} {one}"


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _trials(*, masks: bool) -> Iterator[_Trial]:
    """The calls to try on a layer that hides what it is told to, or nothing."""
    random = torch.Generator().manual_seed(SEED)

    def arrays(L: int, S: int) -> Triple:
        return (
            _normal((B, L, H, E), random),
            _normal((B, S, H, E), random),
            _normal((B, S, H, D), random),
        )

    def masked(what: str, given: Triple, mask: torch.Tensor, **more: Any) -> _Trial:
        return _Trial(what, given, mask if masks else None, _Mask(mask), **more)

    def later(length: int) -> torch.Tensor | None:
        return torch.ones((1, 1, length, length), dtype=torch.bool).triu(1) if masks else None

    q, k, v = plain = arrays(LENGTH, LENGTH)
    factors = {"tau": torch.full((B, 1), 2.0), "delta": torch.ones((B, LENGTH))}
    # Of the unit matrix as values, V is the weights; of two side by side, the same weights twice,
    # unless something else than the weights was dropped.
    unit = torch.eye(LENGTH, dtype=torch.float64).repeat(1, 2)[:, None].repeat(B, 1, H, 1)
    mask = _some((LENGTH, LENGTH), random)
    yield _Trial("plain", plain, later(LENGTH))
    yield masked("with a mask", plain, mask)
    yield _Trial("with large scores", (LARGE * q, LARGE * k, v), later(LENGTH))
    yield _Trial("with tau and delta", plain, later(LENGTH), more=factors)
    yield masked("with dropout", (q, k, unit), torch.zeros_like(mask), training=True)
    for L, S in ((SHORTER, LENGTH), (LENGTH, SHORTER)):
        what = f"with {L} queries and {S} keys"
        given = arrays(L, S)
        # Without a mask array, one that masks needs as many queries as keys.
        yield masked(what, given, _some((L, S), random)) if masks else _Trial(what, given, None)
    yield _Trial(f"with {LONG} queries and keys", arrays(LONG, LONG), later(LONG))
    yield _Trial("in float32", (q.float(), k.float(), v.float()), later(LENGTH))


def _normal(shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=random, dtype=torch.float64)


def _some(lengths: tuple[int, int], random: torch.Generator) -> torch.Tensor:
    """A mask that hides some keys, and not all from any query."""
    return torch.rand((B, 1, *lengths), generator=random) < 0.3


def _answer(layer: Any, trial: _Trial) -> _Answer:
    """What the layer returns; the user's random numbers stay where they are."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(SEED)
        leaves = [tensor.clone().requires_grad_() for tensor in trial.given]
        results = layer(*leaves, trial.mask, **trial.more)
    if not _is_pair(results):
        return _Answer(results)
    random = torch.Generator().manual_seed(SEED)
    cotangents = tuple(
        None if result is None else _normal(result.shape, random).to(result.dtype)
        for result in results
    )
    # Cotangents as arguments of grad would make torch import sympy.
    loss = sum(
        (result * cotangent).sum()
        for result, cotangent in zip(results, cotangents, strict=True)
        if cotangent is not None
    )
    q, k, v = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return _Answer(results, cotangents, (q, k, v))


def _differences(answer: _Answer, trial: _Trial, module: Any) -> Iterator[str]:
    """How results and gradients differ from FullAttention's, with the layer's settings."""
    if not _is_pair(answer.results):
        yield "it does not return a pair of V and weights"
        return
    V, weights = answer.results
    if (weights is None) == bool(module.output_attention):
        yield f"it returns {'no weights' if weights is None else 'weights without being asked'}"
        return
    exact = trial.exact(module.scale)
    expected = expected_within(exact, trial.precision)
    if V.shape != expected.out.shape:
        yield from _beyond(V, expected.out, expected.out_bound, "computes something else")
        return
    keep: np.ndarray | float = 1.0
    if trial.training:
        kept = (V[..., : exact.k.shape[1]] != 0).numpy().transpose(0, 2, 1, 3)
        keep = factors = kept / (1 - DROPPED)
        expected = _with_dropout(expected, factors)
        if any((kept == kept.take([0], axis)).all() for axis in range(kept.ndim)):
            yield "it drops nothing, or alike along a whole axis"
    yield from _beyond(V, expected.out, expected.out_bound, "computes something else")
    if weights is not None:
        wanted, bound = expected.weights, expected.weights_bound
        yield from _beyond(weights, wanted, bound, "returns something else as weights")
    yield from _other_gradients(answer, trial, exact, keep)


def _other_gradients(
    answer: _Answer, trial: _Trial, exact: Exact, keep: np.ndarray | float
) -> Iterator[str]:
    g_out, g_weights = (None if x is None else _in_numpy(x) for x in answer.cotangents)
    assert g_out is not None
    hidden = None if trial.hidden is None else trial.hidden.numpy()
    wanted = exact_gradients(exact, g_out, g_weights, hidden=hidden, keep=keep)
    bounds = gradient_bound(exact, g_out, g_weights, trial.precision, hidden=hidden, keep=keep)
    names = ("queries", "keys", "values")
    for name, got, want, bound in zip(names, answer.gradients, wanted, bounds, strict=True):
        yield from _beyond(got, want, bound, f"has another gradient of {name}")


def _is_pair(results: Any) -> bool:
    if not (isinstance(results, tuple) and len(results) == 2):
        return False
    V, weights = results
    return isinstance(V, torch.Tensor) and isinstance(weights, torch.Tensor | None)


def _beyond(got: torch.Tensor, exact: np.ndarray, bound: np.ndarray, what: str) -> Iterator[str]:
    """By how much a result lies outside its bound, if it does."""
    if got.shape != exact.shape:
        yield f"it {what}: of shape {tuple(got.shape)}, not {exact.shape}"
        return
    ratio = error_over_bound(_in_numpy(got), exact, bound)
    if not ratio <= 1:
        yield f"it {what}: error/bound {ratio:.3g}"


def _in_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The numbers in float64."""
    return tensor.detach().double().numpy()


def _with_dropout(expected: Expected, keep: np.ndarray) -> Expected:
    """What FullAttention gives of two unit matrices where it multiplies weights (B, H, L, S) so."""
    twice = np.concatenate([keep, keep], axis=-1).transpose(0, 2, 1, 3)
    return Expected(
        out=expected.out * twice,
        weights=expected.weights * keep,
        out_bound=expected.out_bound * twice,
        weights_bound=expected.weights_bound * keep,
    )
