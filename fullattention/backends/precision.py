"""How an implementation rounds: the figures from which its error bound is derived."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
"""Largest relative error of rounding to nearest in each format."""

SMALLEST_SUBNORMAL = {
    "float64": 2.0**-1074,
    "float32": 2.0**-149,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
}
"""Spacing of the numbers next to zero in each storage format."""

DTYPES = tuple(SMALLEST_SUBNORMAL)
"""Storage formats of queries, keys and values, widest first."""

MOST: Mapping[str, float] = MappingProxyType(
    {
        **dict.fromkeys(("u_acc", "u_softmax", "u_out", "u_in", "u_scores", "u_weights"), 0.25),
        **dict.fromkeys(("eta_out", "eta_weights"), 1.0),
        "exp_ulp": 2.0**20,
        **dict.fromkeys(("score_roundings", "exp_arg"), 100),
        "tile": 2**31,
    }
)
"""The largest figure by field that a format or an algorithm could have: twice the unit roundoff of
8 bits, an exp in float32 that is right to 4 bits."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The rounding errors one implementation may make for one dtype.

    Fields named ``u_*`` are unit roundoffs (relative), fields named ``eta_*`` are absolute
    underflow errors. A wrong declaration is caught either way: too tight and honest results
    fail, too loose and `effective bits` in the report show it.

    Raises:
        ValueError: a figure is no number from 0 to its `MOST`; the message names it.
    """

    u_acc: float
    """Accumulation of q.k and of weights.v; doubled for truncating accumulators."""
    u_softmax: float
    """Scaling, subtraction, sum and division inside the softmax."""
    u_out: float
    """Rounding of the result to its storage format."""
    eta_out: float
    """Absolute error of a result that underflows in its storage format."""
    u_in: float = 0.0
    """Rounding of q, k, v before they are multiplied (TF32 operands, pre-scaled queries)."""
    u_scores: float = 0.0
    """Rounding of scores to storage between the product and the softmax."""
    score_roundings: int = 0
    """How many times scores are stored on that way."""
    exp_ulp: float = 4.0
    """Error of exp in units in the last place of the softmax arithmetic."""
    exp_arg: int = 2
    """Roundings of exp's argument: the subtraction, and folding log2(e) into it."""
    u_weights: float = 0.0
    """Rounding of the weights before they are multiplied with the values."""
    eta_weights: float = 2.0**-126
    """Absolute error of a weight that underflows before that product."""
    tile: int = 0
    """Smallest number of keys between two rescalings of an online softmax; 0: not online."""
    blocked: bool = False
    """Whether sums run within tiles of exactly `tile` keys, and then over the tiles' sums: over
    many keys that errs far less than one long sum."""
    recompute: bool = False
    """Whether weights are rebuilt as exp(score - logsumexp)."""

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            _require_figure(name, getattr(self, name), most)
        for name in ("blocked", "recompute"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}: True or False")


def _require_figure(name: str, value: object, most: float) -> None:
    """Require a number from 0 to the most that makes sense, a whole one where that is whole."""
    kinds: tuple[type, ...] = (int,) if isinstance(most, int) else (int, float)
    of_kind = isinstance(value, kinds) and not isinstance(value, bool)
    if not of_kind or not 0 <= value <= most:  # type: ignore[operator] # and so neither is NaN
        number = "an int" if isinstance(most, int) else "a float"
        raise ValueError(f"{name} is {value!r}: {number} from 0 to {most}")


def working(dtype: str, inside: str) -> Precision:
    """All arithmetic in the format `inside`, one rounding to `dtype` at the end."""
    u = UNIT_ROUNDOFF[inside]
    return Precision(
        u_acc=u,
        u_softmax=u,
        u_out=UNIT_ROUNDOFF[dtype],
        eta_out=SMALLEST_SUBNORMAL[dtype] / 2,
        # Flushing of subnormal weights is allowed; float64 has room far below any output.
        eta_weights=2.0**-126 if inside == "float32" else math.ldexp(1.0, -1022),
    )


def accumulator(dtype: str) -> str:
    """The format that sums are kept in where nothing else is said: float32 for half types."""
    return "float64" if dtype == "float64" else "float32"


def standard(dtype: str) -> Precision:
    """The usual implementation: float32 inside (float64 for float64), nothing stored between."""
    return working(dtype, accumulator(dtype))


def stored(dtype: str) -> Precision:
    """Scores, scaled scores and weights are stored in `dtype` between the steps (einsum path)."""
    if dtype in ("float32", "float64"):
        return standard(dtype)
    model = with_stored_weights(standard(dtype), dtype)
    return replace(model, u_scores=UNIT_ROUNDOFF[dtype], score_roundings=3)


def with_stored_weights(model: Precision, dtype: str) -> Precision:
    """A model whose weights are rounded to `dtype` before they are multiplied with the values."""
    smallest = max(SMALLEST_SUBNORMAL[dtype] / 2, 2.0**-126)
    return replace(model, u_weights=UNIT_ROUNDOFF[dtype], eta_weights=smallest)


def prescaled(dtype: str) -> Precision:
    """Queries and keys are scaled in `dtype` before the product (SDPA's math path)."""
    u = UNIT_ROUNDOFF[dtype]
    model = stored(dtype)
    return replace(model, u_in=u, score_roundings=min(model.score_roundings, 1))


def flash(dtype: str, *, tile: int = 16) -> Precision:
    """An online softmax over key tiles with a fast exp; weights of half types are rounded."""
    model = replace(standard(dtype), exp_ulp=20.0, tile=tile)
    if dtype in ("float32", "float64"):
        return replace(model, u_in=UNIT_ROUNDOFF[dtype])
    return tensor_cores(model, dtype)


def tensor_cores(model: Precision, dtype: str) -> Precision:
    """A model whose products of half types go by tensor cores.

    Their sums are truncated, and they take weights of the values' own type.
    """
    if dtype in ("float32", "float64"):
        return model
    return replace(with_stored_weights(model, dtype), u_acc=2 * model.u_acc)


def tf32(dtype: str) -> Precision:
    """Products of float32 by tensor cores, which round operands to TF32 and truncate sums."""
    model = standard(dtype)
    if dtype != "float32":
        return tensor_cores(model, dtype)
    u = UNIT_ROUNDOFF["tf32"]
    return replace(model, u_in=u, u_weights=u, u_acc=2 * model.u_acc)


def widest(*models: Precision) -> Precision:
    """A model that covers several, for an implementation that picks its kernel by itself.

    Each figure is the largest of the given ones; an online softmax's smallest tile counts, and
    sums are taken for long ones.
    """
    tiles = [model.tile for model in models if model.tile]
    largest = {
        name: max(getattr(model, name) for model in models)
        for name in Precision.__dataclass_fields__
        if name not in ("tile", "blocked")
    }
    return Precision(**largest, tile=min(tiles, default=0))
