"""`cupy-matmul` without a GPU: its array code runs on arrays that behave as CuPy's, its calls of
cuBLAS are carried out as they are described, and its kernel runs in emulation, or, where that would
take minutes, NumPy stands in for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fullattention.backends import cupy_matmul
from fullattention.backends.cupy_kernels.kernels import STANDARD
from fullattention.backends.cupy_matmul import Operand, products
from fullattention.backends.interface import Backend, dtype_name
from fullattention.backends.precision import DTYPES, accumulator
from fullattention.backends.staged import Softmax, Stages, attend_in
from fullattention.conformance.catalogue import catalogue
from fullattention.conformance.data import numpy_dtype
from fullattention.conformance.subject import from_backend
from fullattention.conformance.suite import judge_subject
from tests.cuda_settings import ARCHITECTURES
from tests.device_arrays import ARRAYS, DeviceArray, contiguous
from tests.emulation.softmax import EmulatedSoftmax
from tests.nvrtc import WHEEL, compile_for, is_installed
from tests.zoo.judging import first_failed

GENERATOR = [np.random.default_rng(0)]


class _Memory:
    """Some memory as an array, whatever it belongs to."""

    def __init__(
        self, address: int, itemsize: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "strides": tuple(stride * itemsize for stride in strides),
            "typestr": f"|V{itemsize}",
            "version": 3,
        }


def matrices(x: Operand, rows: int, columns: int, count: int) -> np.ndarray:
    """What cuBLAS sees of an operand (count, rows, columns)."""
    steps = (1, x.step) if x.transposed else (x.step, 1)
    address = x.array.host.ctypes.data + x.start
    shape = (count, rows, columns)
    memory = np.asarray(_Memory(address, x.array.itemsize, shape, (x.apart, *steps)))
    seen: np.ndarray = memory.view(x.array.dtype)
    return seen


def multiply(a: DeviceArray, b: DeviceArray, out: DeviceArray) -> None:
    inside = accumulator(dtype_name(a))
    for call in products(a, b, out, contiguous):
        left = matrices(call.left, call.m, call.k, call.count).astype(inside)
        right = matrices(call.right, call.k, call.n, call.count).astype(inside)
        matrices(call.into, call.m, call.n, call.count)[...] = left @ right


def softmax(
    scores: DeviceArray,
    weights: DeviceArray,
    *,
    hidden: DeviceArray | None,
    causal: bool,
    scale: float,
    dropout: float,
    uniform: DeviceArray | None,
) -> None:
    """What the kernel computes."""
    z = scores.host * scores.dtype.type(scale)
    if hidden is not None:
        z[np.broadcast_to(hidden.host, z.shape)] = -np.inf
    if causal:
        z[..., np.triu(np.ones(z.shape[-2:], bool), 1)] = -np.inf
    e = np.exp(z - np.fmax.reduce(z, axis=-1, keepdims=True))
    a = e / e.sum(-1, keepdims=True)
    if uniform is not None:
        a = np.where(uniform.host < dropout, 0, a / (1 - dropout) if dropout < 1 else a)
    weights.host[...] = a


def empty(shape: tuple[int, ...], dtype: str) -> DeviceArray:
    return DeviceArray(np.full(shape, np.nan, numpy_dtype(dtype)))


def uniform(shape: tuple[int, ...]) -> DeviceArray:
    return DeviceArray(GENERATOR[0].random(shape, np.float32))


def seed(value: int) -> None:
    GENERATOR[0] = np.random.default_rng(value)


def backend(softmax: Softmax) -> Backend:
    return Backend(
        name="cupy-matmul-on-numpy",
        attend=attend_in(Stages(empty=empty, multiply=multiply, softmax=softmax, uniform=uniform)),
        arrays=ARRAYS,
        device="cuda",
        seed=seed,
        precision={dtype: cupy_matmul.precision(dtype) for dtype in DTYPES},
        masked_rows="nan",
        lacks=dict.fromkeys(("gradient", "double_backward"), "the device does not differentiate"),
    )


def failures(softmax: Softmax, **options: Any) -> list[str]:
    with np.errstate(all="ignore"):
        verdict = judge_subject(from_backend(backend(softmax)), **options)
    assert any(result.status == "passed" for result in verdict.results)
    return [
        f"{result.check}: {result.detail}"
        for result in verdict.results
        if result.status in ("failed", "not run")
    ]


def convicted(softmax: Softmax) -> bool:
    """Whether a quick check fails."""
    with np.errstate(all="ignore"):
        checks = catalogue(("float32",), "quick")
        return first_failed(from_backend(backend(softmax)), checks) is not None


emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


@emulated
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_conformant_on_arrays_that_never_become_numpy(dtype: str) -> None:
    assert not failures(EmulatedSoftmax(), level="quick", dtypes=(dtype,))


LENGTHS = (1, 2, 3, 31, 32, 33, 64, 65, 255, 256, 257, 300, 511, 2048, 2049, 3000)
"""On both sides of each change of threads and of values kept."""


@emulated
@pytest.mark.parametrize("last_to_first", [False, True])
@pytest.mark.parametrize("S", LENGTHS)
def test_rows_of_every_length_are_right_in_either_order_of_threads(
    S: int, last_to_first: bool
) -> None:
    generator = np.random.default_rng(S)
    scores = generator.standard_normal((2, 1, 9, S))
    options: dict[str, Any] = {
        "hidden": DeviceArray(generator.random((2, 1, 1, S)) < 0.3),
        "causal": S > 9,
        "scale": 1.5,
        "dropout": 0.25,
        "uniform": DeviceArray(generator.random(scores.shape, np.float32)),
    }
    want, got = (DeviceArray(np.full(scores.shape, 9.0)) for _ in range(2))
    with np.errstate(invalid="ignore"):
        softmax(DeviceArray(scores.copy()), want, **options)
    EmulatedSoftmax(reversed=last_to_first)(DeviceArray(scores.copy()), got, **options)
    assert np.allclose(got.host, want.host, rtol=1e-13, atol=0, equal_nan=True)


FAULTS = {
    "no barrier before others' sums are read": (
        "of_warp[threadIdx.x / 32] = x;\n    __syncthreads();",
        "of_warp[threadIdx.x / 32] = x;",
    ),
    "threads without a row leave early": (
        "const bool inside = row < rows;",
        "const bool inside = true; if (row >= rows) return;",
    ),
    "the last key is dropped": ("s < S)", "s < S - 1)"),
    "the mask's batch stride is dropped": ("hidden + b * hidden_b", "hidden + 0 * hidden_b"),
    "a row sees its own maximum only": ("largest = combined<Larger>(largest);", ""),
}


@emulated
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_of_the_kernel_is_convicted(fault: str) -> None:
    old, new = FAULTS[fault]
    kernel = cupy_matmul.source()
    assert old in kernel
    faulty = kernel.replace(old, new)
    assert any(convicted(EmulatedSoftmax(reversed=order, kernel=faulty)) for order in (False, True))


@pytest.mark.skipif(not is_installed(), reason=f"{WHEEL} is not installed")
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    ("score", "weight", "S"),
    [
        *(("float32", weight, 96) for weight in ("float32", "float16", "bfloat16")),
        *(("float64", "float64", S) for S in (7, 257, 2049)),
        ("float32", "float16", 5000),
    ],
)
def test_the_kernel_compiles_and_spills_nothing(score: str, weight: str, S: int, arch: str) -> None:
    options = (STANDARD, *cupy_matmul.compile_options(score, weight, S))
    assert compile_for(cupy_matmul.source(), arch, options)["masked_softmax"].spilled == 0


@pytest.mark.parametrize("requirement", ["C4", "M4", "P", "L1"])
def test_array_code_meets_every_layout_mask_and_count_of_the_standard_level(
    requirement: str,
) -> None:
    assert not failures(softmax, level="standard", dtypes=("float32",), only=requirement)


def test_rows_of_any_length_have_threads_for_every_key() -> None:
    for S in (*range(1, 300), 1000, 2047, 2048, 2049, 65_537):
        lanes, kept = cupy_matmul.lanes_and_kept(S)
        assert lanes <= cupy_matmul.BLOCK
        assert cupy_matmul.BLOCK % lanes == 0
        assert kept == 0 or lanes * kept >= S


def test_arrays_that_cublas_can_read_are_not_copied() -> None:
    def refuse(array: DeviceArray) -> DeviceArray:
        raise AssertionError("copied")

    q = DeviceArray(np.zeros((5, 4, 3, 8), np.float32))
    scores = empty((5, 3, 4, 4), "float32")
    heads_first = q.transpose(0, 2, 1, 3)
    assert len(list(products(heads_first, q.transpose(0, 2, 3, 1), scores, refuse))) == 3
    dense = DeviceArray(np.zeros((5, 3, 4, 8), np.float32))
    assert len(list(products(dense, dense.transpose(0, 1, 3, 2), scores, refuse))) == 1


MIXING: dict[str, Callable[[Any], object]] = {
    "asarray": np.asarray,
    "ufunc": np.exp,
    "function": np.concatenate,
    "iteration": list,
    "truth": bool,
    "operator": lambda x: np.ones(3) + x,
    "put": lambda x: ARRAYS.put(x, "cuda"),
    "assignment": lambda x: x.__setitem__(0, np.ones(())),
}


@pytest.mark.parametrize("name", MIXING)
def test_arrays_of_the_device_refuse_what_would_mix_them_with_numpy(name: str) -> None:
    with pytest.raises(TypeError):
        MIXING[name](DeviceArray(np.ones(3)))
