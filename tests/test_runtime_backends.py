"""Inference runtimes and compilers as backends, beyond what the suite asks of every backend."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from textwrap import dedent

import numpy as np
import pytest

from fullattention import Backend, FullAttention, UnavailableError, load
from fullattention.backends.interface import Sizes
from fullattention.backends.registry import BUILT_IN
from fullattention.conformance import masks
from fullattention.conformance.case import Case, check_case
from fullattention.conformance.subject import from_backend
from fullattention.machine.threads import set_threads, threads_told

LIBRARIES = {
    "onnxruntime": "onnxruntime",
    "onnxruntime-attention": "onnxruntime",
    "openvino": "openvino",
    "jax": "jax",
    "jax-einsum": "jax",
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
        load(BUILT_IN[name])  # by its place, as what goes by the name may be built already


@pytest.mark.parametrize("mask", [masks.OFF, masks.CAUSAL, "random/BHLS", "rows/B1LS"])
def test_its_results_lie_within_the_bound_of_what_it_declares(backend: Backend, mask: str) -> None:
    subject = from_backend(backend)
    for dtype in backend.precision:
        case = Case(dtype=dtype, mask=mask, shape=Sizes(2, 7, 7, 3, 11, 5), data="large")
        assert check_case(subject, case.but(weights="weights" not in backend.lacks)) <= 1


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
    session = runtime.session(runtime.formula, variant, threads_told())
    assert session.get_session_options().intra_op_num_threads == count


def test_without_the_operator_the_backend_is_unavailable_in_the_librarys_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with an older library: it does not know what the graph asks for."""
    installed("onnxruntime-attention")
    from onnx import NodeProto, helper

    from fullattention.backends import onnxruntime_cpu as runtime

    def unknown(variant: runtime.Variant) -> Iterator[NodeProto]:
        yield helper.make_node("AttentionToCome", ["q_by_heads"], ["out_by_heads", "a"])

    monkeypatch.setattr(runtime, "operator", unknown)
    with pytest.raises(UnavailableError, match=r"onnxruntime \d.*AttentionToCome"):
        runtime.attention("cpu")


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
    compiled = runtime.compiled(variant, threads_told())
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


# JAX.


def test_float64_leaves_the_process_in_float32() -> None:
    backend = installed("jax-einsum")
    import jax

    assert answer(backend, 2, 5, "float64").dtype == np.float64
    assert not jax.config.jax_enable_x64
    assert jax.numpy.ones(3).dtype == np.float32


def test_a_row_whose_only_key_is_hidden_is_nan() -> None:
    """XLA's CPU compiler leaves such a row as it was in memory, if it is not told otherwise."""
    arrays = (backend := installed("jax-einsum")).arrays
    x = arrays.put(np.ones((2, 1, 3, 8), np.float32), "cpu")
    hidden = arrays.put(np.ones((1, 1), bool), "cpu")
    layer = FullAttention(attention_dropout=0.0, output_attention=True, backend=backend)
    assert all(np.isnan(arrays.take(one)).all() for one in layer(x, x, x, hidden))


@pytest.mark.parametrize(("dtype", "size"), [("float16", 2), ("bfloat16", 1)])
def test_jax_refuses_halves_as_is_said_of_it(dtype: str, size: int) -> None:
    """Else the backend could take them."""
    assert dtype in installed("jax").lacks
    import jax

    x = jax.numpy.ones((1, size, 1, size), dtype)
    with pytest.raises(Exception, match="16_F32"):
        jax.jit(jax.nn.dot_product_attention)(x, x, x)


def test_synchronize_waits_for_results_that_nobody_holds() -> None:
    arrays = installed("jax-einsum").arrays
    import jax

    x = arrays.put(np.full((700, 700), 1e-3, np.float32), "cpu")
    chain = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, y: y @ x, x))
    chain(x).block_until_ready()
    last = [chain(x) for _ in range(3)][-1]
    arrays.synchronize("cpu")
    assert last.is_ready()


@pytest.mark.parametrize("count", [1, 3])
def test_jax_makes_the_threads_that_were_set_before_its_first_array(count: int) -> None:
    installed("jax-einsum")
    if not sys.platform.startswith("linux"):
        pytest.skip("counts the threads that Linux lists")
    probe = f"""
        import time
        from pathlib import Path
        import numpy as np
        from fullattention import load
        from fullattention.machine.threads import set_threads, threads_told

        backend = load("jax-einsum")
        set_threads({count})
        backend.arrays.put(np.zeros(3), "cpu")
        time.sleep(1)  # a thread names itself, once it runs
        names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        print(sum("XLAEigen" in name for name in names))
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(probe)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == count


def test_an_array_without_strides_is_said_to_have_none() -> None:
    arrays = installed("jax").arrays
    buffer = arrays.put(np.arange(12.0, dtype=np.float32), "cpu")
    dense = arrays.strided(buffer, (2, 3), (3, 1), 4)
    assert arrays.take(dense).tolist() == [[4, 5, 6], [7, 8, 9]]
    with pytest.raises(ValueError, match="no strides"):
        arrays.strided(buffer, (2, 3), (1, 2), 0)
