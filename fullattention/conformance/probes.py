"""The calls by which a failing candidate is diagnosed: each shows some mistakes and not others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fullattention.backends.interface import Sizes
from fullattention.conformance import addresses, contract, masks
from fullattention.conformance.call import Call, call_of
from fullattention.conformance.case import Case
from fullattention.conformance.subject import Subject


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One kind of call, to be made of fresh numbers as often as is wanted."""

    case: Case
    requirement: str
    """Which requirement it tries: one that the candidate declares not to meet is not diagnosed."""
    arrange: Callable[[Call], Call] = lambda call: call
    """Changes what a case cannot say."""
    traits: frozenset[str] = frozenset()
    """What is special about that change, in words after "where"."""

    def call(self, seed: int) -> Call:
        """The call with numbers of its own."""
        return self.arrange(call_of(self.case.but(seed=self.case.seed + seed)))


def probes(subject: Subject) -> list[Probe]:
    """Every probe, but those of what the candidate declares to do otherwise."""
    primary = "float32" if "float32" in subject.precision else next(iter(subject.precision))
    found = [*_of_policy(primary), *_of_scores(primary), *_of_sizes(primary)]
    for dtype in subject.precision:
        found += _of_dtype(dtype)
    if "strict_sizes" in subject.lacks:  # it decides everything itself, without our layer
        found.append(Probe(requirement="S3", case=Case(dtype=primary, scale=-0.4, mask="tail/LS")))
    else:
        found += _of_wrong_sizes(primary)
    excused = set(subject.deviates) - set(contract.UNDENIABLE)
    return [probe for probe in found if probe.requirement not in excused]


def _of_policy(dtype: str) -> Iterator[Probe]:
    """One argument of the layer at a time."""
    base = Case(dtype=dtype)
    square = base.but(shape=Sizes(2, 6, 6, 3, 11, 13))
    equal = base.but(shape=Sizes(2, 6, 6, 3, 8, 8))
    yield Probe(requirement="C1", case=square)
    yield Probe(requirement="C1", case=equal)
    yield Probe(requirement="S1", case=base.but(shape=Sizes(2, 5, 7, 3, 4, 16)))
    for scale in (0.0, 0.3, 1.5, -0.4):
        yield Probe(requirement="S4" if scale else "S2", case=base.but(scale=scale))
    yield Probe(requirement="M2", case=square.but(mask=masks.CAUSAL))
    long = base.but(shape=Sizes(2, 40, 40, 2, 8, 8))
    yield Probe(requirement="M2", case=long.but(mask=masks.CAUSAL))
    for L, S in ((1, 7), (5, 7), (7, 5)):
        shape = Sizes(2, L, S, 3, 8, 8)
        yield Probe(requirement="M2", case=base.but(mask=masks.CAUSAL, shape=shape))
    yield Probe(requirement="M4", case=base.but(mask="random/BHLS"))
    yield Probe(requirement="M4", case=square.but(mask="random/BHLS"))
    yield Probe(requirement="M4", case=base.but(mask="padding/B11S"))
    yield Probe(requirement="M4", case=base.but(mask="tail/LS"))
    for rows in ("nan", "zero"):
        yield Probe(requirement="M6", case=base.but(mask="rows/B1LS", masked_rows=rows))
    yield Probe(
        requirement="M1",
        case=square,
        arrange=_masked_but_off,
        traits=frozenset({"a mask is given and mask_flag is off"}),
    )
    for mask in (masks.OFF, "random/BHLS"):
        yield Probe(requirement="W1", case=base.but(weights=True, mask=mask))
    yield from _of_dropout(base.but(shape=Sizes(2, 12, 12, 3, 8, 12)))
    for name in ("tau", "delta"):
        yield Probe(
            requirement="C7",
            case=base,
            arrange=_option(name),
            traits=frozenset({f"`{name}` is given"}),
        )
    yield Probe(
        requirement="C7",
        case=base,
        arrange=lambda call: call.but(factor=1),
        traits=frozenset({"`factor` is not 5"}),
    )


def _of_wrong_sizes(dtype: str) -> Iterator[Probe]:
    for axis, what in ((1, "one key for several values"), (2, "one head of keys and values")):
        yield Probe(
            requirement="C8",
            case=Case(dtype=dtype),
            arrange=_cut_to_one(axis),
            traits=frozenset({f"there is {what}"}),
        )


def _of_dropout(case: Case) -> Iterator[Probe]:
    """V shows the weights, and so which of them are kept."""
    for training, weights in ((True, False), (True, True), (False, False)):
        yield Probe(
            requirement="P2" if training else "P1",
            case=case.but(weights=weights),
            arrange=_dropping(training),
            traits=frozenset({f"attention_dropout > 0 in {'training' if training else 'eval'}"}),
        )


def _of_scores(dtype: str) -> Iterator[Probe]:
    """Scores where exp or a stand-in for infinity comes to its end."""
    base = Case(dtype=dtype)
    yield Probe(requirement="N2", case=base.but(data="large", scale=1.0))
    yield Probe(requirement="N2", case=base.but(data="deep-negative"))
    yield Probe(
        requirement="N2",
        case=base.but(data="deep-negative"),
        arrange=_turned,
        traits=frozenset({"all scores of a query lie below -100"}),
    )
    for size in (3e4, 1e6, 1e12):
        if size <= 3e4 or dtype != "float16":
            yield Probe(
                requirement="M7",
                case=base.but(mask="none/LS", scale=1.0),
                arrange=_far_below(size),
                traits=frozenset({"all scores of a query lie below -100"}),
            )


def _of_sizes(dtype: str) -> Iterator[Probe]:
    """One axis long at a time, and strides."""
    base = Case(dtype=dtype)
    for shape in (
        Sizes(2, 5, 70, 3, 8, 9),
        Sizes(2, 2, 1100, 1, 8, 3),
        Sizes(1, 70, 5, 2, 8, 9),
        Sizes(1, 1100, 3, 1, 8, 3),
        Sizes(1, 4, 6, 2, 300, 3),
        Sizes(1, 4, 6, 2, 3, 300),
        Sizes(300, 2, 3, 2, 4, 3),
        Sizes(2, 3, 4, 70, 4, 3),
    ):
        yield Probe(requirement="C5", case=base.but(shape=shape))
    yield Probe(requirement="C4", case=base.but(layout="heads-first"))
    yield Probe(requirement="C4", case=base.but(layout="every-other"))


def _of_dtype(dtype: str) -> Iterator[Probe]:
    base = Case(dtype=dtype)
    accuracy = "N5" if dtype == "float64" else "N1"
    yield Probe(requirement=accuracy, case=base)
    yield Probe(requirement="C4", case=base.but(layout="packed"))
    yield Probe(requirement="M2", case=base.but(mask=masks.CAUSAL, shape=Sizes(2, 9, 9, 3, 8, 8)))
    yield Probe(
        requirement=accuracy, case=base.but(data="uniform", shape=Sizes(1, 4, 600, 2, 16, 5))
    )


def _masked_but_off(call: Call) -> Call:
    _, L, S, *_ = call.shape
    mask = np.random.default_rng(L + S).random((L, S)) < 0.4
    mask[:, 0] = False
    return call.but(mask=mask, mask_flag=False)


def _dropping(training: bool) -> Callable[[Call], Call]:
    def arrange(call: Call) -> Call:
        identity = addresses.identity(call.shape, call.dtype)
        return call.but(v=identity, dropout=0.25, training=training)

    return arrange


def _option(name: str) -> Callable[[Call], Call]:
    return lambda call: call.but(options={name: np.full((call.shape.B, 1), 1.5, call.q.dtype)})


def _cut_to_one(axis: int) -> Callable[[Call], Call]:
    def arrange(call: Call) -> Call:
        k = call.k[:, :1] if axis == 1 else call.k[:, :, :1]
        return call.but(k=k, v=call.v if axis == 1 else call.v[:, :, :1])

    return arrange


def _turned(call: Call) -> Call:
    """Deep-negative scores for every other query, as far above 0 for the rest."""
    sign = np.where(np.arange(call.shape.L) % 2, 1, -1)[:, None, None]
    return call.but(q=(call.q * sign).astype(call.q.dtype))


def _far_below(size: float) -> Callable[[Call], Call]:
    """One key is visible, with a score of -size; all others score 0."""

    def arrange(call: Call) -> Call:
        kind = call.q.dtype
        q, k = np.zeros_like(call.q), np.zeros_like(call.k)
        root = np.sqrt(size)
        q[..., 0] = kind.type(root)
        k[:, 0, :, 0] = kind.type(-root)
        mask = np.arange(call.shape.S) > 0
        return call.but(q=q, k=k, mask=np.broadcast_to(mask, (call.shape.L, call.shape.S)).copy())

    return arrange
