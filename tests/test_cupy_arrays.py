"""What depends on the GPU in CuPy's backends, on a stand-in for CuPy: which device, and what of."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fullattention.backends import cupy_matmul
from fullattention.backends.errors import UnsupportedError
from fullattention.backends.interface import Arrays
from tests import cupy_stand_in
from tests.cupy_stand_in import LOG, Device, Ndarray


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Puts the stand-in in CuPy's place, with GPUs of a compute capability."""
    yield lambda capability: cupy_stand_in.install(monkeypatch, capability)
    cupy_stand_in.forget()


OPERATIONS: dict[str, Callable[[Arrays, Ndarray], Ndarray]] = {
    "reshape": lambda arrays, x: arrays.reshape(x, (1, 1)),
    "all": lambda arrays, x: arrays.all(x),
    "any": lambda arrays, x: arrays.any(x),
    "and_not": lambda arrays, x: arrays.and_not(x, x),
    "contiguous": lambda arrays, x: arrays.contiguous(x),
    "zeros": lambda arrays, x: arrays.zeros((2,), x),
    "where": lambda arrays, x: arrays.where(x, 0.0, x),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_the_layer_does_runs_where_the_array_lies(
    operation: str, install: Callable[[str], None]
) -> None:
    install("90")
    arrays = importlib.import_module("fullattention.backends.cupy_arrays").ARRAYS
    OPERATIONS[operation](arrays, Ndarray(device=1))
    assert LOG
    assert {device for _, device in LOG} == {1}
    assert Device.current == 0


@pytest.mark.parametrize("backend", ["cupy_matmul:backend", "cupy_fused:backend"])
@pytest.mark.parametrize(("capability", "lacking"), [("75", True), ("80", False), ("90", False)])
def test_bfloat16_needs_a_gpu_that_rounds_to_it(
    backend: str, capability: str, lacking: bool, install: Callable[[str], None]
) -> None:
    install(capability)
    module, _, function = backend.partition(":")
    found = getattr(importlib.import_module(f"fullattention.backends.{module}"), function)("cuda")
    assert ("bfloat16" in found.lacks) == lacking
    assert ("bfloat16" in found.precision) != lacking
    if lacking:
        assert "capability 7.5" in found.lacks["bfloat16"]


@pytest.mark.parametrize("backend", ["cupy_matmul:backend", "cupy_fused:backend"])
@pytest.mark.parametrize(
    ("version", "helped", "why"),
    [("13.6.0", True, "CuPy 13.6.0 has none"), ("14.0.1", False, "ml_dtypes, which is not")],
)
def test_bfloat16_needs_a_cupy_that_has_it(
    backend: str,
    version: str,
    helped: bool,
    why: str,
    install: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cupy_stand_in, "VERSION", [version])
    install("90")
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: find(name) if helped else None)
    module, _, function = backend.partition(":")
    found = getattr(importlib.import_module(f"fullattention.backends.{module}"), function)("cuda")
    assert why in found.lacks["bfloat16"]
    assert "bfloat16" not in found.precision


@pytest.mark.parametrize(("strides", "address"), [((33, 5, 8, 4), 256), ((32, 16, 8, 4), 258)])
def test_cublas_gets_no_array_whose_elements_it_cannot_load(
    strides: tuple[int, ...], address: int, install: Callable[[str], None]
) -> None:
    install("90")
    attend: Any = cupy_matmul.backend("cuda").attend
    right, wrong = Ndarray(strides=(32, 16, 8, 4)), Ndarray(strides=strides, address=address)
    with pytest.raises(UnsupportedError, match=r"v lies at .* multiples of its element's 4"):
        attend(right, right, wrong)


@pytest.mark.parametrize("version", ["13.6.0", "14.0.1"])
@pytest.mark.parametrize("stream", [0, 7])
def test_kernels_for_torch_run_on_its_stream_of_the_tensors_device(
    version: str, stream: int, install: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(cupy_stand_in, "VERSION", [version])
    install("90")
    fused: Any = importlib.import_module("fullattention.backends.cupy_fused")
    ran: list[tuple[int | None, int]] = []
    monkeypatch.setattr(
        fused,
        "_launch",
        lambda launch, call: ran.append((cupy_stand_in.ExternalStream.current, Device.current)),
    )
    current = SimpleNamespace(cuda_stream=stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    fused.TorchRuntime().launch(None, None, SimpleNamespace(get_device=lambda: 1))
    assert ran == [(stream, 1)]
    assert (cupy_stand_in.ExternalStream.current, Device.current) == (None, 0)
