"""CuPy arrays for the backends that use them."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from fullattention.backends.errors import UnavailableError
from fullattention.backends.interface import (
    Array,
    Arrays,
    Shape,
    own_all,
    own_and_not,
    own_any,
    own_reshape,
)

BFLOAT16_SINCE = 80
"""Compute capability, times ten, whose instructions round to bfloat16."""


def require_device(backend: str, device: str) -> None:
    """Refuse a device that CuPy cannot reach.

    Raises:
        UnavailableError: there is no such device; the reason names it.
    """
    if not re.fullmatch(r"cuda(:\d+)?", device):
        raise UnavailableError(backend, f"CuPy runs on 'cuda' or 'cuda:N', not {device!r}")
    if cupy.cuda.runtime.driverGetVersion() == 0:
        raise UnavailableError(backend, "no CUDA device: there is no NVIDIA driver")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UnavailableError(backend, f"no CUDA device: {error}") from error
    if _index(device) >= count:
        raise UnavailableError(
            backend, f"no CUDA device {device!r}: CuPy sees {count}, numbered from 0"
        )


BFLOAT16_IN = 14
"""The first CuPy that has it."""


def unknown_dtypes() -> dict[str, str]:
    """The dtypes of which CuPy makes no arrays here -> why."""
    if int(cupy.__version__.partition(".")[0]) < BFLOAT16_IN:
        return {"bfloat16": f"CuPy {cupy.__version__} has none: {BFLOAT16_IN} and later have"}
    if importlib.util.find_spec("ml_dtypes") is None:
        return {"bfloat16": "CuPy has it from ml_dtypes, which is not installed"}
    return {}


def missing_dtypes(device: str) -> dict[str, str]:
    """The dtypes to which a device has no instruction that rounds -> why."""
    with on(device):
        capability = int(cupy.cuda.Device().compute_capability)
    if capability >= BFLOAT16_SINCE:
        return {}
    return {"bfloat16": f"GPUs of compute capability {capability / 10} do not round to it"}


def seed(value: int, device: str = "cuda") -> None:
    """Restart CuPy's generator of one device."""
    with on(device):
        cupy.random.seed(value)


def on(device: str) -> cupy.cuda.Device:
    """The device that a string names, for a `with` statement; "cuda" is the current one."""
    return cupy.cuda.Device(_index(device) if ":" in device else None)


def _index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _put(array: np.ndarray, device: str) -> cupy.ndarray:
    with on(device):
        return cupy.array(array, order="C")


def _take(array: cupy.ndarray) -> np.ndarray:
    return np.array(array.get())


def _strided(buffer: cupy.ndarray, shape: Shape, strides: Shape, offset: int) -> cupy.ndarray:
    steps = tuple(stride * buffer.itemsize for stride in strides)
    return cupy.lib.stride_tricks.as_strided(buffer[offset:], shape, steps)


def _synchronize(device: str) -> None:
    on(device).synchronize()  # the whole device, side streams too


# `cupy.where` knows no bfloat16, and would widen it.
_choose = cupy.ElementwiseKernel(
    "bool condition, T chosen, T other",
    "T result",
    "result = condition ? chosen : other",
    "fullattention_where",
)


def _where(condition: Array, chosen: Array | float, other: cupy.ndarray) -> cupy.ndarray:
    with other.device:
        return _choose(condition, cupy.asarray(chosen, other.dtype), other)


def _zeros(shape: Shape, like: cupy.ndarray, *others: cupy.ndarray) -> cupy.ndarray:
    with like.device:
        return cupy.zeros(shape, like.dtype)


def _where_it_lies(operation: Callable[..., cupy.ndarray]) -> Callable[..., cupy.ndarray]:
    """The same on the first array's device: CuPy itself works on the current one."""

    @functools.wraps(operation)
    def there(array: cupy.ndarray, *arguments: Any) -> cupy.ndarray:
        with array.device:
            return operation(array, *arguments)

    return there


def _any_true(array: cupy.ndarray) -> bool:
    return True  # looking would wait for the device


def _device(array: cupy.ndarray) -> str:
    return f"cuda:{array.device.id}"


ARRAYS = Arrays(
    library="cupy",
    type=cupy.ndarray,
    put=_put,
    take=_take,
    strided=_strided,
    synchronize=_synchronize,
    where=_where,
    zeros=_zeros,
    contiguous=_where_it_lies(cupy.ascontiguousarray),
    any_true=_any_true,
    device=_device,
    reshape=_where_it_lies(own_reshape),
    all=_where_it_lies(own_all),
    any=_where_it_lies(own_any),
    and_not=_where_it_lies(own_and_not),
)
