"""Mistakes with a number in them: where a candidate stops reading or answering."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fullattention.conformance.call import Call
from fullattention.conformance.dialects import Dialect
from fullattention.conformance.observation import Observation, Trial
from fullattention.conformance.steps import RIGHT, Operands, heads_first

Array = np.ndarray

BLOCKS = (2, 4, 8, 16, 32, 64, 128, 256)

_READ = {"S": "keys", "E": "features of q and k", "D": "columns of V"}
_ANSWERED = {"B": "batch entries", "L": "queries", "H": "heads"}


def _text(what: str, limit: int, block: int) -> str:
    return f"{what} after the last whole block of {block}" if block else f"{what} from {limit} on"


def _before(size: int, limit: int, block: int) -> Array:
    """Which of the indices below `size` lie before the end."""
    end = (size // block * block or size) if block else limit
    return np.arange(size) < end


def unread(axis: str, limit: int, block: int = 0) -> Dialect:
    """What is past an index (or, with a block, past the last whole block) is never read.

    Args:
        axis: "S" keys, "E" features of q and k, "D" columns of v.
        limit: the first index that is not read.
        block: if not 0, how many entries are read at a time.
    """
    text = f"{_text(_READ[axis], limit, block)} never read"

    def cut(x: Array) -> Array:
        return np.where(_before(x.shape[-1], limit, block), x, 0.0)

    def score(q: Array, k: Array, hidden: Array | None, c: float) -> Array:
        z = RIGHT.score(q, k, hidden, c)
        return np.where(_before(z.shape[-1], limit, block), z, -math.inf)

    def features(operands: Operands, call: Call) -> Operands:
        q, k, v = operands
        return cut(q), cut(k), v

    def columns(operands: Operands, call: Call) -> Operands:
        q, k, v = operands
        return q, k, cut(v)

    if axis == "S":
        return Dialect(text, {"score": score})
    return Dialect(text, {"read": features if axis == "E" else columns})


def unanswered(axis: str, limit: int, block: int = 0) -> Dialect:
    """V is 0 past an index (or, with a block, past the last whole block).

    Args:
        axis: "B" batch entries, "L" queries, "H" heads.
        limit: the first index that is not answered.
        block: if not 0, how many entries are answered at a time.
    """
    place = "BLH".index(axis)

    def cut(out: Array, call: Call) -> Array:
        before = _before(out.shape[place], limit, block)
        return np.where(before.reshape((-1,) + (1,) * (3 - place)), out, 0.0)

    return Dialect(f"{_text(_ANSWERED[axis], limit, block)} answered with 0", {"write": cut})


def stops(observation: Observation) -> Iterator[Dialect]:
    """The places at which reading or answering could stop, by the first answer to a probe."""
    trial = observation.trials[0]
    if trial.answer is None or trial.call.dropout or trial.must_refuse or trial.fits(RIGHT):
        return
    for axis, limit in (
        *(("S", n) for n in _key_stops(trial)),
        *(("E", n) for n in _feature_stops(trial)),
        *_zero_stops(trial),
    ):
        make = unread if axis in _READ else unanswered
        size = getattr(trial.call.shape, axis)
        yield make(axis, limit)
        for block in BLOCKS:
            if size // block * block == limit:
                yield make(axis, limit, block)


def _key_stops(trial: Trial) -> Iterator[int]:
    """How many keys give the answer: all prefixes at once, by sums that run along the keys."""
    assert trial.answer is not None
    q, k, v = _operands(trial.call)
    z = RIGHT.score(q, k, trial.call.hidden, RIGHT.factor(trial.call))
    w = np.exp(z - z.max(-1, keepdims=True))
    got = heads_first(trial.answer.out.astype(np.float64))
    if w.size * v.shape[-1] > 2_000_000:
        return
    running = np.cumsum(w[..., None] * v[:, :, None], axis=-2) / np.cumsum(w, -1)[..., None]
    error = abs(running - got[..., None, :]).max((0, 1, 2, 4))  # (S,)
    yield from (int(n) + 1 for n in np.flatnonzero(error[:-1] <= trial.tolerance))


def _feature_stops(trial: Trial) -> Iterator[int]:
    assert trial.answer is not None
    q, k, v = _operands(trial.call)
    got = heads_first(trial.answer.out.astype(np.float64))
    for n in range(1, q.shape[-1]):
        z = RIGHT.score(q[..., :n], k[..., :n], trial.call.hidden, RIGHT.factor(trial.call))
        w = np.exp(z - z.max(-1, keepdims=True))
        out = (w / w.sum(-1, keepdims=True)) @ v
        if abs(out - got).max() <= trial.tolerance:
            yield n


def _zero_stops(trial: Trial) -> Iterator[tuple[str, int]]:
    """Where zeros begin that reach to the end of an axis of V."""
    assert trial.answer is not None
    for place, axis in enumerate("BLHD"):
        others = tuple(other for other in range(4) if other != place)
        filled = np.flatnonzero((trial.answer.out != 0).any(others))
        if len(filled) and filled[-1] + 1 < trial.answer.out.shape[place]:
            yield axis, int(filled[-1]) + 1


def _operands(call: Call) -> Operands:
    q, k, v = (heads_first(np.asarray(x, np.float64)) for x in (call.q, call.k, call.v))
    return q, k, v
