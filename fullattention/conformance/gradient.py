"""Checks of the contract's section gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fullattention.backends.interface import Array, Sizes
from fullattention.conformance import addresses, masks
from fullattention.conformance.case import (
    DISTINCT,
    Case,
    Failed,
    Refused,
    answer,
    compare,
    exact,
    expected_of,
    judge,
    layer_for,
    put,
    put_mask,
)
from fullattention.conformance.check import Check, Checks, Trial, case_check
from fullattention.conformance.combinations import HIDING, LAYOUTS, combined
from fullattention.conformance.core import ones_of
from fullattention.conformance.covering import covering
from fullattention.conformance.data import numpy_dtype
from fullattention.conformance.gradient_bound import (
    Gradients,
    exact_gradients,
    gradient_bound,
)
from fullattention.conformance.oracle import exact_attention
from fullattention.conformance.subject import Subject
from fullattention.machine.threads import one_blas_thread

DROPOUT = 0.75
"""p and 1 - p differ, and 1 / (1 - p) is exact."""

EDGES = (1, 16, 33, 64, 65, 129)

TIMES = 10
"""That gradients are taken again."""

STEP = 1e-5
"""Of the central difference that second derivatives are compared with; its error is about 1e-9."""


def checks(dtype: str, primary: bool) -> Checks:
    """The section's checks for one dtype."""
    base = Case(dtype=dtype)
    masked = base.but(mask="random/BHLS")
    causal = base.but(shape=Sizes(2, 17, 17, 3, 11, 13), mask=masks.CAUSAL)
    for case in (base, masked, causal):
        yield _check("G1", "", case, through_out, quick=True)
        if dtype == "float64":
            yield _check("G1", "twice", case, _twice, quick=case is base, needs="double_backward")
    for regime in ("large", "value-offset", "one-hot", "tiny-values"):
        yield _check("G1", "", base.but(data=regime), through_out)
    yield _check("G2", "", base.but(weights=True), _through_weights, quick=True)
    for shape in (Sizes(3, 33, 33, 4, 8, 8), Sizes(2, 70, 97, 2, 16, 16)):
        ordered = "determinism deterministic_gradient"
        yield _check("C9", "twice", base.but(shape=shape), _deterministic, needs=ordered)
    for case in (base, masked):
        for name in "qkv":
            alone = functools.partial(_of_one, name=name)
            yield _check("G1", f"of {name} alone", case, alone, quick=case is base and primary)
        yield _check("G1", "of a sum", case, _of_sum, quick=primary)
        yield _check("G1", "of V heads first", case, _of_heads_first, quick=primary)
    yield from _combinations(dtype)
    if primary:
        yield from _sizes_and_layouts(base, causal)
        yield _check("G1", f"eval with p={DROPOUT}", base, _in_eval, quick=True, needs="arguments")
        yield from _with_dropout(base)
        yield from _through_masked_weights(base, causal)
        yield from _fully_hidden(base)
        yield from _empty(base)


def _sizes_and_layouts(base: Case, causal: Case) -> Checks:
    changes = [
        *(base.but(shape=Sizes(1, 9, S, 2, 8, 8)) for S in EDGES),
        *(causal.but(shape=Sizes(1, S, S, 2, 8, 8)) for S in EDGES),
        *(base.but(layout=layout) for layout in LAYOUTS[1:]),
        *(base.but(mask=mask) for mask in ("padding/B11S", "tail/S", "random/LS")),
        *(base.but(scale=scale) for scale in (0.0, 0.3, -0.3)),
    ]
    for case in changes:
        yield _check("G1", "", case, through_out)


def _fully_hidden(base: Case) -> Checks:
    for rows in ("nan", "zero"):
        case = base.but(mask="rows/B1LS", masked_rows=rows)
        yield _check("G3", "", case, through_out, quick=True, needs=f"masked_rows={rows}")


def _empty(base: Case) -> Checks:
    for axis in "BLSHD":
        case = base.but(shape=DISTINCT._replace(**{axis: 0}))
        yield _check("G1", "empty", case, _of_nothing, quick=True)
        if axis != "D":
            yield _check("G2", "empty", case.but(weights=True), _of_no_weights, quick=True)


def _with_dropout(base: Case) -> Checks:
    shape = DISTINCT._replace(D=DISTINCT.S)
    square = Sizes(2, 9, 9, 3, 8, 9)
    for case in (
        base.but(shape=shape),
        base.but(shape=shape, mask="random/BHLS"),
        base.but(shape=square, mask=masks.CAUSAL),
    ):
        yield _check("G1", f"p={DROPOUT}", case, _dropped, quick=True, needs="dropout")
    # Beyond a tile of keys, and of features.
    for shape in (Sizes(1, 20, 100, 2, 8, 100), Sizes(2, 5, 7, 3, 72, 7)):
        yield _check("G1", f"p={DROPOUT}", base.but(shape=shape), _dropped, needs="dropout")
    returned = base.but(weights=True)
    yield _check("G2", f"p={DROPOUT}", returned, _dropped, quick=True, needs="dropout")
    for case in (returned.but(mask="random/BHLS"), returned.but(shape=Sizes(1, 20, 150, 2, 8, 8))):
        yield _check("G2", f"p={DROPOUT}", case, _dropped, needs="dropout")
    for mask, layout, E, scale in covering(HIDING, LAYOUTS[:3], (11, 64), (None, 0.7)):
        case = combined(base.dtype, mask, layout, (6, 9), (E, 9)).but(scale=scale)
        yield _check("G1", f"p={DROPOUT}", case, _dropped, needs="dropout")
        yield _check("G2", f"p={DROPOUT}", case.but(weights=True), _dropped, needs="dropout")


def _combinations(dtype: str) -> Checks:
    """The kinds of calls as in the forward pass, through V and through the weights."""
    traits = (
        HIDING,
        LAYOUTS[:3],
        ((6, 9), (20, 70), (64, 64)),
        ((11, 13), (64, 64), (80, 24)),
        (None, 0.7),
    )
    for *row, scale in covering(*traits):
        case = combined(dtype, *row).but(scale=scale)
        yield _check("G1", "", case, through_out)
        yield _check("G2", "", case.but(weights=True), _through_weights)


def _through_masked_weights(base: Case, causal: Case) -> Checks:
    for case in (base.but(mask="random/BHLS"), causal, base.but(mask="padding/B11S")):
        yield _check("G2", "", case.but(weights=True), _through_weights)


def _check(
    requirement: str,
    label: str,
    case: Case,
    trial: Trial,
    *,
    quick: bool = False,
    needs: str = "",
) -> Check:
    return case_check(
        requirement,
        case,
        trial,
        f"gradient {label}".strip(),
        quick=quick,
        needs=f"gradient {needs}",
    )


def _cotangents(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of a loss by V (B, L, H, D) and by the weights (B, H, L, S)."""
    B, L, S, H, _, D = case.shape
    rng = np.random.default_rng([case.seed, 99])
    kind = numpy_dtype(case.dtype)
    return (
        rng.standard_normal((B, L, H, D)).astype(kind),
        rng.standard_normal((B, H, L, S)).astype(kind),
    )


def _differentiated(
    subject: Subject,
    function: Callable[..., Any],
    arrays: tuple[Array, ...],
    cotangents: tuple[np.ndarray | None, ...],
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Results of a function and the gradients of their inner product with the cotangents."""
    vjp = subject.arrays.vjp
    if vjp is None:
        raise Refused(f"gradient: arrays of {subject.arrays.library} are not differentiable")
    given = tuple(
        None if array is None else subject.arrays.put(array, subject.device) for array in cotangents
    )
    return vjp(function, arrays, given)


def _gradients(
    subject: Subject,
    case: Case,
    cotangents: tuple[np.ndarray, np.ndarray | None],
    *,
    dropout: float = 0.0,
) -> Gradients:
    """The candidate's gradients of q, k and v, where the results themselves are right too.

    What is to be differentiated may take another forward pass than what is not.
    """
    layer = layer_for(subject, case, dropout=dropout)
    mask = put_mask(subject, case)
    results, got = _differentiated(
        subject, lambda q, k, v: layer(q, k, v, mask), put(subject, case), cotangents
    )
    judge(answer(subject, case, results), expected_of(subject, case))
    return _taken(subject, got)


def _taken(subject: Subject, gradients: Iterable[Array]) -> Gradients:
    return Gradients(*(subject.arrays.take(array).astype(np.float64) for array in gradients))


@one_blas_thread()
def _judge(
    subject: Subject,
    case: Case,
    got: Gradients,
    g_out: np.ndarray,
    g_weights: np.ndarray | None,
    keep: np.ndarray | float = 1.0,
    of: str = "qkv",
) -> float:
    g_out = g_out.astype(np.float64)
    g_weights = None if g_weights is None else g_weights.astype(np.float64)
    hidden = masks.hidden_by(case.mask, case.shape, case.seed)
    forward = exact(case)
    want = exact_gradients(forward, g_out, g_weights, hidden=hidden, keep=keep)
    bound = gradient_bound(
        forward, g_out, g_weights, subject.precision[case.dtype], hidden=hidden, keep=keep
    )
    axes = {"q": "blhe", "k": "bshe", "v": "bshd"}
    return max(
        compare(f"gradient of {name}", axes[name], getattr(got, name), getattr(want, name), limit)
        for name, limit in zip("qkv", bound, strict=True)
        if name in of
    )


def through_out(subject: Subject, case: Case) -> float:
    """Gradients of a loss through V.

    Raises:
        Failed: one lies beyond its bound.
    """
    g_out, _ = _cotangents(case)
    return _judge(subject, case, _gradients(subject, case, (g_out, None)), g_out, None)


def _of_one(subject: Subject, case: Case, name: str) -> float:
    """One input is differentiated, the others are constants, as frozen or cached ones are."""
    g_out, _ = _cotangents(case)
    layer, mask = layer_for(subject, case), put_mask(subject, case)
    arrays = dict(zip("qkv", put(subject, case), strict=True))

    def forward(array: Array) -> Any:
        return layer(*(arrays | {name: array}).values(), mask)

    _, (got,) = _differentiated(subject, forward, (arrays[name],), (g_out, None))
    gradients = _taken(subject, (got, got, got))
    return _judge(subject, case, gradients, g_out, None, of=name)


def _of_sum(subject: Subject, case: Case) -> float:
    """The gradient that arrives is one number for all elements, often with strides of 0."""
    layer, mask = layer_for(subject, case), put_mask(subject, case)
    g_out = np.ones_like(_cotangents(case)[0])
    _, got = _differentiated(
        subject,
        lambda *arrays: (layer(*arrays, mask)[0].sum(),),
        put(subject, case),
        (np.ones((), g_out.dtype),),
    )
    return _judge(subject, case, _taken(subject, got), g_out, None)


def _of_heads_first(subject: Subject, case: Case) -> float:
    """The gradient that arrives is not contiguous, as that of a transposed V."""
    layer, mask = layer_for(subject, case), put_mask(subject, case)
    g_out, _ = _cotangents(case)
    _, got = _differentiated(
        subject,
        lambda *arrays: (subject.arrays.swapaxes(layer(*arrays, mask)[0], 1, 2),),
        put(subject, case),
        (np.ascontiguousarray(g_out.swapaxes(1, 2)),),
    )
    return _judge(subject, case, _taken(subject, got), g_out, None)


def _of_nothing(subject: Subject, case: Case) -> None:
    """A V that is empty, or the empty sum, depends on no input: all three gradients are zeros."""
    layer = layer_for(subject, case)
    arrays = tuple(ones_of(subject, case))
    g_out, _ = _cotangents(case)
    _, got = _differentiated(subject, lambda *arrays: layer(*arrays, None)[:1], arrays, (g_out,))
    _require_zeros(subject, arrays, got)


def _of_no_weights(subject: Subject, case: Case) -> None:
    """Likewise for weights of which there are none, and which values have no part in."""
    layer = layer_for(subject, case)
    q, k, v = ones_of(subject, case)
    _, g_weights = _cotangents(case)
    _, got = _differentiated(subject, lambda q, k: layer(q, k, v, None)[1:], (q, k), (g_weights,))
    _require_zeros(subject, (q, k), got)


def _require_zeros(
    subject: Subject, arrays: tuple[Array, ...], gradients: tuple[Array, ...]
) -> None:
    """Require that gradients are zeros, each of its array's shape.

    Raises:
        Failed: one is not.
    """
    for name, array, gradient in zip("qkv", arrays, gradients, strict=False):
        got = subject.arrays.take(gradient)
        if got.shape != tuple(array.shape):
            raise Failed(f"gradient of {name} has shape {got.shape}, not {tuple(array.shape)}")
        if got.any():
            raise Failed(f"gradient of {name} must be 0 where nothing depends on it")


def _deterministic(subject: Subject, case: Case) -> None:
    """The same gradients every time: sums over queries are where blocks of threads meet."""
    g_out, _ = _cotangents(case)
    first = _gradients(subject, case, (g_out, None))
    for _ in range(TIMES):
        again = _gradients(subject, case, (g_out, None))
        for name, before, after in zip("qkv", first, again, strict=True):
            if after.tobytes() != before.tobytes():
                raise Failed(f"the same input gave the gradient of {name} other bits")


def _through_weights(subject: Subject, case: Case) -> float:
    g_out, g_weights = _cotangents(case)
    got = _gradients(subject, case, (g_out, g_weights))
    return _judge(subject, case, got, g_out, g_weights)


def _in_eval(subject: Subject, case: Case) -> float:
    """Dropout is set but not in force: the backward pass must not drop either."""
    g_out, _ = _cotangents(case)
    got = _gradients(subject, case, (g_out, None), dropout=DROPOUT)
    return _judge(subject, case, got, g_out, None)


def _dropped(subject: Subject, case: Case) -> float:
    """The backward pass drops what the forward pass dropped.

    Which weights that are is read from those that are returned, or else from a call with the same
    seed and the identity as values.
    """
    g_out, g_weights = _cotangents(case)
    given = (g_out, g_weights if case.weights else None)
    layer = layer_for(subject, case, dropout=DROPOUT, training=True)
    mask = put_mask(subject, case)
    q, k, v = put(subject, case)

    def differentiated(values: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        subject.seed(5)
        return _differentiated(subject, lambda *arrays: layer(*arrays, mask), (q, k, values), given)

    (_, weights), got = differentiated(v)
    if not case.weights:
        identity = subject.arrays.put(addresses.identity(case.shape, case.dtype), subject.device)
        (weights, _), _ = differentiated(identity)
        weights = subject.arrays.swapaxes(weights, 1, 2)
    kept = subject.arrays.take(weights).astype(np.float64) != 0
    return _judge(subject, case, _taken(subject, got), *given, kept / (1 - DROPOUT))


def _twice(subject: Subject, case: Case) -> float:
    """The gradient of a gradient's inner product with a direction, against a central difference."""
    g_out, _ = _cotangents(case)
    rng = np.random.default_rng([case.seed, 7])
    forward = exact(case)
    direction = Gradients(
        *(rng.standard_normal(x.shape) for x in (forward.q, forward.k, forward.v))
    )
    layer = layer_for(subject, case)
    mask = put_mask(subject, case)

    def gradient(q: Array, k: Array, v: Array) -> tuple[Array, ...]:
        _, inner = _differentiated(
            subject, lambda *arrays: layer(*arrays, mask), (q, k, v), (g_out, None)
        )
        return inner

    _, got = _differentiated(subject, gradient, put(subject, case), direction)
    ahead, behind = (_gradients_at(case, direction, sign * STEP, g_out) for sign in (1, -1))
    worst = 0.0
    for name, second, up, down in zip("qkv", got, ahead, behind, strict=True):
        want = (up - down) / (2 * STEP)
        size = 1e-6 * max(abs(want).max(), 1.0)
        taken = subject.arrays.take(second)
        axes = "blhe" if name == "q" else "bshe"
        worst = max(worst, compare(f"second derivative by {name}", axes, taken, want, size))
    return worst


def _gradients_at(case: Case, direction: Gradients, step: float, g_out: np.ndarray) -> Gradients:
    """Exact gradients a step along a direction: their difference is a product with the Hessian."""
    here = exact(case)
    hidden = masks.hidden_by(case.mask, case.shape, case.seed)
    q, k, v = (
        array + step * along
        for array, along in zip((here.q, here.k, here.v), direction, strict=True)
    )
    moved = exact_attention(q, k, v, hidden=hidden, scale=here.scale)
    return exact_gradients(moved, g_out.astype(np.float64), hidden=hidden)
