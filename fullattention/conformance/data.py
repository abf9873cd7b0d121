"""Random and special inputs: the regimes of values that separate right from nearly right."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from fullattention.backends.interface import Sizes
from fullattention.backends.precision import SMALLEST_SUBNORMAL

Inputs = tuple[np.ndarray, np.ndarray, np.ndarray]
Regime = Callable[[np.random.Generator, Sizes, str], Inputs]

HUGE = {"float64": 1e7, "float32": 3e3, "float16": 8.0, "bfloat16": 3e3}
"""Size of q and k beyond which the rounding of a score leaves open which keys win."""


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype of that name; bfloat16 comes from ml_dtypes.

    Raises:
        ModuleNotFoundError: bfloat16 without ml_dtypes.
    """
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    dtype: np.dtype = np.dtype(name)
    return dtype


def draw(regime: str, sizes: Sizes, dtype: str, seed: int) -> Inputs:
    """q, k, v of a regime, rounded to `dtype`.

    Shapes: (B, L, H, E), (B, S, H, E), (B, S, H, D). The same arguments give the same arrays.
    """
    rng = np.random.default_rng([seed, zlib.crc32(regime.encode())])
    q, k, v = REGIMES[regime](rng, sizes, dtype)
    kind = numpy_dtype(dtype)
    return q.astype(kind), k.astype(kind), v.astype(kind)


def _normal(rng: np.random.Generator, sizes: Sizes, dtype: str = "") -> Inputs:
    B, L, S, H, E, D = sizes
    return (
        rng.standard_normal((B, L, H, E)),
        rng.standard_normal((B, S, H, E)),
        rng.standard_normal((B, S, H, D)),
    )


def _uniform(rng: np.random.Generator, sizes: Sizes, dtype: str) -> Inputs:
    B, L, S, H, E, D = sizes
    return rng.random((B, L, H, E)), rng.random((B, S, H, E)), rng.random((B, S, H, D))


def _large(rng: np.random.Generator, sizes: Sizes, dtype: str) -> Inputs:
    q, k, v = _normal(rng, sizes)
    return 4 * q, 4 * k, v


def _huge(rng: np.random.Generator, sizes: Sizes, dtype: str) -> Inputs:
    q, k, v = _normal(rng, sizes)
    size = HUGE[dtype]
    return size * np.clip(q, -4, 4), size * np.clip(k, -4, 4), v


def _score_cancellation(rng: np.random.Generator, sizes: Sizes, dtype: str) -> Inputs:
    q, k, v = _normal(rng, sizes)
    half = sizes.E // 2
    q[..., half : 2 * half] = q[..., :half]
    k[..., half : 2 * half] = -k[..., :half] + 0.01 * k[..., half : 2 * half]
    return 8 * q, 8 * k, v


def _value_cancellation(rng: np.random.Generator, sizes: Sizes, dtype: str) -> Inputs:
    q, k, v = _normal(rng, sizes)
    v[:, ::2] = 100.0 + v[:, ::2]
    v[:, 1::2] = -100.0 + v[:, 1::2]
    return 0.1 * q, 0.1 * k, v


def _value_offset(rng: np.random.Generator, sizes: Sizes, dtype: str) -> Inputs:
    q, k, v = _normal(rng, sizes)
    return q, k, {"float16": 100.0, "bfloat16": 10.0}.get(dtype, 1000.0) + v


def _deep_negative(rng: np.random.Generator, sizes: Sizes, dtype: str) -> Inputs:
    """Every scaled score lies below -200: a maximum that starts at 0 loses the whole row."""
    q, k, v = _normal(rng, sizes)
    size = np.sqrt(300.0 / np.sqrt(sizes.E))
    return size + 0.02 * q, -size - 0.02 * k, v


def _staircase(rng: np.random.Generator, sizes: Sizes, dtype: str) -> Inputs:
    """Scores grow along the keys, so a running maximum changes with every tile."""
    q, k, v = _normal(rng, sizes)
    steps = np.linspace(-1.0, 1.0, sizes.S)[None, :, None, None]
    return 1.0 + 0.1 * abs(q), 4.0 * steps + 0.1 * k, v


def _one_hot(rng: np.random.Generator, sizes: Sizes, dtype: str) -> Inputs:
    """One key dominates each row."""
    _, k, v = _normal(rng, sizes)
    chosen = rng.integers(sizes.S, size=sizes.L)
    return 6 * np.sign(k[:, chosen]), 1.5 * np.sign(k), v


def _ties(rng: np.random.Generator, sizes: Sizes, dtype: str) -> Inputs:
    q, k, v = _normal(rng, sizes)
    return q, np.repeat(k[:, :1], sizes.S, axis=1), v


def _tiny_values(rng: np.random.Generator, sizes: Sizes, dtype: str) -> Inputs:
    """Values that are subnormal in float16 and tiny but normal elsewhere."""
    q, k, v = _normal(rng, sizes)
    return q, k, v * (64 * SMALLEST_SUBNORMAL["float16"] if dtype == "float16" else 1e-30)


def _log_normal(rng: np.random.Generator, sizes: Sizes, dtype: str) -> Inputs:
    q, k, v = _normal(rng, sizes)
    return np.exp(0.5 * q), np.exp(0.5 * k), np.exp(v)


def _wide_scores(rng: np.random.Generator, sizes: Sizes, dtype: str) -> Inputs:
    """Scores beyond float16's largest number, with two keys at the top."""
    q, k, v = _normal(rng, sizes)
    k[...] = 300.0
    k[:, 2:] = 299.0
    return np.full(q.shape, 300.0), k, v


def _outlier_feature(rng: np.random.Generator, sizes: Sizes, dtype: str) -> Inputs:
    q, k, v = _normal(rng, sizes)
    q[..., 0] *= 20
    k[..., 0] *= 5
    return q, k, v


REGIMES: Mapping[str, Regime] = MappingProxyType(
    {
        "normal": _normal,
        "uniform": _uniform,
        "large": _large,
        "huge": _huge,
        "score-cancellation": _score_cancellation,
        "value-cancellation": _value_cancellation,
        "value-offset": _value_offset,
        "deep-negative": _deep_negative,
        "staircase": _staircase,
        "one-hot": _one_hot,
        "ties": _ties,
        "tiny-values": _tiny_values,
        "log-normal": _log_normal,
        "outlier-feature": _outlier_feature,
        "wide-scores": _wide_scores,
    }
)
