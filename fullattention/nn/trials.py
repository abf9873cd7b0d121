"""Trials of a layer that is other people's: whether it computes what FullAttention does."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fullattention.backends import load
from fullattention.conformance.bound import Expected, attention_bound, error_over_bound

B, L, H, E, D = 2, 70, 3, 8, 5

SEED = 31

DROPPED = 0.5
"""Probability of dropping a weight where that is tried: what is left doubles, without rounding."""


class _Mask:
    def __init__(self, mask: torch.Tensor) -> None:
        self.mask = mask


@dataclass(frozen=True)
class _Trial:
    """A call of the layer."""

    what: str
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor, _Mask | None]
    """Queries, keys, values and mask."""
    hidden: torch.Tensor
    """What a layer with `mask_flag` hides then; broadcasts to (B, H, L, L)."""
    more: Mapping[str, torch.Tensor] = field(default_factory=dict)
    training: bool = False


def differences(module: Any) -> Iterator[str]:
    """What a layer computes otherwise than FullAttention, told by trials in float64 on the CPU."""
    try:
        layer = copy.deepcopy(module).cpu()
    except Exception as error:  # noqa: BLE001 - the layer is other people's code
        yield f"it cannot be copied, to be tried: {_told(error)}"
        return
    layer.dropout.p = DROPPED
    for trial in _trials():
        layer.train(trial.training)
        try:
            results = _called(layer, trial)
        except Exception as error:  # noqa: BLE001 - the layer is other people's code
            yield f"{trial.what} it raises {_told(error)}"
            continue
        for difference in _differences(results, trial, module):
            yield f"{trial.what} {difference}"


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _trials() -> Iterator[_Trial]:
    random = torch.Generator().manual_seed(SEED)
    q, k, v = (
        torch.randn((B, L, H, size), generator=random, dtype=torch.float64) for size in (E, E, D)
    )
    mask = torch.rand((B, 1, L, L), generator=random) < 0.3
    later = torch.ones((L, L), dtype=torch.bool).triu(1)
    factors = {"tau": torch.full((B, 1), 2.0), "delta": torch.ones((B, L))}
    yield _Trial("plain", (q, k, v, None), later)
    yield _Trial("with a mask", (q, k, v, _Mask(mask)), mask)
    yield _Trial("with tau and delta", (q, k, v, None), later, factors)
    # Of the unit matrix as values, V is the weights; of two side by side, the same weights twice,
    # unless something else than the weights was dropped.
    unit = torch.eye(L, dtype=torch.float64).repeat(1, 2)[:, None].repeat(B, 1, H, 1)
    nothing = torch.zeros_like(mask)
    yield _Trial("with dropout", (q, k, unit, _Mask(nothing)), nothing, training=True)


def _called(layer: Any, trial: _Trial) -> Any:
    """What the layer returns; the user's random numbers stay where they are."""
    with torch.no_grad(), torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(SEED)
        return layer(*trial.given, **trial.more)


def _differences(results: Any, trial: _Trial, module: Any) -> Iterator[str]:
    """How results differ from FullAttention's, with the layer's settings."""
    if not _is_pair(results):
        yield "it does not return a pair of V and weights"
        return
    V, weights = results
    if (weights is None) == bool(module.output_attention):
        yield f"it returns {'no weights' if weights is None else 'weights without being asked'}"
        return
    expected = _expected(trial, module.scale or E**-0.5, masks=module.mask_flag)
    if trial.training and V.shape == expected.out.shape:
        kept = (V[..., :L] != 0).numpy().transpose(0, 2, 1, 3)
        expected = _with_dropout(expected, kept)
        if any((kept == kept.take([0], axis)).all() for axis in range(kept.ndim)):
            yield "it drops nothing, or alike along a whole axis"
    yield from _beyond(V, expected.out, expected.out_bound, "computes something else")
    if weights is not None:
        exact, bound = expected.weights, expected.weights_bound
        yield from _beyond(weights, exact, bound, "returns something else as weights")


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
    ratio = error_over_bound(got.numpy(), exact, bound)
    if not ratio <= 1:
        yield f"it {what}: error/bound {ratio:.3g}"


def _expected(trial: _Trial, scale: float, *, masks: bool) -> Expected:
    """What FullAttention gives, without dropout."""
    queries, keys, values, _ = trial.given
    return attention_bound(
        queries.numpy(),
        keys.numpy(),
        values.numpy(),
        hidden=trial.hidden.broadcast_to((B, 1, L, L)).numpy() if masks else None,
        scale=scale,
        precision=load("torch-einsum").precision["float64"],
    )


def _with_dropout(expected: Expected, kept: np.ndarray) -> Expected:
    """What FullAttention gives of two unit matrices where it kept these weights (B, H, L, L)."""
    factor = kept / (1 - DROPPED)
    twice = np.concatenate([factor, factor], axis=-1).transpose(0, 2, 1, 3)
    return Expected(
        out=expected.out * twice,
        weights=expected.weights * factor,
        out_bound=expected.out_bound * twice,
        weights_bound=expected.weights_bound * factor,
    )
