"""2 to the power of a vector: the one function that softmax needs.

x = n + r with n the nearest integer; 2^r is a polynomial on [-1/2, 1/2] and 2^n is written into the
exponent's bits. The softmax hands over distances below a row's maximum and the factor that turns
them into binary logarithms, so that the product is rounded once, inside the fused subtraction.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from fullattention.backends.numba_cpu_kernels.vector import (
    Vector,
    as_integers,
    as_reals,
    build_fma,
    constant,
    fma,
    less,
    llvm_vector,
    select,
)

BIAS = {32: 127, 64: 1023}
"""Of the exponent, by the width of the format."""

MANTISSA = {32: 23, 64: 52}
"""Bits of the fraction, by the width of the format."""

COEFFICIENTS = {
    32: (
        0.693147214968165,
        0.24022652782906598,
        0.055503105505582365,
        0.009617692965263519,
        0.0013406644172903642,
        0.00015594683196357544,
    ),
    64: (
        0.6931471805599457,
        0.24022650695910097,
        0.05550410866479039,
        0.009618129107607004,
        0.001333355815344042,
        0.0001540353044156945,
        1.5252727384740497e-05,
        1.3215442676553934e-06,
        1.0180647844774275e-07,
        7.0725702206402865e-09,
        4.0780451108401167e-10,
    ),
}
"""Of r, r^2, ... in the polynomial nearest to 2^r, by relative error, among those that are exactly
1 at 0. Their own relative error is 2.6e-9 in float32 and 1.8e-17 in float64."""

EXP_ULP = 2.0
"""A figure that the error stays below, in units in the last place; a test measures it."""


def exp2(x: Any, factor: Any) -> Any:
    """2^(x * factor) for x * factor <= 0: exactly 1 at 0, exactly 0 below the normal numbers.

    -inf gives 0 and NaN gives NaN.
    """
    raise NotImplementedError("runs compiled only")


@overload(exp2)
def _exp2(x, factor):
    if not (isinstance(x, Vector) and isinstance(x.scalar, types.Float)):
        return None
    width = x.scalar.bitwidth
    bias, mantissa = BIAS[width], MANTISSA[width]
    # Adding this rounds to an integer, and leaves that integer plus the bias in the lowest bits.
    shift = 1.5 * 2.0**mantissa + bias
    lowest = 1.0 - bias
    polynomial = _polynomial(COEFFICIENTS[width])

    def compute(x, factor):
        shifted = fma(x, factor, constant(x, shift))
        n = shifted - constant(x, shift)
        r = fma(x, factor, n * constant(x, -1.0))
        bits = as_integers(shifted)
        power = as_reals(bits << constant(bits, mantissa))
        # A product, not a sum of bits: NaN must stay NaN.
        return select(less(n, constant(x, lowest)), constant(x, 0.0), polynomial(r) * power)

    return compute


def _polynomial(coefficients: tuple[float, ...]) -> Any:
    """An intrinsic: 1 + c1 r + c2 r^2 + ... by Horner's rule."""

    @intrinsic
    def evaluate(typingctx, r):
        kind = llvm_vector(r)

        def codegen(context, builder, signature, args):
            *rest, y = (ir.Constant(kind, [c] * r.lanes) for c in (1.0, *coefficients))
            for c in reversed(rest):
                y = build_fma(builder, r, y, args[0], c)
            return y

        return r(r), codegen

    return evaluate
