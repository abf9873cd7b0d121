"""NaN, infinities and huge values put at chosen places of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

Poison = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
"""Edits q, k, v in place. The last key is the one that masks `tail/...` hide."""


def largest(array: np.ndarray) -> float:
    """The largest finite number of an array's dtype."""
    if array.dtype.name == "bfloat16":
        import ml_dtypes

        return float(ml_dtypes.finfo(array.dtype).max)  # type: ignore[no-untyped-call]
    return float(np.finfo(array.dtype).max)


def _nan_in_query(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    q[0, q.shape[1] // 2, 0, 0] = np.nan


def _infinity_in_query(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    q[0, q.shape[1] // 2, 0, 0] = np.inf


def _nan_in_key(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    k[0, 0, 0, 1] = np.nan


def _infinity_in_key(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    k[0, 0, 0, 1] = np.inf


def _nan_in_value(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    v[0, 1, 0, 2] = np.nan


def _infinity_in_value(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    v[0, 1, 0, 2] = -np.inf


def _nan_in_last_key(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    k[:, -1, :, 0] = np.nan


def _nan_in_last_value(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    v[0, -1, 0, 2] = np.nan


def _overflow_in_last_key(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    """Finite, but the score of the key is not."""
    k[:, -1] = largest(k)
    q[...] = 4.0


def _large_last_key(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    """So large that its score nearly overflows, but does not: |q| stays below 8, E below 17."""
    k[:, -1] = np.where(np.arange(k.shape[-1]) % 2, 1, -0.5) * largest(k) / (8 * 16 * 4)
    k[:, -1, 0] *= -1


def _large_last_value(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    v[:, -1] = largest(v)


def _low_visible_scores(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    """Visible scores far below any finite stand-in for minus infinity; the last key's is 0.

    They are equal, to the last bit if E <= 2, which leaves a sum of products only one order.
    """
    size = {"float16": 64.0, "float64": 2.0**500}.get(q.dtype.name, 2.0**60)
    q[...] = size
    k[:, :-1] = -size
    k[:, -1] = 0
    v[:, -1] = 1000


def _equal_scores(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    """What low visible scores amount to where the last key is hidden."""
    q[...] = 0
    v[:, -1] = 1000


POISONS: Mapping[str, Poison] = MappingProxyType(
    {
        "nan-in-query": _nan_in_query,
        "infinity-in-query": _infinity_in_query,
        "nan-in-key": _nan_in_key,
        "infinity-in-key": _infinity_in_key,
        "nan-in-value": _nan_in_value,
        "infinity-in-value": _infinity_in_value,
        "nan-in-last-key": _nan_in_last_key,
        "nan-in-last-value": _nan_in_last_value,
        "overflow-in-last-key": _overflow_in_last_key,
        "large-last-key": _large_last_key,
        "large-last-value": _large_last_value,
        "low-visible-scores": _low_visible_scores,
        "equal-scores": _equal_scores,
    }
)
