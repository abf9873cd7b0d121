"""What our code asks of CuPy, without CuPy and its GPU: devices, and a log of what ran on which.

`install` puts it in CuPy's place; the modules that import CuPy are then imported anew, over it.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fullattention import backends

OVER_CUPY = ("fullattention.backends.cupy_arrays", "fullattention.backends.cupy_fused")
"""Modules that import CuPy as they are imported."""


class Device:
    """A GPU; a `with` statement makes it the current one."""

    current = 0

    def __init__(self, index: int | None = None) -> None:
        self.id = Device.current if index is None else index
        self.compute_capability = CAPABILITY[0]
        self.before: list[int] = []

    def __enter__(self) -> Device:
        self.before.append(Device.current)
        Device.current = self.id
        return self

    def __exit__(self, *_: object) -> None:
        Device.current = self.before.pop()


CAPABILITY = ["90"]
"""Of every device."""

VERSION = ["14.0.1"]
"""Of CuPy."""

LOG: list[tuple[str, int]] = []
"""Each operation that launches a kernel, and the device that was current."""


class Ndarray:
    """An array on a device; it holds no numbers."""

    def __init__(self, device: int = 0, strides: tuple[int, ...] = (), address: int = 0) -> None:
        self.device = Device(device)
        self.dtype = np.dtype("float32")
        self.itemsize = 4
        self.strides = strides
        self.data = SimpleNamespace(ptr=address)

    def _ran(self, operation: str) -> Ndarray:
        LOG.append((operation, Device.current))
        return Ndarray(Device.current)

    def all(self, axis: int) -> Ndarray:
        return self._ran("all")

    def any(self, axis: int) -> Ndarray:
        return self._ran("any")

    def reshape(self, shape: tuple[int, ...]) -> Ndarray:
        return self._ran("reshape")

    def swapaxes(self, first: int, second: int) -> Ndarray:
        return self

    def __and__(self, other: Ndarray) -> Ndarray:
        return self._ran("and")

    def __invert__(self) -> Ndarray:
        return self._ran("invert")

    def __getitem__(self, index: object) -> Ndarray:
        return self


class ExternalStream:
    """A stream of another library; a `with` statement makes it the current one."""

    current: int | None = None

    def __init__(self, stream: int, device: int) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        ExternalStream.current = self.stream

    def __exit__(self, *_: object) -> None:
        ExternalStream.current = None


class Stream:
    """As of CuPy 14."""

    @staticmethod
    def from_external(other: Any) -> ExternalStream:
        version, stream = other.__cuda_stream__()
        assert version == 0
        return ExternalStream(stream, Device.current)


def _deprecated(*_: object) -> None:
    raise DeprecationWarning("ExternalStream")


def _ran(operation: str) -> Any:
    return lambda *arguments, **options: Ndarray()._ran(operation)  # noqa: SLF001 - our own


def module() -> ModuleType:
    """The module `cupy`."""
    cupy: Any = ModuleType("cupy")
    runtime = SimpleNamespace(
        driverGetVersion=lambda: 13000, getDeviceCount=lambda: 2, CUDARuntimeError=RuntimeError
    )
    cupy.__version__ = VERSION[0]
    cupy.ndarray = Ndarray
    cupy.cuda = ModuleType("cupy.cuda")
    cupy.cuda.Device = Device
    cupy.cuda.runtime = runtime
    before_14 = VERSION[0] < "14"
    cupy.cuda.Stream = type("Stream", (), {}) if before_14 else Stream
    cupy.cuda.ExternalStream = ExternalStream if before_14 else _deprecated
    cupy.cuda.cublas = None
    cupy.ElementwiseKernel = lambda *arguments: _ran("where")
    for operation in ("asarray", "zeros", "ascontiguousarray"):
        setattr(cupy, operation, _ran(operation))
    made: ModuleType = cupy
    return made


def install(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    """Take CuPy's place, with GPUs of a compute capability; a test calls `forget` at its end."""
    LOG.clear()
    CAPABILITY[0] = capability
    stand_in = module()
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    monkeypatch.setitem(sys.modules, "cupy.cuda", stand_in.cuda)
    forget()


def forget() -> None:
    """Have the modules that import CuPy imported anew."""
    for name in OVER_CUPY:
        sys.modules.pop(name, None)
        vars(backends).pop(name.rpartition(".")[2], None)
