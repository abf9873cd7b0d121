"""Checks of requirements in torch.inference_mode, inside torch.autocast and under torch.compile.

All run the same code in another way, and nothing that the contract asks ends there. So the trials
are those of the other sections, on a candidate whose layers are called in that way.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from fullattention.backends.interface import Sizes, device_kind
from fullattention.conformance import core, dropout, gradient, masks
from fullattention.conformance.case import (
    Case,
    Failed,
    Refused,
    answer,
    called,
    check_case,
    expected_of,
    judge,
    judged,
    layer_for,
    put,
)
from fullattention.conformance.check import Check, Checks, Evidence, Trial, case_check
from fullattention.conformance.subject import Layer, Subject

AUTOCAST = "bfloat16"
"""What autocast casts to where the case's own dtype does not say it."""

TRACED, COMPILED = "eager", "inductor"
"""Backends of torch.compile: one runs the graph as it was traced, the other makes code of it."""

LENGTHS = (5, 9, 7, 1)
"""The second makes torch trace again for any length, the third uses that, one is special."""


def checks(dtype: str, primary: bool) -> Checks:
    """The checks for one dtype."""
    if dtype in ("float16", "bfloat16"):
        yield from _cast(Case(dtype=dtype))
    elif dtype == "float64":
        yield _in_autocast("N5", Case(dtype=dtype), check_case)
    if primary:
        yield from _without_graph(Case(dtype=dtype))
        yield from _compiled(Case(dtype=dtype))


# Inference.


def _without_graph(base: Case) -> Checks:
    """Where no gradient will be asked for, a layer may take a path of its own."""
    for requirement, case, trial, needs in (
        ("C1", base, check_case, ""),
        ("M2", base.but(shape=Sizes(2, 7, 7, 3, 11, 13), mask=masks.CAUSAL), check_case, ""),
        ("M4", base.but(mask="random/BHLS"), check_case, ""),
        ("W1", base.but(mask="random/BHLS", weights=True), check_case, ""),
        ("P1", base, dropout.eval_is_identity, "arguments"),
    ):

        def tried(subject: Subject, case: Case, trial: Trial = trial) -> Evidence | float | None:
            return trial(_in_inference_mode(subject), case)

        yield case_check(requirement, case, tried, "in inference mode", needs=needs)


def _in_inference_mode(subject: Subject) -> Subject:
    """The candidate, whose layers are called inside torch.inference_mode.

    Raises:
        Refused: its arrays are not torch's.
    """
    _require_torch(subject, "torch.inference_mode")
    import torch

    return _called(subject, lambda layer: torch.inference_mode()(layer.__call__))


# Autocast.


def _cast(base: Case) -> Checks:
    square = base.but(shape=Sizes(2, 7, 7, 3, 11, 13))
    for requirement, case in (
        ("C1", base),
        ("M2", square.but(mask=masks.CAUSAL)),
        ("M4", base.but(mask="random/BHLS")),
        ("M6", base.but(mask="rows/B1LS")),
        ("M7", base.but(shape=Sizes(2, 6, 7, 3, 2, 5), mask="tail/S", poison="large-last-key")),
        ("N3", base.but(shape=Sizes(1, 6, 1030, 2, 8, 8), data="uniform")),
        ("W1", base.but(mask="random/BHLS", weights=True)),
    ):
        yield _in_autocast(requirement, case, check_case)
    yield _in_autocast("P1", base, dropout.eval_is_identity, needs="arguments")
    for case in (base, square.but(mask=masks.CAUSAL)):
        yield _in_autocast("G1", case, gradient.through_out, needs="gradient")
    yield case_check("C11", base, _left_again, "autocast left again")


def _in_autocast(requirement: str, case: Case, trial: Trial, *, needs: str = "") -> Check:
    def tried(subject: Subject, case: Case) -> Evidence | float | None:
        return trial(in_autocast(subject, case.dtype), case)

    return case_check(requirement, case, tried, "in autocast", needs=needs)


def in_autocast(subject: Subject, dtype: str) -> Subject:
    """The candidate, whose layers get float32 arrays inside torch.autocast to a half dtype.

    The arrays' values have that dtype already, so that it is the same call whether a layer casts
    them or not; its results may have either dtype. float64 is left alone, as torch leaves it.

    Raises:
        Refused: its arrays are not torch's.
    """
    _require_torch(subject, "torch.autocast")
    import torch

    kind = device_kind(subject.device)
    half = dtype != "float64"
    to = getattr(torch, dtype if half else AUTOCAST)

    def narrow(result: Any) -> Any:
        is_wide = half and getattr(result, "dtype", None) == torch.float32
        return result.to(to) if is_wide else result

    def around(layer: Layer) -> Callable[..., Any]:
        def call(q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
            given = [x.float() if half else x for x in (q, k, v)]
            with torch.autocast(kind, dtype=to):
                returned = layer(*given, mask, **options)
            return tuple(map(narrow, returned)) if isinstance(returned, tuple) else returned

        return call

    return _called(subject, around)


def _left_again(subject: Subject, case: Case) -> float:
    """One layer before, inside and after autocast: outside float32 is accurate as ever."""
    _require_torch(subject, "torch.autocast")
    import torch

    if "float32" not in subject.precision:
        raise Refused("float32: it is what autocast casts from")
    wide = case.but(dtype="float32")
    layer = layer_for(subject, wide)
    kind = device_kind(subject.device)
    arrays = put(subject, wide)
    want = expected_of(subject, wide)
    before = judge(answer(subject, wide, layer(*arrays, None)), want)
    with torch.autocast(kind, dtype=getattr(torch, case.dtype)):
        layer(*arrays, None)
    return max(before, judge(answer(subject, wide, layer(*arrays, None)), want))


# Compilation.


def _compiled(base: Case) -> Checks:
    """Values that are baked in show in the traced graph; making code of it takes seconds each."""
    causal = base.but(mask=masks.CAUSAL)
    masked = base.but(mask="random/BHLS")
    for backend in (TRACED, COMPILED):
        yield _compiling(backend, "C11", causal, _lengths_in_turn, "lengths in turn")
        yield _compiling(backend, "C11", masked, core.masks_in_turn, "masks in turn")
    yield _compiling(COMPILED, "C1", base, check_case)
    yield _compiling(COMPILED, "M6", base.but(mask="rows/B1LS"), check_case)
    yield _compiling(COMPILED, "W1", masked.but(weights=True), check_case)
    dropped = Case(dtype=base.dtype, shape=dropout.SHAPE, data="uniform")
    train = functools.partial(_compiling, COMPILED, needs="dropout")
    yield train("P1", dropped, _switched, "p=0.5, training and eval in turn")
    yield train("P2", dropped, functools.partial(dropout.statistics, p=0.5), "p=0.5")
    yield train("P3", dropped, dropout.two_calls, "two calls")
    yield _compiling(COMPILED, "G1", masked, gradient.through_out, needs="gradient")


def _lengths_in_turn(subject: Subject, case: Case) -> float:
    layer = layer_for(subject, case)
    shapes = (Sizes(2, n, n, 3, 8, 5) for n in LENGTHS)
    return max(judged(subject, layer, case.but(shape=shape)) for shape in shapes)


def _switched(subject: Subject, case: Case) -> float:
    """One layer, training and not in turn: neither is baked in."""
    layer = layer_for(subject, case, dropout=0.5, training=True)
    worst = 0.0
    for training in (True, False, True):
        layer.train(training)
        got = called(subject, layer, case)
        want = expected_of(subject, case)
        if not training:
            worst = judge(got, want)
        elif np.allclose(got.out, want.out, rtol=0, atol=4 * want.out_bound.max()):
            raise Failed("nothing is dropped in training")
    return worst


def _compiling(
    backend: str,
    requirement: str,
    case: Case,
    trial: Callable[[Subject, Case], float | None],
    label: str = "",
    *,
    needs: str = "",
) -> Check:
    tried = functools.partial(tried_compiled, trial=trial, backend=backend)
    name = f"compiled by {backend} {label}".strip()
    return case_check(requirement, case, tried, name, full=backend == COMPILED, needs=needs)


def tried_compiled(
    subject: Subject,
    case: Case,
    *,
    trial: Callable[[Subject, Case], float | None],
    backend: str,
) -> Evidence:
    """A trial on compiled layers; what torch could not compile becomes a warning.

    Raises:
        Refused: torch compiled nothing, here or of this candidate, and so nothing was tried.
    """
    _require_torch(subject, "torch.compile")
    import torch
    from torch._dynamo.utils import counters

    why_not = why_no_compiler(backend, subject.device)
    if why_not:
        raise Refused(f"torch.compile by {backend}: {why_not}")

    def around(layer: Layer) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(layer, backend=backend)
        return compiled

    torch.compiler.reset()  # or many builds of one class reach the limit of recompilations
    counters.clear()
    try:
        ratio = trial(_called(subject, around), case)
        breaks = "; ".join(map(_in_short, counters["graph_break"]))
        if not counters["stats"]["unique_graphs"]:
            raise Refused(f"torch.compile by {backend} compiles nothing of it: {breaks}")
    finally:
        torch.compiler.reset()
    warning = f"torch.compile leaves parts uncompiled: {breaks}" if breaks else ""
    return Evidence(ratio=ratio, warning=warning)


@functools.cache
def why_no_compiler(backend: str, device: str) -> str:
    """Why torch cannot compile anything here; "" if it can."""
    import torch

    def double(x: torch.Tensor) -> torch.Tensor:
        return x + x

    try:
        torch.compile(double, backend=backend)(torch.ones(1, device=device))
    except Exception as error:  # noqa: BLE001 - a missing tool may show as anything
        return _in_short(str(error))
    return ""


def _in_short(message: str) -> str:
    """What torch says of a failure, and its explanation where it gives one; never empty."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no reason given"]
    explained = (line for line in lines if line.startswith("Explanation: "))
    return next(explained, lines[0]).removeprefix("Explanation: ")


# All.


class _Called:
    """A layer that is called in another way."""

    def __init__(self, layer: Layer, call: Callable[..., Any]) -> None:
        self.layer = layer
        self.call = call

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.call(*arguments, **options)

    def train(self, mode: bool = True) -> None:
        self.layer.train(mode)

    def eval(self) -> None:
        self.layer.eval()


def _called(subject: Subject, around: Callable[[Layer], Callable[..., Any]]) -> Subject:
    """The candidate, whose layers are called by what `around` makes of them."""

    def build(**arguments: Any) -> Layer:
        layer = subject.build(**arguments)
        return _Called(layer, around(layer))

    return dataclasses.replace(subject, build=build)


def _require_torch(subject: Subject, mode: str) -> None:
    if subject.arrays.library != "torch":
        raise Refused(f"{mode} takes torch's tensors, not arrays of {subject.arrays.library}")
