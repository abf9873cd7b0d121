"""Says in a line each what a failing candidate does instead of what the contract asks.

The candidate is asked fresh questions, each twice with other numbers. Where its answers are not the
contract's, known mistakes are tried in their place, one after another: a mistake is named only if
it explains wrong answers on both draws and spoils no right one. What no known mistake explains is
described by the smallest set of calls that it keeps to.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fullattention.conformance.conditions import narrowest
from fullattention.conformance.explanation import Explanation, Mistake
from fullattention.conformance.facts import facts
from fullattention.conformance.fuzz import parse_case
from fullattention.conformance.observation import Observation, observations, observe
from fullattention.conformance.probes import Probe, probes
from fullattention.conformance.subject import Subject
from fullattention.records import Result, Status

SEEDS = (9001, 9002)
"""Far from those of the checks, so that a candidate that remembers finds nothing."""

MOST_CASES = 12
"""Failed cases that are asked again."""

MOST_TRIALS = 3
"""Trials that are named which fail although all numbers are right."""


def diagnose(subject: Subject, results: Sequence[Result] = ()) -> list[str]:
    """What the candidate does wrong, a line for each independent mistake; empty if nothing shows.

    Where it raises what no check showed, the one line says so.

    Args:
        subject: the candidate.
        results: what its checks found; they add to where a mistake without a name is looked for.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return [
                *_lines(subject, results),
                *_torchs_own(subject, results),
                *_filled_afterwards(subject, results),
            ]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a candidate may raise anything
            return [f"none: while it was sought, {type(error).__qualname__} was raised: {error}"]


def _lines(subject: Subject, results: Sequence[Result]) -> list[str]:
    failed = list(_cases(results, "failed"))
    again = failed[:: max(len(failed) // MOST_CASES, 1)][:MOST_CASES]
    observed = list(observations(subject, probes(subject), SEEDS))
    cases = list(observations(subject, again, SEEDS))
    if all(one.is_right for one in (*observed, *cases)):
        return _nothing(observed, results)
    change = _change(subject, observed[0])
    if change:
        return [change]
    explanation = Explanation(observed)
    explanation.search()
    named = [_line(explanation, mistake) for mistake in explanation.mistakes]
    left = [observed[i] for i in explanation.left if not named or not _is_unreadable(observed[i])]
    left += [one for one in cases if not explanation.explains(one)]
    right = [observed[i].probe for i in explanation.explained]
    rest = facts(
        left,
        [*right, *_cases(results, "passed")],
        [] if named else list(_cases(results, "failed", numbers=True)),
        lambda probe: all(one.is_right for one in observations(subject, [probe], SEEDS)),
    )
    return named + [f"beyond that, {line}" if named else line for line in rest]


def _nothing(observed: Sequence[Observation], results: Iterable[Result]) -> list[str]:
    """The numbers are right: then what fails is something else, if a check failed at all."""
    broken = dict.fromkeys(r.requirement for r in results if r.status == "failed" and r.dtype)
    if not broken or not observed:
        return []
    line = f"right in {len(observed)} kinds of calls tried; what fails is {', '.join(broken)}"
    return ["; ".join([line, *itertools.islice(_trials(results), MOST_TRIALS)])]


def _trials(results: Iterable[Result]) -> Iterator[str]:
    """Which trials fail for some calls and pass for others, and where."""
    tried: dict[str, dict[Status, list[Probe]]] = {}
    for result in results:
        label, shape, case = result.check.partition(": ")[2].partition("shape=")
        with contextlib.suppress(ValueError):
            probe = Probe(case=parse_case(shape + case), requirement=result.requirement)
            tried.setdefault(label.strip(), {}).setdefault(result.status, []).append(probe)
    for label, found in tried.items():
        if label and "failed" in found and "passed" in found:
            where, elsewhere = narrowest(found["failed"], found["passed"])
            if where and not elsewhere:
                yield f"`{label}` only where {where}"


def _torchs_own(subject: Subject, results: Iterable[Result]) -> Iterator[str]:
    """Says so where this machine's torch misplaces NaN: any layer of its products then does."""
    if subject.library != "torch" or subject.device != "cpu":
        return
    failed = [
        result
        for result in results
        if result.status == "failed"
        and result.dtype == "bfloat16"
        and result.requirement in ("M6", "N4")
        and "got nan" in result.detail
    ]
    from fullattention.backends.torch_leak import leaks

    if failed and leaks():
        broken = " and ".join(dict.fromkeys(result.requirement for result in failed))
        yield (
            "torch's own bfloat16 product carries NaN from row to row on this CPU, which may be "
            f"all that fails in bfloat16 in {broken}: see Known failures in docs/validating.md"
        )


def _filled_afterwards(subject: Subject, results: Iterable[Result]) -> Iterator[str]:
    """Says so where dv lacks the NaN of a fully hidden row since our layer makes that row."""
    if subject.masked_rows == "nan":
        return
    for result in results:
        if (result.requirement, result.status) != ("G3", "failed"):
            continue
        if result.detail.startswith("gradient of v:") and "expected nan" in result.detail:
            yield (
                "the NaN of a fully hidden row is put into V after `attend`, from where it reaches "
                "no gradient of v: declare masked_rows='nan' if `attend` gives it by itself, else "
                "that the backend deviates from G3"
            )
            return


def _is_unreadable(observation: Observation) -> bool:
    """Whether V must show what was dropped, which it does not if it is wrong in another way."""
    call = observation.trials[0].call
    return call.dropout > 0 and call.training


def _change(subject: Subject, first: Observation) -> str:
    """Says so if the first call is answered otherwise than it was before all others."""
    then, now = first.trials[0], observe(subject, first.probe, SEEDS[0])
    if now is None or then.answer is None or now.answer is None:
        return ""
    before, after = (one.answer.out.astype(np.float64) for one in (then, now) if one.answer)
    if np.allclose(before, after, rtol=0, atol=then.tolerance, equal_nan=True):
        return ""
    return (
        "gives the same call another answer after other calls "
        f"(V differs by up to {np.nanmax(abs(before - after), initial=0.0):.1g}): "
        "it depends on earlier calls, on memory that is not its own, or on chance"
    )


def _line(explanation: Explanation, mistake: Mistake) -> str:
    """What the mistake is, and how well it explains the answers that it concerns."""
    explained, unexplained = explanation.concerned(mistake)
    equal = all(explanation.observed[i].fits(explanation.steps[i]) for i in explained)
    words = f"max error {_largest(explanation, explained, explanation.mistakes):.1g}"
    if not equal:
        others = [other for other in explanation.mistakes if other is not mistake]
        words += f" instead of {_largest(explanation, explained, others):.1g}"
    if unexplained:
        words += f"; in {len(explained)} of {len(explained) + len(unexplained)} kinds of such calls"
    verb = f"{'equals' if equal else 'comes near to'} FullAttention"
    start = verb if mistake is explanation.mistakes[0] else "and"
    where = f" where {mistake.where.text}" if mistake.where else ""
    return f"{start} with {mistake.dialect.text}{where} ({words})"


def _largest(explanation: Explanation, some: Sequence[int], mistakes: Sequence[Mistake]) -> float:
    """The largest error that some mistakes leave, in the first dtype if there is one in it."""
    first = explanation.asked[0].case.dtype
    shown = [i for i in some if explanation.asked[i].case.dtype == first] or some
    return max(
        (
            error.largest
            for i in shown
            for error in explanation.observed[i].errors_of(explanation.with_only(mistakes, i))
        ),
        default=0.0,
    )


def _cases(results: Iterable[Result], status: str, *, numbers: bool = False) -> Iterator[Probe]:
    """The calls of those results whose check is a case and nothing more.

    With `numbers`, of those only that are wrong by their numbers.
    """
    for result in results:
        if result.status != status or (
            numbers and not result.detail.startswith(("V:", "weights:"))
        ):
            continue
        try:
            case = parse_case(result.check.partition(": ")[2])
        except ValueError:
            continue
        yield Probe(case=case, requirement=result.requirement)
