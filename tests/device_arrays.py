"""Arrays that behave as CuPy's do, on the CPU: a type of their own, which never becomes NumPy's
unless it is asked to. What takes one for the other, and so would copy from a GPU or fail there,
fails here too."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from fullattention.backends.interface import Array, Arrays, Shape

DEVICE = "cuda"


class DeviceArray:
    """An array on the pretended device."""

    __array_ufunc__ = None  # so that NumPy's operators give way, as with CuPy's arrays

    def __init__(self, host: np.ndarray) -> None:
        self.host = host

    def __array__(self, *arguments: Any, **options: Any) -> NoReturn:
        raise TypeError("implicit conversion to a NumPy array is not allowed: use .get()")

    def __array_function__(self, function: Any, *arguments: Any) -> NoReturn:
        raise TypeError(f"{function.__name__} of NumPy was called with an array of the device")

    def __iter__(self) -> NoReturn:
        raise TypeError("going through an array of the device would copy element by element")

    def __bool__(self) -> NoReturn:
        raise TypeError("the truth of an array of the device would wait for it")

    def get(self) -> np.ndarray:
        return self.host.copy()

    @property
    def device(self) -> str:
        return f"<CUDA Device {DEVICE}>"

    @property
    def shape(self) -> Shape:
        return self.host.shape

    @property
    def strides(self) -> Shape:
        return self.host.strides

    @property
    def ndim(self) -> int:
        return self.host.ndim

    @property
    def size(self) -> int:
        return self.host.size

    @property
    def itemsize(self) -> int:
        return self.host.itemsize

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.host.dtype

    def reshape(self, *shape: Any) -> DeviceArray:
        return DeviceArray(self.host.reshape(*shape))

    def transpose(self, *axes: int) -> DeviceArray:
        return DeviceArray(self.host.transpose(*axes))

    def swapaxes(self, one: int, other: int) -> DeviceArray:
        return DeviceArray(self.host.swapaxes(one, other))

    def any(self, axis: int) -> DeviceArray:
        return DeviceArray(np.any(self.host, axis))

    def all(self, axis: int) -> DeviceArray:
        return DeviceArray(np.all(self.host, axis))

    def __invert__(self) -> DeviceArray:
        return DeviceArray(~self.host)

    def __and__(self, other: DeviceArray) -> DeviceArray:
        return DeviceArray(self.host & other.host)

    def __getitem__(self, index: Any) -> DeviceArray:
        return DeviceArray(self.host[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, np.ndarray):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        self.host[index] = value.host if isinstance(value, DeviceArray) else value


def _put(array: np.ndarray, device: str) -> DeviceArray:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"put was given a {type(array).__qualname__}")
    assert device.startswith(DEVICE)
    return DeviceArray(np.array(array, order="C"))


def _strided(buffer: DeviceArray, shape: Shape, strides: Shape, offset: int) -> DeviceArray:
    steps = tuple(stride * buffer.itemsize for stride in strides)
    return DeviceArray(np.lib.stride_tricks.as_strided(buffer.host[offset:], shape, steps))


def _synchronize(device: str) -> None:
    assert device.startswith(DEVICE)


def _where(condition: DeviceArray, chosen: Any, other: DeviceArray) -> DeviceArray:
    value = chosen.host if isinstance(chosen, DeviceArray) else np.asarray(chosen, other.dtype)
    return DeviceArray(np.where(condition.host, value, other.host))


def contiguous(array: DeviceArray) -> DeviceArray:
    if array.host.flags.c_contiguous:
        return array
    return DeviceArray(np.ascontiguousarray(array.host))


def _zeros(shape: Shape, like: DeviceArray, *others: DeviceArray) -> DeviceArray:
    return DeviceArray(np.zeros(shape, like.dtype))


def _any_true(array: Array) -> bool:
    return True


def _device(array: DeviceArray) -> str:
    return f"{DEVICE}:0"


ARRAYS = Arrays(
    library="numpy",
    type=DeviceArray,
    put=_put,
    take=DeviceArray.get,
    strided=_strided,
    synchronize=_synchronize,
    where=_where,
    zeros=_zeros,
    contiguous=contiguous,
    any_true=_any_true,
    device=_device,
)
