"""NumPy arrays for the backends that use them."""

from __future__ import annotations

import numpy as np

from fullattention.backends.errors import UnavailableError
from fullattention.backends.interface import Array, Arrays, Shape

LACKS = dict.fromkeys(("gradient", "double_backward"), "NumPy does not differentiate")
"""What no NumPy backend can do."""

ALIGNMENT = 64
"""Bytes of a cache line and of the widest vector register, from which torch allocates too."""

_generator = np.random.default_rng()


def require_cpu(backend: str, device: str) -> None:
    """Refuse any device but the CPU.

    Raises:
        UnavailableError: another device is asked for.
    """
    if device != "cpu":
        raise UnavailableError(backend, f"NumPy runs on 'cpu', not {device!r}")


def seed(value: int) -> None:
    """Restart the generator that dropout draws from."""
    global _generator  # noqa: PLW0603 - one stream per process, as in the frameworks
    _generator = np.random.default_rng(value)


def draw_seed() -> int:
    """A seed for kernels that bring a generator of their own, below 2^63."""
    return int(_generator.integers(2**63))


def drop(weights: np.ndarray, dropout: float) -> np.ndarray:
    """Drop weights with probability `dropout` and divide the kept ones by its complement."""
    if dropout == 0.0:
        return weights
    if dropout == 1.0:
        return np.zeros_like(weights)
    kept = _generator.random(weights.shape, dtype=np.float32) >= dropout
    return np.where(kept, weights / (1.0 - dropout), 0.0).astype(weights.dtype, copy=False)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """A C-contiguous copy whose address `ALIGNMENT` divides.

    Where NumPy itself allocates is left to chance beyond 16 bytes, and with it what shows of a
    kernel whose loads want more.
    """
    memory = bytearray(array.nbytes + ALIGNMENT)  # no array: the copy is what its views come from
    start = -np.frombuffer(memory, np.uint8).ctypes.data % ALIGNMENT
    copy = np.ndarray(array.shape, array.dtype, buffer=memory, offset=start)
    copy[...] = array
    return copy


def _put(array: np.ndarray, device: str) -> np.ndarray:
    return aligned_copy(array)


def _strided(buffer: np.ndarray, shape: Shape, strides: Shape, offset: int) -> np.ndarray:
    steps = tuple(stride * buffer.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(buffer[offset:], shape, steps)


def _where(condition: Array, chosen: Array | float, other: np.ndarray) -> np.ndarray:
    return np.where(condition, np.asarray(chosen, other.dtype), other)


def _synchronize(device: str) -> None:
    """NumPy is done when it returns."""


def _zeros(shape: Shape, like: np.ndarray, *others: np.ndarray) -> np.ndarray:
    return np.zeros(shape, like.dtype)


def _contiguous(array: np.ndarray) -> np.ndarray:
    return np.asanyarray(array, order="C")  # an array of a subclass too stays itself


def _any_true(array: np.ndarray) -> bool:
    return bool(array.any())


ARRAYS = Arrays(
    library="numpy",
    type=np.ndarray,
    put=_put,
    wrap=np.asarray,
    take=np.array,
    strided=_strided,
    synchronize=_synchronize,
    where=_where,
    zeros=_zeros,
    contiguous=_contiguous,
    any_true=_any_true,
)
