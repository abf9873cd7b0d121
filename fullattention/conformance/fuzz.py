"""Random cases: shapes at edges, regimes, masks, scales and layouts in every combination."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from fullattention.backends.interface import Backend, Sizes
from fullattention.backends.precision import DTYPES
from fullattention.conformance import masks
from fullattention.conformance.case import Case
from fullattention.conformance.check import case_check, needs_of
from fullattention.conformance.data import REGIMES
from fullattention.conformance.layouts import EXPANDED_AXIS, LAYOUTS
from fullattention.conformance.poison import POISONS
from fullattention.conformance.subject import Subject, load_subject
from fullattention.conformance.trial import run_check
from fullattention.records import Result

MOST_PRODUCTS = 2_000_000
"""Largest B * H * L * S * (E + D) of most random shapes, so that a case takes milliseconds."""

LONG = 0.04
"""Share of the shapes in which L and S are long at once, whatever they cost."""

HIDDEN_ONLY = ("overflow-in-last-key", "large-last-key", "large-last-value", "low-visible-scores")
"""Poisons that say something only where the last key is hidden."""

FINITE = ("large-last-key", "large-last-value", "low-visible-scores")
"""Poisons without NaN and infinities, those of the scores included."""

BOUNDED = {"huge": 16, "wide-scores": 16, "low-visible-scores": 13, "large-last-key": 16}
"""Regime or poison -> the most features for which its scores stay within every dtype's range."""


@dataclass(frozen=True, kw_only=True)
class Fuzzed:
    """What random cases of one dtype gave."""

    dtype: str
    results: tuple[Result, ...]
    """The `check` of each ends with the case's text; see `case_text`."""

    @property
    def failures(self) -> tuple[Result, ...]:
        """The cases with an error above the bound, and those that raised."""
        return tuple(result for result in self.results if result.status == "failed")

    @property
    def worst(self) -> Result | None:
        """The case with the largest error over its bound; None if no numbers were compared."""
        compared = [result for result in self.results if result.ratio is not None]
        return max(compared, key=lambda result: result.ratio or 0.0, default=None)

    @property
    def ok(self) -> bool:
        """Whether numbers were compared and nothing failed."""
        return self.worst is not None and not self.failures


def fuzz(
    candidate: str | Backend | type,
    *,
    count: int = 1000,
    dtypes: Sequence[str] = (),
    device: str = "cpu",
    seed: int = 0,
) -> list[Fuzzed]:
    """Try random cases of each dtype on a candidate.

    Args:
        candidate: as for `check`.
        count: cases per dtype.
        dtypes: which to try; all that the candidate takes if empty.
        device: where it runs.
        seed: the same seed draws the same cases.

    Raises:
        UnavailableError, LookupError, TypeError: as `backends.load`.
        ValueError: count is not positive, seed is negative, or a dtype is unknown or not among the
            candidate's.
    """
    if count < 1:
        raise ValueError(f"count is {count}: at least 1")
    if seed < 0:
        raise ValueError(f"seed is {seed}: at least 0")
    subject = load_subject(candidate, device)
    avoid = frozenset(subject.lacks) | frozenset(subject.deviates)
    found = []
    for dtype in _wanted(subject, dtypes):
        results = []
        for index in range(count):
            rng = np.random.default_rng([seed, zlib.crc32(dtype.encode()), index])
            results.append(try_case(subject, random_case(rng, dtype, avoid)))
        found.append(Fuzzed(dtype=dtype, results=tuple(results)))
    return found


def fuzz_case(candidate: str | Backend | type, case: Case, *, device: str = "cpu") -> Fuzzed:
    """Try one case, such as one that `fuzz` found; see there for what it raises.

    Raises:
        ValueError: the case is of a call that the contract wants refused.
    """
    if case.mask == masks.CAUSAL and case.shape.L not in (1, case.shape.S):
        raise ValueError("mask is 'causal': that needs L = S or L = 1, and other calls are refused")
    return Fuzzed(dtype=case.dtype, results=(try_case(load_subject(candidate, device), case),))


def try_case(subject: Subject, case: Case) -> Result:
    """Judge one case; its text is all that is needed to repeat it."""
    return run_check(subject, case_check("N5" if case.dtype == "float64" else "N1", case))


def case_text(result: Result) -> str:
    """The text of the case that a result is about."""
    return result.check.partition(": ")[2]


def _wanted(subject: Subject, dtypes: Sequence[str]) -> Sequence[str]:
    taken = [dtype for dtype in DTYPES if dtype in subject.precision]
    for dtype in dtypes:
        if dtype not in taken:
            raise ValueError(f"dtype {dtype}: {subject.name} takes {', '.join(taken)}")
    return dtypes or taken


# Drawing.


def random_case(rng: np.random.Generator, dtype: str, avoid: Collection[str] = frozenset()) -> Case:
    """Draw a case of a dtype that uses none of some capabilities and requirements; see `uses`."""
    while True:
        case = _any_case(rng, dtype)
        if not uses(case) & frozenset(avoid):
            return case


def uses(case: Case) -> frozenset[str]:
    """The capabilities and the contract's special requirements that a case relies on."""
    hidden = masks.hidden_by(case.mask, case.shape, case.seed)
    whole_rows = hidden is not None and bool(hidden.all(-1).any())
    special = {
        "wide_scores": case.data == "wide-scores" and case.dtype == "float16",
        "masked_rows=zero": whole_rows and case.masked_rows == "zero",
        "M6": whole_rows,
        "M7": case.poison in FINITE,
        "N4": bool(case.poison) and case.poison not in FINITE,
        "S2": case.scale == 0,
        "S3": case.mask != masks.OFF and (case.scale or 0) < 0,
        "S4": (case.scale or 0) < 0,
    }
    return needs_of(case) | {name for name, used in special.items() if used}


def _any_case(rng: np.random.Generator, dtype: str) -> Case:
    shape = _shape(rng)
    case = Case(
        shape=shape,
        dtype=dtype,
        data=_fitting(rng, REGIMES, shape),
        mask=_mask(rng, shape),
        scale=_scale(rng),
        weights=bool(rng.random() < 0.3),
        masked_rows="zero" if rng.random() < 0.5 else "nan",
        seed=int(rng.integers(1000)),
    )
    if rng.random() < 0.4:
        layout = str(rng.choice([name for name in LAYOUTS if name != case.layout]))
        case = case.but(layout=layout, on=str(rng.choice(["q", "k", "v", "kv", "qkv"])))
    return _poisoned(rng, case) if rng.random() < 0.05 else case


def _poisoned(rng: np.random.Generator, case: Case) -> Case:
    """The case with a poison and ordinary scores, where it has the places that poisons write to.

    An infinite value times a weight that underflows in one precision and not in another has no one
    answer; neither has an expanded array that is to differ in one place.
    """
    shape = case.shape
    if shape.S < 2 or shape.E < 2 or shape.D < 3 or case.layout in EXPANDED_AXIS:
        return case
    poison = _fitting(rng, POISONS, shape)
    mask = f"tail/{_axes(rng, least=1)}" if poison in HIDDEN_ONLY else case.mask
    return case.but(poison=poison, data="normal", scale=None, mask=mask)


def _fitting(rng: np.random.Generator, known: Collection[str], shape: Sizes) -> str:
    return str(rng.choice([name for name in known if BOUNDED.get(name, shape.E) >= shape.E]))


def _shape(rng: np.random.Generator) -> Sizes:
    if rng.random() < LONG:
        return _long_shape(rng)
    while True:
        L, S = _length(rng), _length(rng)
        if rng.random() < 0.4:
            L = S
        B, H = (int(n) for n in rng.integers(1, 6, size=2))
        sizes = Sizes(B, L, S, H, _features(rng), _features(rng))
        if B * H * L * S * (sizes.E + sizes.D) <= MOST_PRODUCTS:
            return sizes


def _long_shape(rng: np.random.Generator) -> Sizes:
    """Many tiles of queries and of keys, whatever a usual tile is, and little else."""
    L, S, E, D = (int(n) for n in rng.integers([513, 513, 1, 1], [801, 801, 9, 9]))
    return Sizes(1, L, L if rng.random() < 0.6 else S, 1, E, D)


def _length(rng: np.random.Generator) -> int:
    """Mostly short, often next to a tile's edge, sometimes long."""
    kind = rng.random()
    if kind < 0.5:
        return int(rng.integers(1, 21))
    if kind < 0.9:
        return int(rng.choice([16, 32, 64, 128, 256]) + rng.integers(-1, 2))
    return int(rng.integers(300, 1100))


def _features(rng: np.random.Generator) -> int:
    if rng.random() < 0.7:
        return int(rng.integers(1, 18))
    return int(rng.choice([32, 64, 128]) + rng.integers(-1, 2))


def _mask(rng: np.random.Generator, shape: Sizes) -> str:
    kind = rng.random()
    if kind < 0.3:
        return masks.OFF
    if kind < 0.5 and (shape.L == shape.S or shape.L == 1):
        return masks.CAUSAL
    pattern = str(rng.choice(list(masks.PATTERNS)))
    return f"{pattern}/{_axes(rng, least=LEAST_AXES[pattern])}"


LEAST_AXES = {"rows": 1, "padding": 1, "tail": 1, "later": 2, "band": 2} | dict.fromkeys(
    ("random", "all", "none"), 0
)
"""Mask pattern -> the fewest axes that it is defined for."""


def _axes(rng: np.random.Generator, least: int) -> str:
    """The last few of B, H, L and S, each in full or of length 1."""
    number = int(rng.integers(least, 5))
    kept = rng.random(number) < 0.7
    last = "BHLS"[4 - number :]
    return "".join(axis if full else "1" for axis, full in zip(last, kept, strict=True))


def _scale(rng: np.random.Generator) -> float | None:
    kind = rng.random()
    if kind < 0.5:
        return None
    if kind < 0.6:
        return 0.0
    sign = -1.0 if kind < 0.7 else 1.0
    return sign * float(rng.choice([1e-3, 0.1, 0.3, 0.7, 1.0]))


# Reading a case's text.


def parse_case(text: str) -> Case:
    """The case that a text stands for: the inverse of `str(case)`.

    Raises:
        ValueError: a word is no `field=value` of a case, or its value breaks the field's rule.
    """
    values: dict[str, Any] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or name not in _READERS:
            raise ValueError(f"{word!r} is no field=value of a case: {', '.join(_READERS)}")
        try:
            values[name] = _READERS[name](value)
        except ValueError as error:
            raise ValueError(f"{name} is {value!r}: {error}") from error
    return Case(**values)


def _one_of(known: Collection[str]) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in known:
            raise ValueError(f"one of {', '.join(known)}")
        return value

    return read


def _read_shape(value: str) -> Sizes:
    sizes = value.split(",")
    if len(sizes) != len(Sizes._fields) or not all(n.isdecimal() and int(n) > 0 for n in sizes):
        raise ValueError(f"{','.join(Sizes._fields)}, each a positive whole number")
    return Sizes(*map(int, sizes))


def _read_mask(value: str) -> str:
    pattern, slash, axes = value.partition("/")
    if value in (masks.OFF, masks.CAUSAL):
        return value
    if not slash or pattern not in masks.PATTERNS:
        raise ValueError(f"off, causal, or pattern/axes with {', '.join(masks.PATTERNS)}")
    least = LEAST_AXES[pattern]
    last = "BHLS"[4 - len(axes) :] if len(axes) <= 4 else ""
    if not least <= len(last) == len(axes) or any(
        axis not in ("1", full) for axis, full in zip(axes, last, strict=True)
    ):
        raise ValueError(f"axes are the last {least} to 4 of B, H, L, S, or 1 in their place")
    return value


def _read_on(value: str) -> str:
    if not value or not set(value) <= set("qkv"):
        raise ValueError("letters among q, k and v")
    return value


def _read_number(value: str) -> float | None:
    try:
        return None if value == "None" else float(value)
    except ValueError:
        raise ValueError("a number or None") from None


def _read_seed(value: str) -> int:
    if not value.isdecimal():
        raise ValueError("a whole number, 0 or more")
    return int(value)


_READERS: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        "shape": _read_shape,
        "dtype": _one_of(DTYPES),
        "data": _one_of(REGIMES),
        "poison": _one_of(("", *POISONS)),
        "mask": _read_mask,
        "scale": _read_number,
        "weights": lambda value: _one_of(("True", "False"))(value) == "True",
        "layout": _one_of(LAYOUTS),
        "on": _read_on,
        "masked_rows": _one_of(("nan", "zero")),
        "seed": _read_seed,
    }
)
assert set(_READERS) == {field.name for field in dataclasses.fields(Case)}
