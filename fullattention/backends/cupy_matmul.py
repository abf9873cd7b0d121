"""cuBLAS's batched products around one kernel of our own for the masked softmax."""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fullattention.backends.alignment import require_aligned
from fullattention.backends.cuda_errors import attributed
from fullattention.backends.cupy_kernels.kernels import ELEMENTS, STANDARD
from fullattention.backends.declared import DECLARED
from fullattention.backends.errors import UnavailableError
from fullattention.backends.interface import (
    Array,
    Backend,
    Shape,
    broadcast_strides,
    dtype_name,
)
from fullattention.backends.precision import (
    Precision,
    accumulator,
    standard,
    tensor_cores,
)
from fullattention.backends.staged import Stages, attend_in

NAME = "cupy-matmul"

WARP = 32
BLOCK = 256
"""Threads of a block, and of a row that is too long for a warp."""

MOST_KEPT = 8
"""Values of a row that a thread keeps; the compiler unrolls them, and takes its time for it."""

WHOLE_SUMS = 16
"""CuBLAS's CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION, which CuPy does not name."""

LARGEST_STEP = 2**31 - 1
"""Elements between two rows of a matrix, at most: cuBLAS takes a 32-bit number."""


@dataclass(frozen=True)
class Operand:
    """Matrices (rows, columns) in an array (B, H, rows, columns), as cuBLAS is told of them."""

    array: Array
    transposed: bool
    """Whether columns, not rows, lie one after another in memory."""
    step: int
    """Elements from one of them to the next."""
    start: int = 0
    """Bytes from the array's first element to the first matrix."""
    apart: int = 0
    """Elements from one matrix to the next."""


@dataclass(frozen=True, kw_only=True)
class Products:
    """One call of cuBLAS: `count` times left (m, k) times right (k, n) into (m, n)."""

    left: Operand
    right: Operand
    into: Operand
    m: int
    n: int
    k: int
    count: int


def operand(array: Array) -> Operand | None:
    """How cuBLAS can read an array in place; None where it cannot.

    Within a matrix one axis has to be dense and the other may not run backwards or stand still.
    """
    batch, head, row, column = (stride // array.itemsize for stride in array.strides)
    _, _, rows, columns = array.shape
    if batch < 0 or head < 0:
        return None
    for transposed, dense, next_one, length, count in (
        (False, column, row, columns, rows),
        (True, row, column, rows, columns),
    ):
        step = next_one if count > 1 else length  # a stride that is never taken may be any
        if (dense == 1 or length == 1) and length <= step <= LARGEST_STEP:
            return Operand(array, transposed, step)
    return None


def products(
    a: Array, b: Array, out: Array, contiguous: Callable[[Array], Array]
) -> Iterator[Products]:
    """The calls of cuBLAS that fill `out` (B, H, m, n) from `a` (B, H, m, k) and `b` (B, H, k, n).

    One, where batch and heads make one axis in each array; else cuBLAS takes the longer of the two
    and we the other. Copies would make them one, at the cost of another pass over the arrays.
    """
    left, right = (operand(x) or operand(contiguous(x)) for x in (a, b))
    into = operand(out)
    assert left is not None
    assert right is not None
    assert into is not None
    assert not into.transposed
    operands = (left, right, into)
    (B, H, m, n), k = out.shape, a.shape[-1]
    if all(x.array.strides[0] == H * x.array.strides[1] for x in operands):
        inner, outer, count = 1, 0, B * H
        starts = range(1)
    else:
        inner, outer = (0, 1) if B >= H else (1, 0)
        count, starts = (B, H)[inner], range((B, H)[outer])
    for index in starts:
        first, second, third = (
            replace(
                x,
                start=index * x.array.strides[outer],
                apart=x.array.strides[inner] // x.array.itemsize,
            )
            for x in operands
        )
        yield Products(left=first, right=second, into=third, m=m, n=n, k=k, count=count)


def lanes_and_kept(S: int) -> tuple[int, int]:
    """Threads for a row of S scores, and how many each keeps; 0: too many to keep."""
    lanes = min(_power_of_two(S), WARP) if S <= WARP * MOST_KEPT else BLOCK
    kept = _power_of_two(-(-S // lanes))
    return lanes, kept if kept <= MOST_KEPT else 0


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def compile_options(score: str, weight: str, S: int) -> tuple[str, ...]:
    """What the softmax kernel is compiled with, for rows of S scores."""
    lanes, kept = lanes_and_kept(S)
    return (
        f"-DScore={'double' if score == 'float64' else 'float'}",
        f"-DWEIGHT={ELEMENTS[weight]}",
        f"-DLANES={lanes}",
        f"-DKEPT={kept}",
    )


def source() -> str:
    """The softmax kernel in CUDA C++."""
    return (
        importlib.resources.files("fullattention.backends")
        .joinpath("cupy_kernels", "masked_softmax.cu")
        .read_text(encoding="utf-8")
    )


@functools.cache
def _kernel(options: tuple[str, ...]) -> Any:
    import cupy

    return cupy.RawKernel(source(), "masked_softmax", (STANDARD, *options))


@dataclass(frozen=True)
class SoftmaxLaunch:
    """One launch of the softmax kernel, in blocks of `BLOCK` threads."""

    options: tuple[str, ...]
    """What the kernel is compiled with."""
    blocks: int
    arguments: tuple[Any, ...]


def softmax_launch(
    scores: Array,
    weights: Array,
    *,
    hidden: Array | None,
    causal: bool,
    scale: float,
    dropout: float,
    uniform: Array | None,
) -> SoftmaxLaunch:
    """How the kernel is to fill `weights`; see `staged.Softmax` for the arguments."""
    B, H, L, S = scores.shape
    lanes, _ = lanes_and_kept(S)
    rows = B * H * L
    number = scores.dtype.type
    nothing, anywhere = np.uintp(0), (0, 0, 0, 0)
    mask = (
        (nothing, *anywhere)
        if hidden is None
        else (hidden, *broadcast_strides(hidden.shape, hidden.strides))
    )
    return SoftmaxLaunch(
        options=compile_options(dtype_name(scores), dtype_name(weights), S),
        blocks=-(-rows // (BLOCK // lanes)),
        arguments=(
            *(scores, weights, rows, H, L, S, number(scale), np.bool_(causal), *mask),
            *(nothing if uniform is None else uniform, number(dropout)),
        ),
    )


def _softmax(scores: Array, weights: Array, **options: Any) -> None:
    launch = softmax_launch(scores, weights, **options)
    _kernel(launch.options)((launch.blocks,), (BLOCK,), launch.arguments)


def _multiply(a: Array, b: Array, out: Array) -> None:
    import cupy
    from cupy.cuda import cublas, device, runtime

    kinds = {
        "float64": runtime.CUDA_R_64F,
        "float32": runtime.CUDA_R_32F,
        "float16": runtime.CUDA_R_16F,
        "bfloat16": runtime.CUDA_R_16BF,
    }

    def described(x: Operand) -> tuple[int, int, int, int]:
        return x.array.data.ptr + x.start, kinds[dtype_name(x.array)], x.step, x.apart

    inside = accumulator(dtype_name(a))
    compute = cublas.CUBLAS_COMPUTE_64F if inside == "float64" else cublas.CUBLAS_COMPUTE_32F
    one, zero = np.array(1, inside), np.array(0, inside)
    handle = device.get_cublas_handle()
    before = cublas.getMathMode(handle)
    # No TensorFloat-32, and no partial sums in a half type.
    cublas.setMathMode(handle, WHOLE_SUMS)
    try:
        for call in products(a, b, out, cupy.ascontiguousarray):
            # cuBLAS counts columns first, so that it sees everything transposed: out' = b' a'.
            cublas.gemmStridedBatchedEx(
                *(handle, int(call.right.transposed), int(call.left.transposed)),
                *(call.n, call.m, call.k),
                *(one.ctypes.data, *described(call.right), *described(call.left)),
                *(zero.ctypes.data, *described(call.into)),
                *(call.count, compute, cublas.CUBLAS_GEMM_DEFAULT),
            )
    finally:
        cublas.setMathMode(handle, before)


def _empty(shape: Shape, dtype: str) -> Array:
    import cupy

    return cupy.empty(shape, dtype)


def _uniform(shape: Shape) -> Array:
    import cupy

    return cupy.random.random_sample(shape, np.float32)


def precision(dtype: str) -> Precision:
    """Half types: tensor cores truncate in sums, and weights are stored between the stages."""
    return tensor_cores(standard(dtype), dtype)


def backend(device: str) -> Backend:
    """Batched matmul by cuBLAS on one device."""
    import cupy

    from fullattention.backends import cupy_arrays

    cupy_arrays.require_device(NAME, device)
    try:
        from cupy.cuda import cublas  # noqa: F401 - loads the library
    except ImportError as error:
        reason = f"CuPy finds no cuBLAS: {str(error).splitlines()[0]}"
        raise UnavailableError(NAME, reason) from error
    attend = attend_in(Stages(empty=_empty, multiply=_multiply, softmax=_softmax, uniform=_uniform))

    def attend_there(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array | None]:
        for name, array in (("q", q), ("k", k), ("v", v)):
            require_aligned(name, array.itemsize, array.data.ptr, array.strides)
        with q.device:
            return attend(q, k, v, **options)

    declared = DECLARED[NAME]
    missing = {**cupy_arrays.missing_dtypes(device), **cupy_arrays.unknown_dtypes()}
    return Backend(
        name=NAME,
        version=cupy.__version__,
        attend=attributed(NAME, attend_there),
        arrays=cupy_arrays.ARRAYS,
        device=device,
        seed=functools.partial(cupy_arrays.seed, device=device),
        precision={dtype: precision(dtype) for dtype in declared.dtypes if dtype not in missing},
        masked_rows="nan",
        lacks={**declared.lacks, **missing},
    )
