"""JAX arrays for the backends that use them."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fullattention.backends import numpy_arrays
from fullattention.backends.errors import UnavailableError
from fullattention.backends.interface import Array, Arrays, Shape, dtype_name


def require_device(backend: str, device: str) -> None:
    """Refuse a device that JAX cannot reach.

    The CPU is not asked: JAX makes its threads when it first is, and their number may yet be set.

    Raises:
        UnavailableError: there is no such device; the reason names it.
    """
    if device == "cpu":
        return
    try:
        _on(device)
    except (RuntimeError, IndexError, ValueError) as error:
        reason = (str(error).strip().splitlines() or ["no such device"])[0]
        raise UnavailableError(
            backend, f"jax {jax.__version__}, device {device}: {reason}"
        ) from error


def wide(array: Array) -> contextlib.AbstractContextManager[Any]:
    """Lets JAX compute in float64 where an array has it, whatever the process is set to."""
    return jax.enable_x64(True) if dtype_name(array) == "float64" else contextlib.nullcontext()


@functools.cache
def _on(device: str) -> jax.Device:
    kind, _, index = device.partition(":")
    found: jax.Device = jax.devices(kind)[int(index or 0)]
    return found


def random_key() -> np.ndarray:
    """The words of a key for JAX's generator, from the stream that `numpy_arrays.seed` restarts."""
    return np.array(divmod(numpy_arrays.draw_seed(), 2**32), np.uint32)


def _put(array: np.ndarray, device: str) -> jax.Array:
    with wide(array):
        # A copy: JAX may else keep to the memory of an array that its owner still writes to.
        return jax.device_put(np.array(array, order="C"), _on(device))


def _strided(buffer: jax.Array, shape: Shape, strides: Shape, offset: int) -> jax.Array:
    dense = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    if strides != dense:
        raise ValueError("JAX arrays have no strides")
    part = np.asarray(buffer)[offset : offset + math.prod(shape)]
    return _put(part.reshape(shape), _device(buffer))


def _synchronize(device: str) -> None:
    """What is launched next from this thread runs after all that it launched before."""
    _tick(_clock(device)).block_until_ready()


@functools.cache
def _clock(device: str) -> jax.Array:
    return _put(np.zeros((), np.float32), device)


_tick = jax.jit(lambda x: x + 1)


def _where(condition: Array, chosen: Array | float, other: jax.Array) -> jax.Array:
    with wide(other):
        return jnp.where(condition, jnp.asarray(chosen, other.dtype), other)


def _zeros(shape: Shape, like: jax.Array, *others: jax.Array) -> jax.Array:
    with wide(like):
        place = None if isinstance(like, jax.core.Tracer) else like.sharding
        return jnp.zeros(shape, like.dtype, device=place)


def _contiguous(array: jax.Array) -> jax.Array:
    return array


def _any_true(array: jax.Array) -> bool:
    """Only a concrete array on the CPU is looked at."""
    return isinstance(array, jax.core.Tracer) or _device(array) != "cpu" or bool(array.any())


def _device(array: jax.Array) -> str:
    (device,) = array.devices()
    return "cpu" if device.platform == "cpu" else f"{device.platform}:{device.id}"


def _device_or(device: str, array: jax.Array) -> str:
    """An array that is being traced lies nowhere yet: it counts as on `device`."""
    return device if isinstance(array, jax.core.Tracer) else _device(array)


def _vjp(
    function: Callable[..., tuple[Array, ...]],
    inputs: tuple[Array, ...],
    cotangents: tuple[Array | None, ...],
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    with wide(inputs[0]):
        results, backward = jax.vjp(function, *inputs)
        given = tuple(
            result if result is None else jnp.zeros_like(result) if one is None else one
            for result, one in zip(results, cotangents, strict=True)
        )
        return results, backward(given)


def arrays_on(device: str) -> Arrays:
    """JAX's arrays for a backend on a device."""
    return Arrays(
        library="jax",
        type=jax.Array,
        put=_put,
        take=np.array,
        strided=_strided,
        synchronize=_synchronize,
        where=_where,
        zeros=_zeros,
        contiguous=_contiguous,
        any_true=_any_true,
        device=functools.partial(_device_or, device),
        vjp=_vjp,
    )
