"""Vectors of a CPU's registers as values that Numba knows: one number in each lane.

Numba leaves vectorising to LLVM, which gives up on most loops that hold a running sum in an array.
Here a vector is a type of its own, so that a kernel says what stays in registers. What a kernel
does to a vector, it does to each lane alone: lanes meet in `total`, `largest` and `store_totals`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import (
    intrinsic,
    lower_builtin,
    models,
    register_jitable,
    register_model,
    type_callable,
)

WORD = ir.IntType(64)

FEATURES = llvm.get_host_cpu_features()
WIDTH = 64 if FEATURES.get("avx512f") else 32 if FEATURES.get("avx2") else 16
"""Bytes of a register."""

FUSED = llvm.get_process_triple().startswith(("aarch64", "arm64")) or FEATURES.get("fma", False)
"""Whether the CPU multiplies and adds with one rounding, as the exponential's argument needs."""


helper = functools.partial(
    njit, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
)
"""A function that only kernels call: without the wrappers that others need to call it."""


@intrinsic
def stay_apart(typingctx):
    """Keep the function that says so from being inlined: it would be compiled at each call."""

    def codegen(context, builder, signature, args):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen


inlined = functools.partial(njit, error_model="numpy", inline="always")
"""A function that is compiled only as a part of the one that calls it."""


def for_both(function):
    """Make a function `inlined` where kernels call it, and leave it as it is for Python."""
    return register_jitable(error_model="numpy", inline="always")(function)


def lanes_of(scalar: types.Type) -> int:
    """How many numbers of a type a register holds."""
    return int(WIDTH * 8 // scalar.bitwidth)


class Vector(types.Type):
    """A vector of `lanes` numbers; booleans are one bit each."""

    def __init__(self, scalar: types.Type, lanes: int) -> None:
        self.scalar, self.lanes = scalar, lanes
        super().__init__(name=f"Vector({scalar}, {lanes})")


def llvm_scalar(scalar: types.Type) -> ir.Type:
    """The LLVM type of one lane."""
    if scalar is types.boolean:
        return ir.IntType(1)
    if isinstance(scalar, types.Float):
        return ir.FloatType() if scalar.bitwidth == 32 else ir.DoubleType()
    return ir.IntType(scalar.bitwidth)


def llvm_vector(vector: Vector) -> ir.VectorType:
    """The LLVM type of a vector."""
    return ir.VectorType(llvm_scalar(vector.scalar), vector.lanes)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Vector) -> None:
        super().__init__(dmm, fe_type, llvm_vector(fe_type))


def at_pointer(pointer: types.CPointer) -> Vector:
    """The vector that a register takes from a pointer."""
    return Vector(pointer.dtype, lanes_of(pointer.dtype))


@intrinsic
def aligned(typingctx, array):
    """The first address in a 1-D array that is a multiple of 64, as a pointer to its numbers."""

    def codegen(context, builder, signature, args):
        data = context.make_array(array)(context, builder, args[0]).data
        address = builder.add(builder.ptrtoint(data, WORD), WORD(63))
        return builder.inttoptr(builder.and_(address, WORD(-64)), data.type)

    return types.CPointer(array.dtype)(array), codegen


@intrinsic
def after(typingctx, pointer, count):
    """The pointer to the number `count` numbers on."""

    def codegen(context, builder, signature, args):
        return builder.gep(args[0], [args[1]], inbounds=True)

    return pointer(pointer, types.intp), codegen


@intrinsic
def as_bits(typingctx, pointer):
    """The same address as a pointer to 32-bit unsigned integers."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(32).as_pointer())

    return types.CPointer(types.uint32)(pointer), codegen


@intrinsic
def lanes_at(typingctx, pointer):
    """How many numbers at a pointer one register holds."""

    def codegen(context, builder, signature, args):
        return WORD(lanes_of(pointer.dtype))

    return types.intp(pointer), codegen


def vector_place(builder: Any, vector: Vector, pointer: Any, index: Any) -> Any:
    """LLVM's pointer to the vector that begins `index` numbers after a pointer."""
    place = builder.gep(pointer, [index], inbounds=True)
    return builder.bitcast(place, llvm_vector(vector).as_pointer())


@intrinsic
def load(typingctx, pointer, index):
    """The vector that begins `index` numbers after a pointer."""
    vector = at_pointer(pointer)

    def codegen(context, builder, signature, args):
        place = vector_place(builder, vector, *args)
        return builder.load(place, align=vector.scalar.bitwidth // 8)

    return vector(pointer, types.intp), codegen


@intrinsic
def store(typingctx, pointer, index, value):
    """Write a vector `index` numbers after a pointer."""

    def codegen(context, builder, signature, args):
        place = vector_place(builder, value, args[0], args[1])
        builder.store(args[2], place, align=value.scalar.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(pointer, types.intp, value), codegen


def _broadcast(builder: Any, scalar: Any, vector: Vector) -> Any:
    kind = llvm_vector(vector)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.IntType(32)(0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), vector.lanes), [0] * vector.lanes)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), lanes)


def _splat(kind: types.Type | None) -> Any:
    @intrinsic
    def apply(typingctx, pointer, number):
        vector = Vector(kind or pointer.dtype, lanes_of(pointer.dtype))

        def codegen(context, builder, signature, args):
            scalar = context.cast(builder, args[1], number, vector.scalar)
            return _broadcast(builder, scalar, vector)

        return vector(pointer, number), codegen

    return apply


splat = _splat(None)
"""One number in every lane, as a vector that lies at a pointer of this kind."""

splat_bits = _splat(types.uint32)
"""One 32-bit unsigned integer beside each lane of such a vector."""


@intrinsic
def load_bits(typingctx, pointer, bits, index):
    """The 32-bit integers from `bits[index]` on, one beside each lane of a vector at `pointer`."""
    vector = Vector(types.uint32, lanes_of(pointer.dtype))

    def codegen(context, builder, signature, args):
        return builder.load(vector_place(builder, vector, args[1], args[2]), align=4)

    return vector(pointer, bits, types.intp), codegen


@intrinsic
def lane_numbers(typingctx, pointer):
    """0, 1, 2, ... beside the lanes of a vector at a pointer of this kind."""
    vector = Vector(types.uint32, lanes_of(pointer.dtype))

    def codegen(context, builder, signature, args):
        return ir.Constant(llvm_vector(vector), list(range(vector.lanes)))

    return vector(pointer), codegen


def _define_operator(symbol: Any, of_reals: str, of_integers: str) -> None:
    """Make a Python operator on two equal vectors one LLVM instruction."""

    @type_callable(symbol)
    def type_of(context):
        def result(x, y):
            return x if isinstance(x, Vector) and x == y else None

        return result

    @lower_builtin(symbol, Vector, Vector)
    def lower(context, builder, signature, args):
        real = isinstance(signature.return_type.scalar, types.Float)
        return getattr(builder, of_reals if real else of_integers)(*args)


_define_operator(operator.add, "fadd", "add")
_define_operator(operator.sub, "fsub", "sub")
_define_operator(operator.mul, "fmul", "mul")
_define_operator(operator.truediv, "fdiv", "")
_define_operator(operator.xor, "", "xor")
_define_operator(operator.lshift, "", "shl")
_define_operator(operator.rshift, "", "lshr")


@intrinsic
def fma(typingctx, x, y, z):
    """Lane by lane x * y + z, rounded once."""

    def codegen(context, builder, signature, args):
        return build_fma(builder, x, *args)

    return x(x, x, x), codegen


def build_fma(builder: Any, vector: Vector, x: Any, y: Any, z: Any) -> Any:
    """The instruction of `fma`, for intrinsics that consist of several."""
    kind = llvm_vector(vector)
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(kind, [kind] * 3),
        f"llvm.fma.v{vector.lanes}f{vector.scalar.bitwidth}",
    )
    return builder.call(function, [x, y, z])


def _comparison(build: Callable[[Any, Any, Any], Any]) -> Any:
    @intrinsic
    def apply(typingctx, x, y):
        def codegen(context, builder, signature, args):
            return build(builder, *args)

        return Vector(types.boolean, x.lanes)(x, y), codegen

    return apply


less = _comparison(lambda builder, x, y: builder.fcmp_ordered("<", x, y))
"""Where x < y; nowhere for NaN."""

below = _comparison(lambda builder, x, y: builder.icmp_unsigned("<", x, y))
"""Where the unsigned integer x < y."""


@intrinsic
def select(typingctx, condition, x, y):
    """The lanes of x where the condition holds, of y elsewhere."""

    def codegen(context, builder, signature, args):
        return builder.select(*args)

    return x(condition, x, x), codegen


@intrinsic
def maximum(typingctx, x, y):
    """The larger of x and y in each lane; y where x is NaN."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return x(x, x), codegen


@intrinsic
def as_integers(typingctx, x):
    """The bits of each lane as an unsigned integer of its width."""
    vector = Vector(types.uint32 if x.scalar.bitwidth == 32 else types.uint64, x.lanes)

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], llvm_vector(vector))

    return vector(x), codegen


@intrinsic
def as_reals(typingctx, x):
    """Each lane's bits as a floating-point number of its width."""
    vector = Vector(types.float32 if x.scalar.bitwidth == 32 else types.float64, x.lanes)

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], llvm_vector(vector))

    return vector(x), codegen


@intrinsic
def constant(typingctx, x, number):
    """A literal in every lane, as a vector like `x`."""

    def codegen(context, builder, signature, args):
        scalar = context.cast(builder, args[1], number, x.scalar)
        return _broadcast(builder, scalar, x)

    return x(x, number), codegen


def _reduction(name: str, start: float | None) -> Any:
    @intrinsic
    def apply(typingctx, x):
        def codegen(context, builder, signature, args):
            scalar, vector = llvm_scalar(x.scalar), llvm_vector(x)
            suffix = f"v{x.lanes}f{x.scalar.bitwidth}"
            first = [] if start is None else [scalar]
            kind = ir.FunctionType(scalar, [*first, vector])
            function = cgutils.get_or_insert_function(
                builder.module, kind, f"llvm.vector.reduce.{name}.{suffix}"
            )
            values = [*(ir.Constant(s, start) for s in first), args[0]]
            return builder.call(function, values, fastmath=("reassoc",))

        return x.scalar(x), codegen

    return apply


total = _reduction("fadd", -0.0)
"""The sum of the lanes."""

largest = _reduction("fmax", None)
"""The largest lane that is no NaN."""


@intrinsic
def store_totals(typingctx, pointer, index, x0, x1, x2, x3):
    """Write the sums of four vectors' lanes side by side, `index` numbers after a pointer."""

    def codegen(context, builder, signature, args):
        sums, apart = list(args[2:]), x0.lanes  # so many lanes are still to be added up
        while apart > 1:
            pairs = zip(sums[::2], sums[1::2], strict=True) if len(sums) > 1 else [sums * 2]
            sums = [_neighbours_added(builder, x, y) for x, y in pairs]
            apart //= 2
        count = min(x0.lanes, 4)
        for i, vector in enumerate(sums):
            lowest = ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(count)))
            low = builder.shuffle_vector(vector, vector, lowest)
            place = builder.gep(args[0], [builder.add(args[1], WORD(i * count))], inbounds=True)
            place = builder.bitcast(place, low.type.as_pointer())
            builder.store(low, place, align=x0.scalar.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(pointer, types.intp, x0, x0, x0, x0), codegen


def _neighbours_added(builder: Any, x: Any, y: Any) -> Any:
    """Sums of two neighbours each: those of x in the lower lanes, of y in the upper ones."""
    lanes = x.type.count
    kind = ir.VectorType(ir.IntType(32), lanes)
    even, odd = (ir.Constant(kind, list(range(i, 2 * lanes, 2))) for i in (0, 1))
    return builder.fadd(builder.shuffle_vector(x, y, even), builder.shuffle_vector(x, y, odd))
