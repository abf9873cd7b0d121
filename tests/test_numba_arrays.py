"""What Numba's backends ask of the driver, on stand-ins: whose memory ran out, and which stream."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: nox installs it")

from numba.cuda.cudadrv import driver

from fullattention.backends import numba_cuda_arrays
from fullattention.backends.numba_cuda_kernels import passes
from fullattention.backends.numba_cuda_kernels.passes import common_stream
from fullattention.backends.passes import Options

ILLEGAL_ADDRESS = 700
"""The driver's CUDA_ERROR_ILLEGAL_ADDRESS: every later call tells it again."""


def make_fail(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*arguments: Any, **options: Any) -> NoReturn:
        raise error

    monkeypatch.setattr(numba_cuda_arrays, "on_device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(numba_cuda_arrays, "cuda", SimpleNamespace(device_array=fail))


@pytest.mark.parametrize(
    "error",
    [MemoryError("none"), driver.CudaAPIError(numba_cuda_arrays.OUT_OF_MEMORY, "none")],
    ids=["python", "driver"],
)
def test_memory_that_ran_out_is_told_with_what_was_asked_for(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fail(monkeypatch, error)
    with pytest.raises(MemoryError, match=r"device cuda:1: no room for 48 bytes, \(3, 4\)"):
        numba_cuda_arrays.empty((3, 4), "float32", "cuda:1")


@pytest.mark.parametrize(
    "error", [driver.CudaAPIError(ILLEGAL_ADDRESS, "cuMemAlloc"), ValueError("strides")], ids=repr
)
def test_another_error_is_not_told_as_memory_that_ran_out(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fail(monkeypatch, error)
    with pytest.raises(type(error)) as caught:
        numba_cuda_arrays.empty((3, 4), "float32", "cuda")
    assert caught.value is error


def test_the_driver_calls_memory_that_ran_out_by_the_number_that_is_looked_for() -> None:
    assert driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY == numba_cuda_arrays.OUT_OF_MEMORY


def on(*streams: Any) -> list[Any]:
    return [SimpleNamespace(stream=stream) for stream in streams]


FIRST, SECOND = SimpleNamespace(handle=7), SimpleNamespace(handle=8)
"""As Numba's streams, whose `handle` is the driver's."""


def test_a_stream_that_all_arrays_are_bound_to_is_taken() -> None:
    assert common_stream(on(0, 0, 0)) == 0
    assert common_stream(on(FIRST, FIRST, FIRST)) is FIRST
    assert common_stream(on(FIRST, SimpleNamespace(handle=7))).handle == 7


@pytest.mark.parametrize("streams", [(FIRST, SECOND), (FIRST, FIRST, 0), (0, SECOND)])
def test_arrays_of_several_streams_go_by_the_default_one(streams: tuple[Any, ...]) -> None:
    """Which waits for the others, as they do for it."""
    assert common_stream(on(*streams)) == 0


def test_kernels_run_on_the_stream_that_all_results_are_bound_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound, launched, asked = [], [], []

    def empty(shape: Any, dtype: str, like: Any, stream: Any) -> np.ndarray:
        bound.append(stream)
        return np.empty(shape, dtype)

    def stream_of(arrays: Any) -> Any:
        asked.append(list(arrays))
        return FIRST

    library = passes.Library(empty=empty, seen=lambda x: x, device=str, stream=stream_of)
    monkeypatch.setattr(numba_cuda_arrays, "on_device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(passes, "launch", lambda *a, stream, **o: launched.append(stream))
    q, k, v, g = (np.ones((2, 5, 3, 4), np.float32) for _ in "qkvg")
    hidden, level = np.zeros((1, 1, 5, 5), bool), np.ones((2, 3, 5, 1), np.float32)
    options = Options(causal=False, scale=0.5, dropout=0.0, seed=0)
    passes.forward(library, q, k, v, hidden, options, weights=True, logsumexp=True)
    passes.backward(library, g, None, q, k, v, hidden, level, options)
    assert bound == [FIRST] * 7
    assert launched == [FIRST] * 3
    assert [len(arrays) for arrays in asked] == [4, 6]


def test_results_are_bound_to_the_stream_that_writes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = SimpleNamespace(device_array=lambda shape, dtype, stream: (shape, dtype, stream))
    monkeypatch.setattr(numba_cuda_arrays, "on_device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(numba_cuda_arrays, "cuda", made)
    assert numba_cuda_arrays.empty((2,), "float32", "cuda", FIRST) == ((2,), "float32", FIRST)
