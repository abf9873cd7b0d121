"""What a candidate answered to a probe, and whether given steps would have answered the same."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fullattention.backends.errors import UnsupportedError
from fullattention.conformance.bound import Expected, ratios
from fullattention.conformance.call import Call, ask, expected_of
from fullattention.conformance.case import Answer, Failed, Refused
from fullattention.conformance.probes import Probe
from fullattention.conformance.steps import (
    RIGHT,
    Contradiction,
    Prediction,
    Refusal,
    Steps,
    heads_first,
)
from fullattention.conformance.subject import Subject

ROOM = 4.0
"""Multiple of the largest bound within which an answer counts as that of some steps."""

CLOSE = 0.25
"""Share of the contract's error that steps may leave where rounding itself is the mistake."""

SMALL = 0.1
"""Share of V that an error of rounding stays below."""


class Error(NamedTuple):
    """How far an answer is from a prediction; infinite where they differ in kind."""

    largest: float
    rms: float


NONE, ANY = Error(0.0, 0.0), Error(math.inf, math.inf)


@dataclass(frozen=True)
class Trial:
    """One call and what came of it."""

    call: Call
    answer: Answer | None
    """None: there is none."""
    failure: str = ""
    """Why there is none."""
    refused: bool = False
    """Whether the candidate raised, rather than returned something of another form."""
    expected: Expected | None = None
    """What the contract answers; None if it refuses, or leaves it to chance."""
    tolerance: float = 0.0
    """How far V and the weights may lie off what mistaken steps give, whose bound is not known."""
    settled: np.ndarray | None = None
    """Rows (B, H, L, 1) that our layer may answer in the candidate's place."""

    @functools.cached_property
    def must_refuse(self) -> bool:
        """Whether the contract refuses the call."""
        try:
            RIGHT(self.call.but(dropout=0.0))
        except Refusal:
            return True
        return False

    @functools.cached_property
    def is_right(self) -> bool:
        """Whether the contract allows the answer."""
        if self.answer is None or self.must_refuse:
            return self.refused and self.must_refuse
        if self.expected is None:
            return self.fits(RIGHT)
        weights = self.answer.weights
        return not self.wrong.any() and (
            weights is None
            or bool(
                (ratios(weights, self.expected.weights, self.expected.weights_bound) <= 1).all()
            )
        )

    @property
    def wrong(self) -> np.ndarray:
        """Where V (B, L, H, D) is not what the contract answers."""
        assert self.answer is not None
        assert self.expected is not None
        return ~(ratios(self.answer.out, self.expected.out, self.expected.out_bound) <= 1)

    def predict(self, steps: Steps) -> Prediction:
        """What the steps answer.

        Raises:
            Refusal: they refuse.
            Contradiction: they would have dropped other weights.
        """
        kept = None
        if self.answer is not None and self.call.dropout:
            kept = heads_first(self.answer.out.astype(np.float64)) != 0
        return steps(self.call, kept)

    def error_of(self, steps: Steps) -> Error:
        """How far the answer is from that of the steps."""
        try:
            error = self._error_of(self.predict(steps))
            if self.settled is not None:
                error = min(error, self._error_of(self._settled_by_us(steps, self.settled)))
        except Refusal:
            return NONE if self.refused else ANY
        except Contradiction:
            return ANY
        return error

    def _error_of(self, prediction: Prediction) -> Error:
        if self.answer is None:
            return ANY
        errors = [_apart(self.answer.out, prediction.out)]
        if prediction.weights is not None and self.answer.weights is not None:
            errors.append(_apart(self.answer.weights, prediction.weights))
        return Error(*(max(part) for part in zip(*errors, strict=True)))

    def _settled_by_us(self, steps: Steps, rows: np.ndarray) -> Prediction:
        """Our layer shows a backend the fully hidden rows, and answers them itself."""
        assert self.call.hidden is not None
        prediction = steps(self.call.but(mask=self.call.hidden & ~rows))
        value = 0.0 if self.call.masked_rows == "zero" else math.nan
        return Prediction(np.where(heads_first(rows), value, prediction.out), None)

    def fits(self, steps: Steps) -> bool:
        """Whether the steps answer the same, within the declared precision."""
        return self.error_of(steps).largest <= self.tolerance

    def is_near(self, steps: Steps) -> bool:
        """Whether they do, or come far nearer than the contract where that is near already."""
        return self._is_near(self.error_of(steps))

    def is_nearer(self, steps: Steps, rms: float, *, near_is_enough: bool) -> bool:
        """Whether they do, by an error of at most `rms`; or are near, if that is enough."""
        error = self.error_of(steps)
        if self.refused or not error.rms <= rms:
            return self.refused and error == NONE
        return error.largest <= self.tolerance or (near_is_enough and self._is_near(error))

    def _is_near(self, error: Error) -> bool:
        if error.largest <= self.tolerance:
            return True
        return error.rms <= CLOSE * self._contracts_error and self.is_small(self._contracts_error)

    def is_small(self, rms: float) -> bool:
        """Whether rounding could make such an error."""
        return rms <= SMALL * self._size

    @functools.cached_property
    def _contracts_error(self) -> float:
        return self.error_of(RIGHT).rms

    @functools.cached_property
    def _size(self) -> float:
        """Of V."""
        return 0.0 if self.answer is None else _rms(self.answer.out.astype(np.float64))


def _rms(x: np.ndarray) -> float:
    return math.sqrt(np.vdot(x, x) / max(x.size, 1))


def _apart(got: np.ndarray, want: np.ndarray) -> Error:
    """How far an answer is from a prediction, rounded as the answer is."""
    if got.shape != want.shape:
        return ANY
    apart = abs(got.astype(np.float64) - want.astype(got.dtype).astype(np.float64))
    if not np.isfinite(apart).all():
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
    return Error(float(apart.max(initial=0.0)), _rms(apart))


def observe(subject: Subject, probe: Probe, seed: int) -> Trial | None:
    """Ask the candidate; None where it says, or its library, that it cannot be asked this."""
    call = probe.call(seed)
    try:
        answer = ask(subject, call)
    except (UnsupportedError, Refused):
        return None
    except Failed as error:
        return Trial(call, None, str(error))
    except Exception as error:  # noqa: BLE001 - a candidate may raise anything
        return Trial(call, None, f"{type(error).__qualname__}: {error}", refused=True)
    expected = _expected(subject, call)
    return Trial(
        call,
        answer,
        expected=None if call.dropout and call.training else expected,
        tolerance=_tolerance(subject, call, answer, expected),
        settled=_settled(subject, call),
    )


def _expected(subject: Subject, call: Call) -> Expected | None:
    """What the contract answers in eval; None where keys and values do not fit together."""
    fit = call.k.shape[1:3] == call.v.shape[1:3] and call.k.shape[2] == call.q.shape[2]
    return expected_of(subject, call) if fit else None


def _tolerance(subject: Subject, call: Call, answer: Answer, expected: Expected | None) -> float:
    """Some times the largest bound, and the rounding of what may be larger than the right V."""
    out = answer.out.astype(np.float64)
    finite = float(abs(out[np.isfinite(out)]).max(initial=0.0))
    rounding = 8 * subject.precision[call.dtype].u_out * max(finite, 1.0)
    if expected is None:
        return 8 * rounding
    bounds = [expected.out_bound, expected.weights_bound] if call.weights else [expected.out_bound]
    largest = max(bound[np.isfinite(bound)].max(initial=0.0) for bound in bounds)
    return float(rounding + ROOM * largest / (1 - call.dropout))


def _settled(subject: Subject, call: Call) -> np.ndarray | None:
    """Fully hidden rows, where a backend is called through our layer."""
    if "strict_sizes" in subject.lacks or call.hidden is None:
        return None
    rows: np.ndarray = np.logical_and.reduce(call.hidden, -1, keepdims=True)
    return rows if rows.any() else None


@dataclass(frozen=True)
class Observation:
    """A probe and what came of each draw of it."""

    probe: Probe
    trials: tuple[Trial, ...]

    @property
    def answered(self) -> bool:
        """Whether there are numbers to explain."""
        return self.trials[0].answer is not None

    @property
    def tells(self) -> bool:
        """Whether one of the candidate's own is finite: much gives NaN, for many reasons."""
        trial = self.trials[0]
        if trial.answer is None:
            return False
        finite = heads_first(np.isfinite(trial.answer.out))
        return bool((finite if trial.settled is None else finite & ~trial.settled).any())

    @property
    def is_right(self) -> bool:
        """Whether the contract allows every answer."""
        return all(trial.is_right for trial in self.trials)

    def fits(self, steps: Steps) -> bool:
        """Whether the steps give every answer."""
        return all(trial.fits(steps) for trial in self.trials)

    def is_near(self, steps: Steps) -> bool:
        """Whether they give every answer, or come far nearer than the contract."""
        return all(trial.is_near(steps) for trial in self.trials)

    def errors_of(self, steps: Steps) -> list[Error]:
        """The errors of the steps in each draw."""
        return [trial.error_of(steps) for trial in self.trials]

    def differs(self, one: Steps, other: Steps) -> bool:
        """Whether two kinds of steps answer otherwise, as far as that can be told."""
        return any(_differ(trial, one, other) for trial in self.trials)


def _differ(trial: Trial, one: Steps, other: Steps) -> bool:
    if trial.call.dropout and trial.call.training:
        return False  # what was dropped shows only as long as V is what it should be
    found = []
    for steps in (one, other):
        try:
            found.append(trial.predict(steps).out)
        except (Refusal, Contradiction):
            found.append(np.empty(0))
    return _apart(found[0], found[1]).largest > trial.tolerance


def observations(
    subject: Subject, probes: list[Probe], seeds: tuple[int, ...]
) -> Iterator[Observation]:
    """What comes of all probes that can be asked, one draw of each after the other."""
    for probe in probes:
        trials = [observe(subject, probe, seed) for seed in seeds]
        asked = tuple(trial for trial in trials if trial is not None)
        if asked:
            yield Observation(probe, asked)
