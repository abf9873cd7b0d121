"""Times one candidate on one workload, and looks whether what it gave meanwhile was right."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fullattention.backends import UnsupportedError
from fullattention.bench.calls import Calls, Clock, build_layer
from fullattention.bench.inputs import SEED, Inputs, random_inputs
from fullattention.bench.limits import TooLargeError, require_memory, require_time
from fullattention.bench.spot_check import changed_inputs, largest_error
from fullattention.bench.workloads import Workload
from fullattention.conformance.subject import Subject
from fullattention.machine import hardware
from fullattention.records import Environment, Timing, Verdict

Measure = Callable[[Callable[[], None], int, int], Sequence[float]]
"""Runs a function in rounds of so many calls; gives each round's seconds per call."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much time a timing may take; all in seconds but the number of rounds."""

    measuring: float = 1.0
    round: float = 0.02
    """Long enough that a neighbour's turn on the core is a small part of it."""
    warm_up: float = 0.1
    fewest_rounds: int = 5
    longest_call: float = 1.0
    """A workload of which one call takes longer is left out."""


THOROUGH = Effort(measuring=2.0, longest_call=10.0)
"""For a full run."""


def time_subject(
    subject: Subject,
    workload: Workload,
    *,
    verdict: Verdict,
    environment: Environment,
    measure: Measure,
    effort: Effort,
    clock: Clock = time.perf_counter,
) -> Timing:
    """The timing of steady calls, checked against the bound; the first call is told apart.

    What the candidate refuses, and what is too large, gives a timing that says why. Any other error
    of the candidate is passed on.
    """
    untimed = not_run(
        workload,
        environment,
        backend=subject.name,
        device=subject.device,
        version=subject.version,
        verdict=verdict,
    )
    if not verdict.conformant:
        return dataclasses.replace(untimed, reason=_failures(verdict))
    try:
        require_memory(subject, workload, hardware.memory_free())
        inputs = random_inputs(workload, SEED)
        require_time(subject, workload, inputs, effort.longest_call, clock)
        return _timed(untimed, subject, workload, inputs, measure, effort, clock)
    except TooLargeError as error:
        return dataclasses.replace(untimed, reason=str(error))
    except UnsupportedError as error:
        return dataclasses.replace(untimed, reason=f"lacks {error.capability}: {error.reason}")
    except Exception as error:
        if not _out_of_memory(error):
            raise
        return dataclasses.replace(untimed, reason=f"out of memory: {first_line(error)}")


def not_run(
    workload: Workload,
    environment: Environment,
    *,
    backend: str,
    device: str,
    reason: str = "",
    version: str = "",
    verdict: Verdict | None = None,
) -> Timing:
    """A timing that was not made."""
    return Timing(
        backend=backend,
        library_version=version,
        device=device,
        workload=workload.name,
        shape=workload.shape,
        dtype=workload.dtype,
        mask=workload.mask,
        status="not run",
        reason=reason,
        verdict_level=verdict.level if verdict else None,
        conformant=verdict.conformant if verdict else None,
        environment=environment,
    )


def _timed(
    untimed: Timing,
    subject: Subject,
    workload: Workload,
    inputs: Inputs,
    measure: Measure,
    effort: Effort,
    clock: Clock,
) -> Timing:
    q, k, v = (subject.arrays.put(array, subject.device) for array in inputs)
    calls = Calls(subject, build_layer(subject, workload), (q, k, v))
    first_call = calls.seconds(clock)
    call = _warm_up(calls, effort.warm_up, clock)
    per_round = max(1, math.ceil(effort.round / call))
    rounds = max(effort.fewest_rounds, int(effort.measuring / (per_round * call)))

    random = np.random.default_rng(SEED)
    last = rounds * per_round - 1
    calls.start(per_round, wanted=(int(random.integers(last + 1)), last))
    start, others = clock(), hardware.others_cpu_seconds()
    samples = measure(calls, rounds, per_round)
    other_load = (hardware.others_cpu_seconds() - others) / (clock() - start)
    outputs = [subject.arrays.take(out) for out in calls.kept]
    error = largest_error(subject, workload, inputs, outputs, random)
    wrong = _wrong(error, changed_inputs(subject, inputs, (q, k, v)))

    lower, median, upper = (float(x) for x in np.quantile(samples, (0.25, 0.5, 0.75)))
    return dataclasses.replace(
        untimed,
        status="wrong" if wrong else "timed",
        reason=wrong,
        error_over_bound=error if math.isfinite(error) else None,
        first_call=first_call,
        median=median,
        lower_quartile=lower,
        upper_quartile=upper,
        minimum=float(min(samples)),
        rounds=rounds,
        calls_per_round=per_round,
        other_load=max(0.0, other_load),
        seed=SEED,
    )


def _warm_up(calls: Calls, seconds: float, clock: Clock) -> float:
    """Call until the time is over, twice at least; seconds of the fastest call."""
    end = clock() + seconds
    fastest = min(calls.seconds(clock), calls.seconds(clock))
    while clock() < end:
        fastest = min(fastest, calls.seconds(clock))
    return fastest


def _wrong(error: float, changed: Sequence[str]) -> str:
    """What is wrong with timed calls, in words; nothing if all is right."""
    if changed:
        return f"it changed its {' and '.join(changed)}"
    if math.isinf(error):
        return "a sampled output has a wrong shape, or a NaN or infinity out of place"
    return "" if error <= 1 else f"a sampled output's error is {error:.3g} times its bound"


def _failures(verdict: Verdict) -> str:
    failed = [result.check for result in verdict.results if result.status == "failed"]
    if not failed:
        return "not conformant: no check could be tried"
    return f"not conformant: {failed[0]}" + (f", {len(failed) - 1} more" if failed[1:] else "")


def _out_of_memory(error: Exception) -> bool:
    # torch and CuPy call theirs OutOfMemoryError too, and share no class with Python's.
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def first_line(error: Exception) -> str:
    """The error's message without its details; its class where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]
