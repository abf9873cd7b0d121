"""Masks by name: a pattern and the axes it spans, such as `random/B1LS`."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from fullattention.backends.interface import Sizes

OFF = "off"
"""mask_flag is off."""
CAUSAL = "causal"
"""mask_flag is on and no mask is given."""

Shape = tuple[int, ...]


def build(name: str, sizes: Sizes, seed: int) -> np.ndarray:
    """The boolean mask that `pattern/axes` names, True where a key is hidden.

    `axes` spells the mask's shape: a letter is that axis in full, 1 is an axis of length 1, and
    nothing is a 0-D mask.
    """
    pattern, axes = name.split("/")
    shape = tuple(1 if axis == "1" else getattr(sizes, axis) for axis in axes)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return PATTERNS[pattern](rng, shape)


def hidden_by(name: str, sizes: Sizes, seed: int) -> np.ndarray | None:
    """What a mask hides, as an array that broadcasts to (B, H, L, S); None if nothing."""
    if name == OFF:
        return None
    if name == CAUSAL:
        return _later(None, (sizes.L, sizes.S)) if sizes.L > 1 else None
    mask = build(name, sizes, seed)
    return mask.reshape((1,) * (4 - mask.ndim) + mask.shape)


def _random(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Hides half of the keys and never all of them."""
    mask = np.asarray(rng.random(shape) < 0.5)  # a scalar otherwise, where the shape is ()
    if mask.ndim and mask.shape[-1] > 1:
        shown = rng.integers(mask.shape[-1], size=mask.shape[:-1])[..., None]
        np.put_along_axis(mask, shown, False, -1)
    else:
        mask[...] = False
    return mask


def _rows(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Hides random keys, and every third row altogether."""
    mask = _random(rng, shape)
    mask.reshape(-1, mask.shape[-1])[1::3] = True
    return mask


def _all(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return np.ones(shape, bool)


def _none(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return np.zeros(shape, bool)


def _later(rng: np.random.Generator | None, shape: Shape) -> np.ndarray:
    """Hides the keys after a query's own position."""
    return np.broadcast_to(np.triu(np.ones(shape[-2:], bool), 1), shape).copy()


def _padding(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Hides the last keys, another number of them in each batch entry."""
    S = shape[-1]
    lengths = rng.integers(1, S + 1, size=shape[:-1])[..., None]
    return np.arange(S) >= lengths


def _band(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Shows the last ten positions only, so that whole key tiles of late rows are hidden."""
    rows, keys = np.indices(shape[-2:])
    return np.broadcast_to((keys > rows) | (rows - keys >= 10), shape).copy()


def _tail(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Hides the last third of the keys from every query, and at least one."""
    S = shape[-1]
    return np.broadcast_to(np.arange(S) >= S - max(S // 3, 1), shape).copy()


PATTERNS: Mapping[str, Callable[[np.random.Generator, Shape], np.ndarray]] = MappingProxyType(
    {
        "random": _random,
        "rows": _rows,
        "all": _all,
        "none": _none,
        "later": _later,
        "padding": _padding,
        "band": _band,
        "tail": _tail,
    }
)
