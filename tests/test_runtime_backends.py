"""Inference runtimes and compilers as backends, beyond what the suite asks of every backend."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest

from fullattention import Backend, FullAttention, UnavailableError, load
from fullattention.conformance.subject import from_backend
from fullattention.conformance.suite import judge_subject
from fullattention.machine.threads import set_threads
from tests.bench_fakes import threads_restored

__all__ = ["threads_restored"]

LIBRARIES = {
    "onnxruntime": "onnxruntime",
    "onnxruntime-attention": "onnxruntime",
    "openvino": "openvino",
}
"""Backend -> the library it runs on, whose extra has the same name."""

RNG = np.random.default_rng(5)


@pytest.fixture(params=LIBRARIES)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend whose library is installed."""
    return installed(request.param)


def installed(name: str) -> Backend:
    """A backend; the test is skipped only where its library is really absent."""
    if importlib.util.find_spec(LIBRARIES[name]) is None:
        with pytest.raises(UnavailableError, match=LIBRARIES[name]):
            load(name)
        pytest.skip(f"{LIBRARIES[name]} is not installed")
    return load(name)


def answer(backend: Backend, B: int, L: int, dtype: str = "float32") -> np.ndarray:
    """What the layer makes of random inputs."""
    x = backend.arrays.put(RNG.standard_normal((B, L, 3, 8)).astype(dtype), "cpu")
    out, _ = FullAttention(False, attention_dropout=0.0, backend=backend)(x, x, x, None)
    return backend.arrays.take(out)


@pytest.mark.parametrize("name", LIBRARIES)
def test_without_its_library_a_backend_names_the_extra(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = LIBRARIES[name]
    for module in [
        one for one in sys.modules if one.startswith(f"fullattention.backends.{library}")
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UnavailableError, match=rf"pip install 'fullattention\[{library}\]'"):
        load.__wrapped__(name)


def test_it_is_conformant_in_float32(backend: Backend) -> None:
    verdict = judge_subject(from_backend(backend), level="quick", dtypes=("float32",))
    assert [result.check for result in verdict.results if result.status == "failed"] == []
    assert verdict.conformant


def test_another_device_is_refused(backend: Backend) -> None:
    with pytest.raises(UnavailableError, match="nowhere"):
        load(backend.name, "nowhere")


# ONNX Runtime.


@pytest.mark.parametrize("name", ["onnxruntime", "onnxruntime-attention"])
def test_a_session_serves_every_shape(name: str) -> None:
    backend = installed(name)
    from fullattention.backends import onnxruntime_cpu

    answer(backend, 2, 5)
    before = onnxruntime_cpu.session.cache_info().misses
    answer(backend, 3, 17)
    assert onnxruntime_cpu.session.cache_info().misses == before


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("count", [1, 2])
def test_a_session_has_the_threads_that_were_set(count: int) -> None:
    installed("onnxruntime")
    from fullattention.backends import onnxruntime_cpu as runtime

    set_threads(count)
    variant = runtime.Variant("float32", False, False, False, False)
    session = runtime.session(runtime.formula, variant, runtime.threads_told())
    assert session.get_session_options().intra_op_num_threads == count


# OpenVINO.


def test_a_compiled_graph_serves_every_shape() -> None:
    backend = installed("openvino")
    from fullattention.backends import openvino_cpu

    answer(backend, 2, 5)
    before = openvino_cpu.compiled.cache_info().misses
    answer(backend, 3, 17)
    assert openvino_cpu.compiled.cache_info().misses == before


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("count", [1, 2])
def test_a_compiled_graph_has_the_threads_that_were_set_and_computes_in_float32(count: int) -> None:
    """On CPUs that have bfloat16, OpenVINO would by default compute in it."""
    installed("openvino")
    from fullattention.backends import openvino_cpu as runtime

    set_threads(count)
    variant = runtime.Variant("float32", masked=False, dropout=False, weights=False)
    compiled = runtime.compiled(variant, runtime.threads_told())
    assert compiled.get_property("INFERENCE_NUM_THREADS") == count
    assert compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"


def test_openvino_computes_float64_in_float32_as_is_said_of_it() -> None:
    lacks = installed("openvino").lacks
    from openvino import Core, Model, Type
    from openvino import opset13 as op

    assert "float32" in lacks["float64"]
    given = op.parameter([1], Type.f64)
    doubled = Core().compile_model(Model([op.exp(given)], [given], "exp"), "CPU")
    x = np.array([0.1])
    error = abs(doubled(x)[0] - np.exp(x)) / np.exp(x)
    assert 2.0**-40 < float(error[0]) < 2.0**-20
