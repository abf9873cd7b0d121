"""Numba device arrays for the backends that use them.

They know few operations, so what the layer needs beyond launching kernels is done on the host:
zeros for empty axes, and the repair of rows whose keys are all hidden under the profile "zero", or
under a negative scale. No other call waits for the device.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.cudadrv import devicearray, driver

from fullattention.backends.interface import Array, Arrays, Shape
from fullattention.backends.numba_cuda_kernels.simulator import SIMULATED

OUT_OF_MEMORY = 2
"""The driver's CUDA_ERROR_OUT_OF_MEMORY."""

TYPE: type[Any] = devicearray.FakeCUDAArray if SIMULATED else devicearray.DeviceNDArray
"""The simulator has a class of its own."""


def on_device(device: str) -> contextlib.AbstractContextManager[Any]:
    """Make a device the current one of this thread."""
    if SIMULATED:
        return contextlib.nullcontext()
    index = device.partition(":")[2]
    manager: contextlib.AbstractContextManager[Any] = cuda.gpus[int(index or 0)]
    return manager


def empty(shape: Shape, dtype: Any, device: str, stream: Any = 0) -> Array:
    """An array of undefined values, bound to a stream.

    Raises:
        MemoryError: there is not enough memory; the message says how much was asked for.
    """
    try:
        with on_device(device):
            return cuda.device_array(shape, dtype, stream=stream)
    except (MemoryError, driver.CudaAPIError) as error:
        if not isinstance(error, MemoryError) and error.code != OUT_OF_MEMORY:
            raise  # an earlier kernel's error, say, which shows at the next call of the driver
        size = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
        raise MemoryError(f"device {device}: no room for {size} bytes, {shape} {dtype}") from error


def device_of(array: Array) -> str:
    """Where an array lies, as `put` takes it; what the simulator holds lies on the CPU."""
    return "cpu" if SIMULATED else f"cuda:{array.gpu_data.context.device.id}"


def strided_view(array: Array, shape: Shape, strides: Shape, start: int = 0) -> Array:
    """Memory of an array under another shape; strides and start are in bytes."""
    if SIMULATED:
        base = array._ary.reshape(-1) if start else array._ary  # noqa: SLF001 - no public way
        base = base.view(np.uint8)[start:].view(array.dtype) if start else base
        return TYPE(np.lib.stride_tricks.as_strided(base, shape, strides))
    memory = array.gpu_data.view(start) if start else array.gpu_data
    return TYPE(shape, strides, array.dtype, stream=array.stream, gpu_data=memory)


def _put(array: np.ndarray, device: str) -> Array:
    with on_device(device):
        return cuda.to_device(np.array(array, order="C"))


def _take(array: Array) -> np.ndarray:
    """Numba refuses to copy what runs backwards, and copies the gaps of what has gaps."""
    if min(array.strides, default=0) < 0:
        backwards = tuple(stride < 0 for stride in array.strides)
        start = sum(
            (n - 1) * stride
            for n, stride in zip(array.shape, array.strides, strict=True)
            if stride < 0
        )
        forwards = strided_view(array, array.shape, tuple(map(abs, array.strides)), start)
        flips = tuple(slice(None, None, -1 if back else 1) for back in backwards)
        return np.ascontiguousarray(_take(forwards)[flips])
    return np.array(array.copy_to_host(), order="C")


def _strided(buffer: Array, shape: Shape, strides: Shape, offset: int) -> Array:
    size = buffer.dtype.itemsize
    return strided_view(buffer, shape, tuple(size * stride for stride in strides), size * offset)


def _synchronize(device: str) -> None:
    with on_device(device):
        cuda.synchronize()


def _where(condition: Array, chosen: Array | float, other: Array) -> Array:
    value = _take(chosen) if isinstance(chosen, TYPE) else np.asarray(chosen, other.dtype)
    return _put(np.where(_take(condition), value, _take(other)), device_of(other))


def _zeros(shape: Shape, like: Array, *others: Array) -> Array:
    return _put(np.zeros(shape, like.dtype), device_of(like))


def _contiguous(array: Array) -> Array:
    return array if array.is_c_contiguous() else _put(_take(array), device_of(array))


def _any_true(array: Array) -> bool:
    return bool(_take(array).any())


def _reshape(array: Array, shape: Shape) -> Array:
    """Axes of length 1 come first; nothing else is asked for."""
    added = len(shape) - len(array.shape)
    return strided_view(array, shape, (0,) * added + tuple(array.strides))


def _swapaxes(array: Array, first: int, second: int) -> Array:
    return _put(_take(array).swapaxes(first, second), device_of(array))


def _all(array: Array) -> Array:
    return _put(np.all(_take(array), -1, keepdims=True), device_of(array))


def _any(array: Array) -> Array:
    return _put(np.any(_take(array), -1, keepdims=True), device_of(array))


def _and_not(array: Array, other: Array) -> Array:
    return _put(_take(array) & ~_take(other), device_of(array))


ARRAYS = Arrays(
    library="numba",
    type=TYPE,
    put=_put,
    take=_take,
    strided=_strided,
    synchronize=_synchronize,
    where=_where,
    zeros=_zeros,
    contiguous=_contiguous,
    any_true=_any_true,
    device=device_of,
    reshape=_reshape,
    swapaxes=_swapaxes,
    all=_all,
    any=_any,
    and_not=_and_not,
)
