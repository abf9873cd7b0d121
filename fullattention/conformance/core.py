"""Checks of the contract's section core: form of the result, memory, sizes, refusals, state."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from fullattention.backends.errors import UnsupportedError
from fullattention.backends.interface import Array, Sizes
from fullattention.backends.precision import DTYPES
from fullattention.conformance import addresses, layouts, masks
from fullattention.conformance.bound import Expected, attention_bound
from fullattention.conformance.case import (
    DISTINCT,
    Answer,
    Case,
    Failed,
    Refused,
    answer,
    called,
    compare,
    expected_of,
    inputs,
    judge,
    judged,
    layer_for,
    put,
    put_mask,
    run,
    trained_layer,
)
from fullattention.conformance.check import Check, Checks, Evidence, case_check
from fullattention.conformance.data import numpy_dtype
from fullattention.conformance.subject import Subject
from fullattention.layer import resolve_scale

CALLS = 40
"""More than the number of calls after which any known stateful fault shows."""

TELLING = re.compile(
    r"(?i)\d|\b(q|k|v|query|queries|keys?|values?|(attn_)?mask|scale|(attention_)?dropout|shapes?"
    r"|dtypes?|bool|int|long|half|float|double|complex\w*)\b"
)
"""Part of a message that names an argument, a size or a dtype."""


def checks(dtype: str, primary: bool) -> Checks:
    """The section's checks for one dtype; form, refusals and state are tried in the primary one.

    Half types take kernels of their own: what sums in any order, or shares memory among threads,
    may do so there alone.
    """
    base = Case(dtype=dtype)
    yield case_check("C1", base, quick=True)
    yield case_check("C1", base.but(shape=Sizes(3, 7, 5, 2, 13, 11)), quick=True)
    yield from _gathers(base)
    yield from _layouts(base, quick=primary)
    yield from _sizes(base, quick=primary)
    yield from _repetition(base, quick=primary)
    if not primary:
        return
    yield from _form(base)
    yield from _memory(base)
    yield case_check("C5", base.but(shape=Sizes(1, 520, 776, 1, 8, 2)))  # many tiles both ways
    yield from _empty(base)
    yield from _refusals(base)
    yield from _state(base)


# Exact cases: the output is the address that was read.


def _gathers(base: Case) -> Checks:
    case = base.but(shape=Sizes(3, 11, 16, 5, 8, 6), scale=addresses.GATHER_SCALE)
    for axis in "bshd":
        trial = functools.partial(gather, axis=axis)
        yield case_check("C1", case, trial, f"gather-{axis}", quick=True)


def gather(subject: Subject, case: Case, *, axis: str, size: float = 1.0) -> None:
    """Each query matches one key exactly; the values hold their own index along an axis.

    Keys are the bits of a number as +-1, so every other key scores at least 2 less; times a large
    scale that is beyond what exp can see in any precision, and the weights are exactly 0 and 1.

    Raises:
        Failed: V is not exactly the values that were to be read.
    """
    q, k, v = addresses.gather(case.shape, case.dtype, axis, case.seed, size=size)
    targets = np.einsum("blhe,bshe->blhs", q.astype(np.float64), k.astype(np.float64)).argmax(-1)
    want = np.take_along_axis(v.astype(np.float64), targets[..., None], axis=1)
    layer = layer_for(subject, case)
    arrays = (subject.arrays.put(array, subject.device) for array in (q, k, v))
    got = answer(subject, case, layer(*arrays, None)).out.astype(np.float64)
    if not np.array_equal(got, want):
        b, row, h, d = (int(i) for i in np.argwhere(~(got == want))[0])
        raise Failed(
            f"V(b={b}, l={row}, h={h}, d={d}) read {axis}={got[b, row, h, d]:g} of the values "
            f"instead of {axis}={want[b, row, h, d]:g}"
        )


# Form of the call and of what it returns.


def _form(base: Case) -> Checks:
    yield case_check("C1", base, contiguous, "contiguous", quick=True)
    yield case_check("C1", base.but(shape=Sizes(3, 1, 4, 5, 8, 8)), contiguous, "contiguous")
    # What returns weights is often another kernel: it must stand many tiles, hidden ones too.
    long = base.but(mask="band/LS", shape=Sizes(1, 300, 300, 2, 8, 8))
    for case in (*(base.but(mask=m) for m in (masks.OFF, "random/B1LS", "rows/B1LS")), long):
        case = case.but(weights=True)
        yield case_check("C2", case, quick=True)
        yield case_check("C2", case, _same_without_weights, "same V with and without weights")
    causal = base.but(shape=Sizes(2, 6, 6, 3, 8, 8), mask=masks.CAUSAL)
    yield case_check(
        "C2", causal, _by_default, "constructor's defaults", quick=True, needs="arguments"
    )
    for name, value in (("factor", 1), ("tau", 7.5), ("delta", 7.5)):
        yield case_check(
            "C7",
            base,
            functools.partial(_no_effect, name=name, value=value),
            f"{name}={value}",
            quick=True,
            needs="arguments",
        )


def contiguous(subject: Subject, case: Case, *, p: float = 0.0) -> None:
    """V lies in C order, in training where p, the dropout, is not 0.

    Raises:
        Failed: it does not.
    """
    out, _ = trained_layer(subject, case, p)(*put(subject, case), put_mask(subject, case))
    if subject.arrays.contiguous(out) is not out:
        raise Failed("V is not contiguous")


def _same_without_weights(subject: Subject, case: Case) -> float:
    want = expected_of(subject, case)
    got = run(subject, case)
    without = run(subject, case.but(weights=False)).out
    return max(
        judge(got, want),
        compare("V without weights", "blhd", without, got.out.astype(np.float64), want.out_bound),
    )


def _by_default(subject: Subject, case: Case) -> float:
    """Without arguments the layer is causal, scales by 1 / sqrt(E) and returns no weights."""
    layer = subject.build(masked_rows=case.masked_rows)
    layer.eval()
    return judged(subject, layer, case)


def _no_effect(subject: Subject, case: Case, name: str, value: Any) -> float:
    q, k, v = put(subject, case)
    if name == "factor":
        layer = subject.build(
            mask_flag=False,
            factor=value,
            scale=None,
            attention_dropout=0.0,
            output_attention=False,
            masked_rows=case.masked_rows,
        )
        layer.eval()
        returned = layer(q, k, v, None)
    else:
        filled = subject.arrays.put(np.full((case.shape.B, 1), value), subject.device)
        returned = layer_for(subject, case)(q, k, v, None, **{name: filled})
    return judge(answer(subject, case, returned), expected_of(subject, case))


# Memory.


def _memory(base: Case) -> Checks:
    yield case_check("C3", base, inputs_unchanged, "inputs unchanged", quick=True)
    masked = base.but(mask="random/B1LS")
    yield case_check("C3", masked, inputs_unchanged, "inputs unchanged", quick=True)
    for case in (base, masked):
        yield case_check("C3", case, read_only, "read-only inputs", quick=True)
    square = base.but(shape=Sizes(2, 6, 6, 3, 8, 8))
    causal = square.but(mask=masks.CAUSAL)
    yield case_check("C3", causal, _one_array, "q, k, v the same array", quick=True)
    one_key = base.but(shape=Sizes(2, 1, 1, 3, 8, 8))
    yield case_check("C3", one_key, no_alias, "V shares no memory", quick=True)
    yield case_check("C3", square, no_alias, "V shares no memory")


def _layouts(base: Case, *, quick: bool) -> Checks:
    """Kernels load in units that depend on the dtype, so this is tried in each."""
    usual = ("heads-first", "packed", "every-other", "shared-heads")
    for layout in layouts.LAYOUTS:
        if layout == "contiguous":
            continue
        plain = layout == "heads-first" or (quick and layout in usual)
        yield case_check("C4", base.but(layout=layout), quick=plain)
        for on in "qkv":
            yield case_check("C4", base.but(layout=layout, on=on))
        yield case_check("C4", base.but(layout=layout, mask="random/BHLS"))
        yield case_check("C4", base.but(layout=layout, shape=Sizes(2, 40, 40, 3, 8, 8)))


def inputs_unchanged(subject: Subject, case: Case, *, p: float = 0.0) -> None:
    """Neither inputs nor mask are written to, in training where p, the dropout, is not 0.

    Raises:
        Failed: one is.
    """
    arrays = put(subject, case)
    mask = put_mask(subject, case)
    held = getattr(mask, "mask", mask) if mask is not None else None
    before = [subject.arrays.take(array) for array in (*arrays, held) if array is not None]
    trained_layer(subject, case, p)(*arrays, mask)
    after = [subject.arrays.take(array) for array in (*arrays, held) if array is not None]
    for name, old, new in zip(("queries", "keys", "values", "mask"), before, after, strict=False):
        if old.tobytes() != new.tobytes():
            raise Failed(f"forward changed {name} in place")


def read_only(subject: Subject, case: Case) -> float:
    """Arrays that forbid writing, as those of a file mapped into memory do.

    Raises:
        Failed: the answer is wrong.
        Refused: the library's arrays cannot forbid it.
    """
    arrays, mask = put(subject, case), put_mask(subject, case)
    for array in (*arrays, getattr(mask, "mask", mask)):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
        elif array is not None:
            raise Refused(f"arrays of {subject.arrays.library} have no flag that forbids writing")
    got = answer(subject, case, layer_for(subject, case)(*arrays, mask))
    return judge(got, expected_of(subject, case))


def _one_array(subject: Subject, case: Case) -> float:
    q = inputs(case)[0]
    x = layouts.place(subject.arrays, q, "contiguous", subject.device)
    got = answer(subject, case, layer_for(subject, case)(x, x, x, None))
    if subject.arrays.take(x).tobytes() != q.tobytes():
        raise Failed("forward changed its input in place when q, k and v are one array")
    return judge(got, _expected_for(subject, case, q, q, q))


def _expected_for(
    subject: Subject, case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray
) -> Expected:
    """What a case must give for other inputs than its own."""
    return attention_bound(
        *(q, k, v),
        hidden=masks.hidden_by(case.mask, case.shape, case.seed),
        scale=resolve_scale(case.scale, case.shape.E),
        precision=subject.precision[case.dtype],
    )


def no_alias(subject: Subject, case: Case, *, p: float = 0.0) -> None:
    """V stays as it is when the inputs are edited, in training where p, the dropout, is not 0.

    Raises:
        Failed: it does not.
    """
    arrays = put(subject, case)
    out, _ = trained_layer(subject, case, p)(*arrays, put_mask(subject, case))
    before = subject.arrays.take(out)
    for array in arrays:
        overwrite(array, 77.0)
    if subject.arrays.take(out).tobytes() != before.tobytes():
        raise Failed("V changes when an input is edited afterwards: they share memory")


def overwrite(array: Array, value: Any) -> None:
    """Edit an array in place.

    Raises:
        Refused: the library's arrays cannot be edited.
    """
    try:
        array[...] = value
    except TypeError as error:
        raise Refused(f"arrays cannot be edited in place: {error}") from error


# Sizes.


def _sizes(base: Case, *, quick: bool) -> Checks:
    """Tiles depend on the dtype, so this is tried in each."""
    for n in range(1, 21):
        square = base.but(shape=Sizes(2, n, n, 3, 11, 13))
        yield case_check("C5", square, quick=quick and n in (1, 2, 8, 17))
        yield case_check("C5", base.but(shape=Sizes(2, n, 21 - n, 3, 8, 8)))
        features = base.but(shape=Sizes(2, 5, 7, 3, n, 21 - n))
        yield case_check("C5", features, quick=quick and n in (1, 9))
    for edge in (16, 32, 64, 128, 256):
        for n in (edge - 1, edge, edge + 1):
            usual = quick and n in (33, 64, 127)
            keys = base.but(shape=Sizes(2, 9, n, 2, 8, 8))
            yield case_check("C5", keys, quick=usual)
            yield case_check("C5", keys.but(data="staircase"))
            yield case_check("C5", base.but(shape=Sizes(2, n, 7, 2, 8, 8)), quick=usual)
    for shape in (
        Sizes(1, 1, 1, 1, 1, 1),
        Sizes(1, 1, 33, 1, 4, 4),
        Sizes(5, 1, 1, 7, 8, 8),
        Sizes(7, 6, 6, 11, 8, 8),
        Sizes(8, 6, 6, 2, 8, 8),  # B = E = D: swaps typecheck
        Sizes(4, 4, 4, 4, 4, 4),
        Sizes(1, 130, 130, 1, 64, 64),
        # One axis longer than a block of threads, or than a kernel's largest head.
        Sizes(1, 1025, 3, 2, 4, 4),
        Sizes(1, 3, 1025, 2, 8, 8),
        Sizes(1, 6, 6, 1, 257, 3),
        Sizes(1, 6, 6, 1, 3, 257),
        Sizes(257, 3, 4, 2, 2, 2),
        Sizes(2, 3, 4, 257, 2, 2),
    ):
        yield case_check("C5", base.but(shape=shape), quick=quick and max(shape) < 100)


def _empty(base: Case) -> Checks:
    for axis in "BLSHD":
        shape = DISTINCT._replace(**{axis: 0})
        yield case_check("C6", base.but(shape=shape), _empty_result, "empty", quick=True)
        yield case_check("C6", base.but(shape=shape, weights=True), _empty_result, "empty")
    no_columns = base.but(shape=DISTINCT._replace(D=0), weights=True)
    yield case_check("C6", no_columns, quick=True)
    no_time = base.but(shape=DISTINCT._replace(L=0, S=0), mask=masks.CAUSAL)
    yield case_check("C6", no_time, _empty_result, "empty", needs="causal")
    every = Sizes(0, 0, 0, 0, 3, 0)
    yield case_check("C6", base.but(shape=every), _empty_result, "empty")
    no_features = base.but(shape=DISTINCT._replace(E=0))
    yield case_check(
        "C6",
        no_features,
        _refuses_empty,
        "E = 0 without a scale is refused",
        quick=True,
        needs="scale",
    )
    yield case_check("C6", no_features.but(scale=0.5), quick=True)


def ones_of(subject: Subject, case: Case) -> list[Array]:
    """Queries, keys and values of ones, of which there may be none."""
    B, L, S, H, E, D = case.shape
    kind = numpy_dtype(case.dtype)
    shapes = ((B, L, H, E), (B, S, H, E), (B, S, H, D))
    return [subject.arrays.put(np.ones(shape, kind), subject.device) for shape in shapes]


def _empty_result(subject: Subject, case: Case) -> None:
    layer = layer_for(subject, case)
    out = answer(subject, case, layer(*ones_of(subject, case), None)).out
    if out.size and not (out == 0).all():
        raise Failed("without keys V must be 0, the empty sum")


def _refuses_empty(subject: Subject, case: Case) -> Evidence:
    return refuses(lambda: layer_for(subject, case)(*ones_of(subject, case), None))


# Refusals.


def refuses(call: Callable[[], object]) -> Evidence:
    """Require that a call raises an error with a message; a warning where that says nothing.

    Raises:
        Failed: it returns, or its error has no message.
    """
    try:
        call()
    except Exception as error:
        message = str(error)
        if not message:
            raise Failed(f"refused with an empty {type(error).__qualname__}") from error
        if TELLING.search(message):
            return Evidence()
        return Evidence(warning=f"the error names no argument, shape or dtype: {message!r}")
    raise Failed("wrong input was answered instead of refused")


def refuses_case(subject: Subject, case: Case) -> Evidence:
    """Require that a case is refused; see `refuses`.

    Raises:
        Failed: it is answered.
    """
    return refuses(lambda: run(subject, case))


def _refusals(base: Case) -> Checks:
    B, L, S, H, E, D = DISTINCT
    q, k, v = (B, L, H, E), (B, S, H, E), (B, S, H, D)
    wrong = {
        "q is 3-D": ((L, H, E), k, v),
        "k is 5-D": (q, (1, *k), v),
        "q and k differ in E": (q, (B, S, H, E + 1), v),
        "k and v differ in S": (q, k, (B, S + 1, H, D)),
        "batches differ": (q, (B + 1, S, H, E), (B + 1, S, H, D)),
        "heads differ": (q, (B, S, H - 1, E), (B, S, H - 1, D)),
        "grouped heads": ((B, L, 4, E), (B, S, 2, E), (B, S, 2, D)),
    }
    for label, shapes in wrong.items():
        yield _refusal(base, label, shapes, quick=True)
    broadcast = {
        "k has one key, v several": (q, (B, 1, H, E), v),
        "v has one key, k several": (q, k, (B, 1, H, D)),
        "k has batch 1": (q, (1, S, H, E), v),
        "v has batch 1": (q, k, (1, S, H, D)),
        "k has one head": (q, (B, S, 1, E), v),
        "v has one head": (q, k, (B, S, 1, D)),
        "k and v have batch 1": (q, (1, S, H, E), (1, S, H, D)),
        "k and v have one head": (q, (B, S, 1, E), (B, S, 1, D)),
    }
    for label, shapes in broadcast.items():
        yield _refusal(base, label, shapes, quick=True, needs="strict_sizes")
    other = "float64" if base.dtype != "float64" else "float32"
    for label, dtypes in {
        "dtypes differ": (base.dtype, other, base.dtype),
        "values' dtype differs": (base.dtype, base.dtype, other),
        "integers": ("int32", "int32", "int32"),
        "complex": ("complex64", "complex64", "complex64"),
    }.items():
        yield _refusal(base, label, (q, k, v), dtypes=dtypes, quick=True)
    plain = base.but(shape=Sizes(2, 16, 16, 2, 16, 16))
    yield case_check("C8", plain, _plain_answered, "plain call is answered", quick=True)
    yield case_check(
        "C8", base, _lacking_refused, "what is lacking is refused", quick=True, needs="arguments"
    )


def _refusal(
    base: Case,
    label: str,
    shapes: tuple[tuple[int, ...], ...],
    *,
    dtypes: tuple[str, ...] = (),
    quick: bool,
    needs: str = "",
) -> Check:
    def trial(subject: Subject, case: Case) -> Evidence:
        kinds = [numpy_dtype(name) for name in dtypes or (case.dtype,) * 3]
        arrays = [
            subject.arrays.put(np.ones(shape, kind), subject.device)
            for shape, kind in zip(shapes, kinds, strict=True)
        ]
        return refuses(lambda: layer_for(subject, case)(*arrays, None))

    return case_check("C8", base, trial, label, quick=quick, needs=needs)


def _lacking_refused(subject: Subject, case: Case) -> None:
    """Require that a call is refused, not answered in another way, if it needs what is lacking."""
    square = case.but(shape=Sizes(2, 6, 6, 3, 8, 8))
    asked = {
        "mask": square.but(mask="random/LS"),
        "causal": square.but(mask=masks.CAUSAL),
        "weights": square.but(weights=True),
        "dropout": square,
    }
    asked |= {name: square.but(dtype=name) for name in DTYPES if name not in subject.precision}
    for need, one in asked.items():
        if need in subject.lacks or need in DTYPES:
            try:
                run(subject, one, dropout=0.5 * (need == "dropout"), training=True)
            except Failed:
                raise
            except Exception:  # noqa: BLE001 - how a refusal reads is for other checks
                continue
            raise Failed(f"lacks {need!r}, and answered a call that needs it")


def _plain_answered(subject: Subject, case: Case) -> float:
    """Require an answer where no lack is an excuse: no mask, scale, weights or dropout."""
    try:
        got = run(subject, case)
    except UnsupportedError as error:
        raise Failed(f"refused a call that does not need {error.capability!r}") from error
    return judge(got, expected_of(subject, case))


# Repetition: determinism, neighbours, threads.


def _repetition(base: Case, *, quick: bool) -> Checks:
    larger = base.but(shape=Sizes(3, 33, 33, 4, 8, 8))
    wide = base.but(shape=Sizes(2, 70, 97, 2, 16, 16))  # more tiles than one, both ways
    causal, masked = (larger.but(mask=mask) for mask in (masks.CAUSAL, "random/BHLS"))
    for case in (causal, masked, larger.but(weights=True)):
        yield case_check("C12", case, _two_threads, "two threads")
    for case in (larger, wide):
        usual = quick and case is larger
        yield case_check("C9", case, _deterministic, "twice", quick=usual, needs="determinism")
        yield case_check("C12", case, _two_threads, "two threads", quick=usual)
    yield case_check("C12", larger, _one_layer, "two threads, one layer", quick=quick)
    small = base.but(shape=Sizes(5, 6, 9, 3, 8, 7))
    for case in (small, larger.but(mask=masks.CAUSAL), wide):
        usual = quick and case is not wide
        yield case_check("C10", case, _alone, "each entry alone", quick=usual)


def _deterministic(subject: Subject, case: Case) -> None:
    first = run(subject, case).out.tobytes()
    for _ in range(20):
        if run(subject, case).out.tobytes() != first:
            raise Failed("the same input gave other bits")


def _alone(subject: Subject, case: Case) -> float:
    together = run(subject, case).out
    want = expected_of(subject, case)
    worst = compare("V of the whole batch", "blhd", together, want.out, want.out_bound)
    for b in range(case.shape.B):
        entry = case.but(shape=case.shape._replace(B=1))
        arrays = (
            layouts.place(subject.arrays, x[b : b + 1], "contiguous", subject.device)
            for x in inputs(case)
        )
        alone = answer(subject, entry, layer_for(subject, entry)(*arrays, None)).out
        if subject.batch_invariant and alone.tobytes() != together[b : b + 1].tobytes():
            raise Failed(f"batch_invariant is declared, but entry {b} has other bits alone")
        span = slice(b, b + 1)
        ratio = compare(
            f"V of batch entry {b} alone", "blhd", alone, want.out[span], want.out_bound[span]
        )
        worst = max(worst, ratio)
    return worst


def _two_threads(subject: Subject, case: Case) -> float:
    """Each thread calls layers of its own."""
    cases = [case.but(seed=seed) for seed in (11, 12)]
    return _in_threads(subject, cases, lambda one: run(subject, one))


def _one_layer(subject: Subject, case: Case) -> float:
    """Both threads call one layer, with other features: it must keep nothing of a call."""
    layer = layer_for(subject, case)
    other = case.but(seed=12, shape=case.shape._replace(E=4 * case.shape.E))
    return _in_threads(subject, [case, other], lambda one: called(subject, layer, one))


def _in_threads(subject: Subject, cases: list[Case], call: Callable[[Case], Answer]) -> float:
    """Each thread calls on data of its own; the results are judged afterwards."""
    answers: list[list[Answer | BaseException]] = [[] for _ in cases]
    together = threading.Barrier(len(cases))  # or one may be done before the other begins

    def work(index: int) -> None:
        together.wait()
        for _ in range(10):
            try:
                answers[index].append(call(cases[index]))
            except BaseException as error:  # noqa: BLE001 - carried to the judging thread
                answers[index].append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(
        _judged(case, subject, got)
        for case, found in zip(cases, answers, strict=True)
        for got in found
    )


def _judged(case: Case, subject: Subject, got: Answer | BaseException) -> float:
    if isinstance(got, BaseException):
        raise got
    return judge(got, expected_of(subject, case))


# State: what earlier calls leave behind.


def _state(base: Case) -> Checks:
    larger = base.but(shape=Sizes(3, 33, 33, 4, 8, 8))
    yield case_check("C11", base, _edited, "inputs edited in place", quick=True)
    yield case_check("C11", larger, _edited_once, "one element edited", quick=True)
    yield case_check(
        "C11", base, masks_in_turn, "masks of one shape in turn", quick=True, needs="mask"
    )
    for turns in (base, base.but(mask=masks.CAUSAL)):
        yield case_check("C11", turns, _shapes_in_turn, "shapes in turn", quick=True)
    square = base.but(shape=Sizes(2, 6, 6, 3, 8, 8), mask=masks.CAUSAL)
    for case in (base, base.but(mask="random/BHLS"), square):
        for returned in (False, True):
            asked = case.but(weights=returned)
            usual = asked == base
            yield case_check("C11", asked, _results_kept, "earlier results kept", quick=usual)
    yield case_check("C11", base, _many_calls, f"{CALLS} calls of one layer", quick=True)


def _edited(subject: Subject, case: Case) -> float:
    """The same array objects with other contents."""
    layer = layer_for(subject, case)
    arrays = put(subject, case)
    layer(*arrays, None)
    other = case.but(seed=case.seed + 1)
    for array, values in zip(arrays, inputs(other), strict=True):
        overwrite(array, subject.arrays.put(np.array(values), subject.device))
    return judge(answer(subject, case, layer(*arrays, None)), expected_of(subject, other))


def _edited_once(subject: Subject, case: Case) -> float:
    """One query changes by one element: a result remembered by a sample of the input is wrong."""
    layer = layer_for(subject, case)
    arrays = put(subject, case)
    layer(*arrays, None)
    q, k, v = inputs(case)
    edited = q.copy()
    edited[1, 17, 2, 5] += 4
    overwrite(arrays[0][1, 17, 2], subject.arrays.put(edited[1, 17, 2], subject.device))
    got = answer(subject, case, layer(*arrays, None))
    return judge(got, _expected_for(subject, case, edited, k, v))


def masks_in_turn(subject: Subject, case: Case) -> float:
    """One layer, called with other masks of one shape: no mask serves a later call.

    Raises:
        Failed: one does.
    """
    layer = layer_for(subject, case.but(mask="random/BHLS"))
    masked = (case.but(mask="random/BHLS", seed=seed) for seed in (0, 1, 2, 0))
    return max(judged(subject, layer, one) for one in masked)


def _shapes_in_turn(subject: Subject, case: Case) -> float:
    """One layer, called with growing and shrinking lengths: nothing is sized by the first call."""
    layer = layer_for(subject, case)
    worst = 0.0
    for n in (5, 3, 40, 1, 17, 5):
        length = n if case.mask == masks.CAUSAL else 6
        sized = case.but(shape=Sizes(1 + n % 3, length, n, 1 + n % 2, 8, 4 + n % 5))
        worst = max(worst, judged(subject, layer, sized))
    return worst


def _results_kept(subject: Subject, case: Case) -> None:
    layer = layer_for(subject, case)

    def called_with(seed: int) -> list[Array]:
        other = case.but(seed=seed)
        found = layer(*put(subject, other), put_mask(subject, other))
        return [array for array in found if array is not None]

    first = called_with(case.seed)
    before = [subject.arrays.take(array).tobytes() for array in first]
    for seed in range(1, 6):
        called_with(seed)
    if [subject.arrays.take(array).tobytes() for array in first] != before:
        raise Failed("a later call changed an earlier result")


def _many_calls(subject: Subject, case: Case) -> float:
    layer = layer_for(subject, case)
    return max(judged(subject, layer, case.but(seed=seed)) for seed in range(CALLS))
