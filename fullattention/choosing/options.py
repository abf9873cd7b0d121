"""What is known of one backend for a call: its time, or the reason why it has none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fullattention.backends import Backend, UnavailableError, load
from fullattention.backends.interface import Sizes
from fullattention.backends.precision import DTYPES
from fullattention.choosing.expiry import expired, took_part
from fullattention.choosing.model import beyond, fit
from fullattention.choosing.request import Request
from fullattention.records import Environment, Option, Timing
from fullattention.units import memory

WIDEST = 10.0
"""An interpolated time that is known only within a larger factor tells nothing."""


def option_of(
    name: str, request: Request, timings: Sequence[Timing], here: Environment, *, calm: bool
) -> Option:
    """What is known of a backend; if `calm`, by its undisturbed timings alone."""
    try:
        backend = load(name, request.device)
    except UnavailableError as error:
        return Option(backend=name, basis="unavailable", reason=error.reason)
    except (LookupError, TypeError) as error:  # known no more, or another's that is broken
        return Option(backend=name, basis="unavailable", reason=str(error.args[0]))
    lacking = _lacking(backend, request)
    if lacking:
        return Option(backend=name, basis="unsupported", reason=lacking)
    stale = [expired(timing, backend, here) for timing in timings]
    fresh = [timing for timing, reason in zip(timings, stale, strict=True) if not reason]
    if not fresh:
        reason = "; ".join(dict.fromkeys(stale)) or "not measured here"
        return Option(backend=name, basis="unknown", reason=reason)
    fresh = list(filter(took_part, fresh)) or fresh
    told = [timing for timing in fresh if not (calm and _is_disturbed(timing))]
    if not told:
        reason = f"measured only while others disturbed it, last {fresh[-1].environment.time[:10]}"
        return Option(backend=name, basis="unknown", reason=reason)
    return _told(name, request, told)


def _lacking(backend: Backend, request: Request) -> str:
    """What a call needs and a backend has not; empty where it has all."""
    library = backend.arrays.library
    if request.library not in (None, library):
        return f"it takes arrays of {library}, not of {request.library}"
    if backend.compiles and not request.compiling:
        return "it stops to compile at the first call of each kind: name it to have it"
    for need in request.needs:
        if need in backend.lacks:
            return f"{need}: {backend.lacks[need]}"
        if need in DTYPES and need not in backend.precision:
            return f"{need}: it takes {', '.join(backend.precision)}"
    return ""


def _told(name: str, request: Request, timings: Sequence[Timing]) -> Option:
    """What timings tell: the newest one of this very shape, or else those of other shapes."""
    newest = _newest(timings)
    last = newest.get(request.shape)
    if last is None:
        return _interpolated(name, request, newest)
    if last.conformant is False:
        return Option(backend=name, basis="not conformant", reason=last.reason)
    match last.status:
        case "incomplete":
            return Option(backend=name, basis="unknown", reason=last.reason)
        case "not run":
            reason = f"{last.reason} (as of {last.environment.time[:10]})"
            return Option(backend=name, basis="not run", reason=reason)
        case "wrong" | "void" as basis:
            return Option(backend=name, basis=basis, reason=last.reason)
    over = _over_memory(last, request)
    if over:
        measured = last.environment.time
        return Option(backend=name, basis="unsupported", reason=over, measured=measured)
    return Option(
        backend=name,
        basis="measured",
        seconds=last.median,
        low=last.lower_quartile,
        high=last.upper_quartile,
        error_over_bound=last.error_over_bound,
        measured=last.environment.time,
        workload=last.workload,
        reason="disturbed" if last.disturbed else "",
    )


def _newest(timings: Iterable[Timing]) -> dict[Sizes, Timing]:
    """The newest timing of each shape; one that judges nothing counts where there is no other."""
    newest: dict[Sizes, Timing] = {}
    for timing in timings:
        shape = Sizes(*timing.shape)
        if _was_judged(timing) or shape not in newest or not _was_judged(newest[shape]):
            newest[shape] = timing
    return newest


def _was_judged(timing: Timing) -> bool:
    """Whether it tells how fast or how right its backend is, not only why that is not known."""
    return timing.status not in ("not run", "incomplete") or timing.conformant is False


def _over_memory(timing: Timing, request: Request) -> str:
    if request.max_memory is None:
        return ""
    if timing.peak_bytes is None:
        return "its peak memory was not measured"
    if timing.peak_bytes > request.max_memory:
        return f"it takes {memory(timing.peak_bytes)}, the limit is {memory(request.max_memory)}"
    return ""


def _interpolated(name: str, request: Request, newest: Mapping[Sizes, Timing]) -> Option:
    if request.max_memory is not None:
        reason = "this shape's peak memory was not measured"
        return Option(backend=name, basis="unknown", reason=reason)
    timed = {shape: timing for shape, timing in newest.items() if timing.status == "timed"}
    seconds = [one.median for one in timed.values() if one.median is not None]
    model = fit(list(timed), seconds)
    if model is None:
        reason = f"this shape was not measured, and too few others were: {len(timed)}"
        return Option(backend=name, basis="unknown", reason=reason)
    if outside := beyond(request.shape, list(timed)):
        reason = f"this shape was not measured, and lies beyond those that were: {outside}"
        return Option(backend=name, basis="unknown", reason=reason)
    estimate = model.at(request.shape)
    if estimate.factor > WIDEST:
        reason = (
            f"this shape was not measured, and the {len(timed)} that were tell its time only "
            f"within a factor of {estimate.factor:.3g}"
        )
        return Option(backend=name, basis="unknown", reason=reason)
    disturbed = any(map(_is_disturbed, timed.values()))
    return Option(
        backend=name,
        basis="interpolated",
        seconds=estimate.seconds,
        low=estimate.seconds / estimate.factor,
        high=estimate.seconds * estimate.factor,
        model_error=model.error,
        reason=f"told from {len(timed)} other shapes" + (", disturbed" if disturbed else ""),
    )


def _is_disturbed(timing: Timing) -> bool:
    """Whether a time is one that disturbance may have lengthened, or made void."""
    return timing.status in ("timed", "void") and timing.disturbed
