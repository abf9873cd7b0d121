"""Sets of calls by name, to say where a mistake shows and where it does not."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from fullattention.backends.precision import DTYPES
from fullattention.conformance import masks
from fullattention.conformance.data import REGIMES
from fullattention.conformance.layouts import LAYOUTS
from fullattention.conformance.poison import POISONS
from fullattention.conformance.probes import Probe

Holds = Callable[[Probe], bool]


@dataclass(frozen=True)
class Condition:
    """Some calls: `text` goes after "where"."""

    text: str
    holds: Holds
    slack: float = 2.0
    """How many right calls to a wrong one may meet it: more, and it says too little."""


def _given(probe: Probe) -> bool:
    return probe.case.mask not in (masks.OFF, masks.CAUSAL)


def _causal(probe: Probe) -> bool:
    return probe.case.mask == masks.CAUSAL


def _has_empty_rows(probe: Probe) -> bool:
    return probe.case.mask.startswith(("rows/", "all/"))


def _is(field: str, *values: object) -> Holds:
    return lambda probe: getattr(probe.case, field) in values


def _no_multiple(axis: str, block: int) -> Holds:
    return lambda probe: getattr(probe.case.shape, axis) % block > 0


def _above(axis: str, size: int) -> Holds:
    return lambda probe: getattr(probe.case.shape, axis) > size


def _has(trait: str) -> Holds:
    return lambda probe: trait in probe.traits


GENERAL = (
    Condition("output_attention is on", lambda p: p.case.weights),
    Condition("a query has every key hidden", _has_empty_rows),
    Condition("a mask is given", _given),
    Condition("no mask is given and mask_flag is on", _causal),
    Condition("keys are hidden", lambda p: _given(p) or _causal(p)),
    Condition("no keys are hidden", lambda p: p.case.mask == masks.OFF),
    Condition("scale is negative", lambda p: (p.case.scale or 0) < 0),
    Condition("scale is 0", lambda p: p.case.scale == 0),
    Condition("a scale is given", lambda p: bool(p.case.scale)),
    Condition("no scale is given", lambda p: not p.case.scale),
    Condition("inputs are not contiguous", lambda p: p.case.layout != "contiguous"),
    Condition(
        "inputs hold NaN or infinity", lambda p: "nan" in p.case.poison or "inf" in p.case.poison
    ),
    Condition("L = 1", lambda p: p.case.shape.L == 1),
    Condition("S = 1", lambda p: p.case.shape.S == 1),
    Condition("L != S", lambda p: p.case.shape.L != p.case.shape.S),
    Condition("L = S", lambda p: p.case.shape.L == p.case.shape.S),
    Condition("L > S", lambda p: p.case.shape.L > p.case.shape.S),
    Condition("L < S", lambda p: p.case.shape.L < p.case.shape.S),
    Condition("E != D", lambda p: p.case.shape.E != p.case.shape.D),
    Condition("E = D", lambda p: p.case.shape.E == p.case.shape.D),
    Condition("D > E", lambda p: p.case.shape.D > p.case.shape.E),
    Condition("D < E", lambda p: p.case.shape.D < p.case.shape.E),
    *(Condition(f"the layout is {x}", _is("layout", x)) for x in LAYOUTS),
    *(Condition(f"the data are {x}", _is("data", x)) for x in REGIMES),
    *(Condition(f"there is {x}", _is("poison", x)) for x in POISONS),
    *(
        Condition(
            f"{axis} is no multiple of {block}",
            _no_multiple(axis, block),
            slack=0,
        )
        for axis in "LSED"
        for block in (2, 4, 8, 16, 32, 64)
    ),
)


def conditions(probes: Sequence[Probe]) -> list[Condition]:
    """The conditions that hold for some of the calls and not for others."""
    found = [
        *_of_traits(probes),
        *_of_dtypes(probes),
        *GENERAL,
        *_of_sizes(probes),
        *_of_masks(probes),
    ]
    return [c for c in found if 0 < sum(map(c.holds, probes)) < len(probes)]


def _of_traits(probes: Iterable[Probe]) -> Iterator[Condition]:
    for trait in dict.fromkeys(t for probe in probes for t in sorted(probe.traits)):
        yield Condition(trait, _has(trait))


def _of_dtypes(probes: Iterable[Probe]) -> Iterator[Condition]:
    present = [dtype for dtype in DTYPES if any(p.case.dtype == dtype for p in probes)]
    for count in (1, 2, 3):
        for some in itertools.combinations(present, count):
            yield Condition(f"the dtype is {' or '.join(some)}", _is("dtype", *some))


def _of_sizes(probes: Sequence[Probe]) -> Iterator[Condition]:
    for axis in "SLEDHB":
        for size in sorted({getattr(p.case.shape, axis) for p in probes}):
            yield Condition(f"{axis} > {size}", _above(axis, size), slack=0.5)


def _of_masks(probes: Sequence[Probe]) -> Iterator[Condition]:
    for axes in dict.fromkeys(_axes(probe) for probe in probes if _given(probe)):
        shape = ", ".join(axes)
        yield Condition(f"the mask is ({shape})", functools.partial(_has_axes, axes))


def _axes(probe: Probe) -> str:
    return probe.case.mask.partition("/")[2]


def _has_axes(axes: str, probe: Probe) -> bool:
    return _given(probe) and _axes(probe) == axes


def narrowest(wrong: Sequence[Probe], right: Sequence[Probe]) -> tuple[str, int]:
    """The condition that all wrong calls meet and the fewest right ones, and how many of these do.

    One condition, or two together where only they keep to the wrong calls; "" if there is none.
    """
    usable, met = _common(wrong, right)
    for c, some in zip(usable, met, strict=True):
        if not some:
            return c.text, 0
    for i, j in itertools.combinations(range(len(usable)), 2):
        if not met[i] & met[j]:
            return f"{usable[i].text} and {usable[j].text}", 0
    near = [
        (len(some), c.text)
        for c, some in zip(usable, met, strict=True)
        if len(some) <= c.slack * len(wrong)
    ]
    rest, text = min(near, key=lambda one: one[0], default=(len(right), ""))
    return text, rest


def nearest(wrong: Sequence[Probe], right: Sequence[Probe]) -> tuple[str, int]:
    """The same of single conditions, however many right calls meet it."""
    usable, met = _common(wrong, right)
    best = min(range(len(usable)), key=lambda i: len(met[i]), default=None)
    return ("", len(right)) if best is None else (usable[best].text, len(met[best]))


def _common(
    wrong: Sequence[Probe], right: Sequence[Probe]
) -> tuple[list[Condition], list[set[int]]]:
    """The conditions that all wrong calls meet, and which right ones meet each."""
    usable = [c for c in conditions([*wrong, *right]) if all(map(c.holds, wrong))]
    return usable, [{i for i, probe in enumerate(right) if c.holds(probe)} for c in usable]
