"""Fused attention by our own CUDA C++ kernels, for CuPy's arrays and for torch's tensors."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from fullattention.backends import cupy_arrays
from fullattention.backends.alignment import require_aligned
from fullattention.backends.cupy_kernels import fused
from fullattention.backends.cupy_kernels.kernels import KERNELS, STANDARD, Setting, source
from fullattention.backends.cupy_kernels.launch import USUAL_SHARED, Launch, Limits
from fullattention.backends.cupy_kernels.passes import View
from fullattention.backends.declared import DECLARED
from fullattention.backends.interface import Array, Backend, Shape, dtype_name

if TYPE_CHECKING:
    import torch


@functools.cache
def _kernel(name: str, setting: Setting) -> Any:
    """A kernel; CuPy compiles it at its first launch on a device, and keeps it on disk."""
    module = cupy.RawModule(code=source(KERNELS[name]), options=(STANDARD, *setting.macros))
    return module.get_function(name)


@functools.cache
def _limits(device: int) -> Limits:
    attributes = cupy.cuda.Device(device).attributes
    return Limits(
        threads=attributes["MaxThreadsPerBlock"],
        shared=attributes["MaxSharedMemoryPerBlockOptin"],
        tensor_cores=attributes["ComputeCapabilityMajor"] >= 8,
    )


def _launch(launch: Launch, call: np.ndarray) -> None:
    """Queue a kernel on CuPy's current stream of its current device."""
    kernel = _kernel(launch.kernel, launch.setting)
    if launch.shared > USUAL_SHARED:
        kernel.max_dynamic_shared_size_bytes = launch.shared
    kernel((launch.blocks,), (launch.threads,), (call,), shared_mem=launch.shared)


class _Handle:
    """A CUDA stream of another library, by CUDA's protocol for streams."""

    def __init__(self, stream: int) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version, and the stream."""
        return 0, self.stream


@functools.cache
def _external(stream: int, device: int) -> Any:
    """A stream of another library as CuPy's; the device is the current one."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_Handle(stream))
    return cupy.cuda.ExternalStream(stream, device)  # before CuPy 14, which deprecates it


class CuPyRuntime:
    """CuPy's arrays, on CuPy's current stream."""

    def view(self, name: str, array: Array) -> View:
        """Where an array lies."""
        require_aligned(name, array.itemsize, array.data.ptr, array.strides)
        strides = tuple(stride // array.itemsize for stride in array.strides)
        return View(address=array.data.ptr, strides=strides, shape=array.shape)

    def empty(self, shape: Shape, dtype: str, like: Array) -> Array:
        """A new array on the device of another one."""
        with like.device:
            return cupy.empty(shape, like.dtype if dtype == dtype_name(like) else dtype)

    def limits(self, like: Array) -> Limits:
        """What the device of an array allows."""
        return _limits(like.device.id)

    def launch(self, launch: Launch, call: np.ndarray, like: Array) -> None:
        """Queue a kernel."""
        with like.device:
            _launch(launch, call)


class TorchRuntime:
    """torch's tensors where they lie, on torch's current stream."""

    def view(self, name: str, array: torch.Tensor) -> View:
        """Where a tensor lies."""
        require_aligned(name, array.element_size(), array.data_ptr())
        return View(address=array.data_ptr(), strides=array.stride(), shape=tuple(array.shape))

    def empty(self, shape: Shape, dtype: str, like: torch.Tensor) -> torch.Tensor:
        """A new tensor of torch's allocator, which knows the stream that it is used on."""
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)

    def limits(self, like: torch.Tensor) -> Limits:
        """What the device of a tensor allows."""
        return _limits(like.get_device())

    def launch(self, launch: Launch, call: np.ndarray, like: torch.Tensor) -> None:
        """Queue a kernel."""
        import torch

        device = like.get_device()
        stream = torch.cuda.current_stream(device).cuda_stream
        with cupy.cuda.Device(device), _external(stream, device):
            _launch(launch, call)


def backend(device: str) -> Backend:
    """For CuPy's arrays."""
    name = "cupy-fused"
    cupy_arrays.require_device(name, device)
    return fused.without_gradient(
        name,
        CuPyRuntime(),
        cupy_arrays.ARRAYS,
        device=device,
        version=cupy.__version__,
        lacks={
            **DECLARED[name].lacks,
            **cupy_arrays.missing_dtypes(device),
            **cupy_arrays.unknown_dtypes(),
        },
    )


def for_torch(device: str) -> Backend:
    """For torch's tensors, with gradients."""
    from fullattention.backends import torch_arrays

    name = "cupy-fused-torch"
    cupy_arrays.require_device(name, device)
    torch_arrays.require_device(name, device)
    return fused.with_gradient(
        name,
        TorchRuntime(),
        device=device,
        version=cupy.__version__,
        lacks=cupy_arrays.missing_dtypes(device),
    )
