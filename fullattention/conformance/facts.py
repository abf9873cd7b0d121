"""The most specific thing that is known of mistakes that have no name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from fullattention.backends.interface import Sizes
from fullattention.conformance.conditions import narrowest, nearest
from fullattention.conformance.masks import OFF
from fullattention.conformance.observation import Observation, Trial
from fullattention.conformance.probes import Probe

LONGEST = 100
"""Characters of an error message that are shown."""

MOST_COMMON = 0.5
"""Share of the right calls that may have in common what all wrong ones have: more is chance."""

Ask = Callable[[Probe], bool]
"""Whether the candidate answers a probe as the contract asks."""


def facts(
    left: Sequence[Observation], right: Sequence[Probe], wrong: Sequence[Probe], is_right: Ask
) -> list[str]:
    """A line for each kind of answer that nothing explains.

    Args:
        left: what is not explained.
        right: calls that are answered as the contract asks, or explained.
        wrong: more calls that are answered with wrong numbers.
        is_right: asks the candidate again.
    """
    numbers = [one for one in left if one.answered and not one.trials[0].must_refuse]
    lines = [*_refusals(left, right), *_forms(left, right), *_answers(left, right)]
    if numbers:
        others = [*right, *_others(left, numbers)]
        lines.append(_numbers(numbers, others, wrong, is_right))
    return lines


def whereabouts(wrong: Sequence[Probe], right: Sequence[Probe]) -> str:
    """To which calls something keeps, in words that follow it."""
    condition, rest = narrowest(wrong, right)
    if not right:
        return "in every call tried"
    if not condition:
        common, rest = nearest(wrong, right)
        if rest > MOST_COMMON * len(right):
            return f"in {len(wrong)} of {len(wrong) + len(right)} kinds of calls tried"
        some = f"in {len(wrong)} of {len(wrong) + rest} kinds of calls tried"
        return f"{some} where {common}, and nowhere else"
    return f"only where {condition}{', but not always there' if rest else ''}"


def _others(left: Iterable[Observation], some: Sequence[Observation]) -> list[Probe]:
    chosen = {id(one) for one in some}
    return [one.probe for one in left if id(one) not in chosen]


def _with_failure(
    left: Sequence[Observation], right: Sequence[Probe], *, refused: bool
) -> Iterator[tuple[str, str]]:
    """Each kind of failure to answer, by one of its messages, and where it happens."""
    found: dict[str, list[Observation]] = {}
    for one in left:
        trial = one.trials[0]
        if trial.failure and trial.refused == refused and not trial.must_refuse:
            kind = " ".join(trial.failure.split()[:3])
            found.setdefault(kind, []).append(one)
    for some in found.values():
        messages = dict.fromkeys(_shortened(one.trials[0].failure) for one in some)
        message = next(iter(messages)) + (" and the like" if len(messages) > 1 else "")
        yield message, whereabouts([one.probe for one in some], [*right, *_others(left, some)])


def _shortened(message: str) -> str:
    line = message.partition("\n")[0]
    return line if len(line) <= LONGEST else line[:LONGEST] + " ..."


def _refusals(left: Sequence[Observation], right: Sequence[Probe]) -> Iterator[str]:
    for failure, where in _with_failure(left, right, refused=True):
        yield f"raises {where}: {failure}"


def _forms(left: Sequence[Observation], right: Sequence[Probe]) -> Iterator[str]:
    for failure, where in _with_failure(left, right, refused=False):
        yield failure if failure.startswith("output_attention") else f"{failure}, {where}"


def _answers(left: Sequence[Observation], right: Sequence[Probe]) -> Iterator[str]:
    """Calls that the contract refuses."""
    some = [one for one in left if one.trials[0].must_refuse]
    if some:
        others = [*right, *_others(left, some)]
        # One query is never refused.
        several = [probe for probe in others if probe.case.shape.L > 1]
        condition, _ = narrowest([one.probe for one in some], several)
        yield f"answers instead of refusing where {condition}"


def _numbers(
    some: Sequence[Observation],
    right: Sequence[Probe],
    wrong: Sequence[Probe],
    is_right: Ask,
) -> str:
    where = whereabouts([*(one.probe for one in some), *wrong], right)
    trials = [t for one in some for t in one.trials if not t.is_right and t.expected is not None]
    words = ["wrong " + where + _edge(where, some, is_right)]
    if trials:
        words += [*_size(trials), *_place(trials)]
    if not any(one.trials[0].call.dropout for one in some):  # which comes by chance
        if all(len(one.trials) > 1 and one.trials[0].is_right for one in some):
            words.append("right in the first call with its shapes and wrong in the next")
        if is_right(some[0].probe):
            words.append("right when asked once more")
    return "; ".join(words)


def _edge(where: str, some: Sequence[Observation], is_right: Ask) -> str:
    """Where exactly the right sizes end, if it is a size that decides."""
    size = re.fullmatch(r"only where ([A-Z]) > (\d+)", where)
    plain = [one.probe for one in some if one.probe.case.mask == OFF and not one.probe.traits]
    if size is None or not plain:
        return ""
    axis, low = size[1], int(size[2])
    smallest = min(plain, key=lambda probe: getattr(probe.case.shape, axis))
    high = getattr(smallest.case.shape, axis)

    def sized(size: int) -> Probe:
        shape: Sizes = smallest.case.shape._replace(**{axis: size})
        return Probe(case=smallest.case.but(shape=shape), requirement="C5")

    while high - low > 1:
        middle = (low + high) // 2
        if is_right(sized(middle)):
            low = middle
        else:
            high = middle
    return f" (right at {axis} = {low}, wrong at {axis} = {high})" if is_right(sized(low)) else ""


def _size(trials: Sequence[Trial]) -> Iterator[str]:
    """How wrong the wrong elements of V are."""
    pairs = [(t.answer.out[t.wrong], t.expected.out[t.wrong]) for t in trials]  # type: ignore[union-attr]
    got = np.concatenate([one.astype(np.float64) for one, _ in pairs])
    want = np.concatenate([other for _, other in pairs])
    if not got.size:
        yield "V is right, the returned weights are not"
        return
    if all(_is_float32(trial) for trial in trials):
        yield "float64 results hold float32 numbers: they are computed in float32"
    apart = abs(got - want)
    if np.isfinite(apart).all():
        rms = math.sqrt(np.mean(np.square(apart)) / max(np.mean(np.square(want)), 1e-300))
        if rms < 1e-2:
            yield f"about {-math.log2(rms):.0f} bits are right"
        yield f"V off by up to {apart.max():.1g}"
    for name, value in (
        ("NaN", np.isnan(got)),
        ("0", got == 0),
        ("infinite", np.isinf(got)),
        ("finite where it must be NaN", np.isfinite(got) & np.isnan(want)),
    ):
        if value.all():
            yield f"V is {name}"
            return
    if np.isnan(got).any():
        yield "some of V is NaN"


def _is_float32(trial: Trial) -> bool:
    assert trial.answer is not None
    out = trial.answer.out
    single = out.astype(np.float32).astype(out.dtype)
    return trial.call.dtype == "float64" and np.array_equal(single, out, equal_nan=True)


def _place(trials: Sequence[Trial]) -> Iterator[str]:
    """To which part of V the wrong elements keep, if all answers have right elements as well."""
    wrong = [trial.wrong for trial in trials]
    if any(at.all() or not at.any() for at in wrong):
        return
    for name, reduce in (("every key", np.all), ("a key", np.any)):
        if all(_keeps_to(trial, at, reduce) for trial, at in zip(trials, wrong, strict=True)):
            yield f"only in rows with {name} hidden"
            break
    for place, axis in enumerate("blhd"):
        others = tuple(other for other in range(4) if other != place)
        first = min(int(np.flatnonzero(at.any(others))[0]) for at in wrong)
        if first:
            yield f"only at {axis} >= {first}"


def _keeps_to(trial: Trial, wrong: np.ndarray, reduce: Callable[..., np.ndarray]) -> bool:
    """Whether V is wrong only in rows from which every key, or any, is hidden."""
    hidden = trial.call.hidden
    if hidden is None:
        return False
    rows = reduce(hidden, axis=-1, keepdims=True).swapaxes(1, 2)
    return not (wrong & ~np.broadcast_to(rows, wrong.shape)).any()
