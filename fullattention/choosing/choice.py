"""The choice: every backend, ranked by its time for a call, or with the reason why it is not."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from fullattention.backends import Backend, UnavailableError, load, names
from fullattention.backends.interface import Sizes, needs
from fullattention.backends.precision import DTYPES
from fullattention.choosing.advice import nothing_measured
from fullattention.choosing.contests import in_proportion, verdicts
from fullattention.choosing.expiry import expired, took_part
from fullattention.choosing.hardware_key import hardware_key
from fullattention.choosing.model import beyond, fit
from fullattention.choosing.store import Store, existing
from fullattention.machine.environment import environment
from fullattention.machine.hardware import GIB, usable_cores
from fullattention.records import (
    Choice,
    Comparison,
    Environment,
    Mask,
    Mode,
    Option,
    Speed,
    Timing,
)
from fullattention.units import memory

USED_BY_MODE: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights",),
    "training": ("gradient", "dropout"),
}
"""Capabilities that a timed call uses by its mode."""

WIDEST = 100.0
"""Upper over lower end of what the model says of a time, beyond which it tells nothing."""


class NothingMeasuredError(LookupError):
    """No timing here tells anything of a call, so there is nothing to choose by."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The call that a backend is wanted for.

    Raises:
        ValueError: a field breaks its rule; the message names it.
    """

    shape: Sizes
    dtype: str = "float32"
    mask: Mask = "none"
    mode: Mode = "forward"
    device: str = "cpu"
    threads: int
    nearest_threads: bool = False
    """Whether the timings with the nearest number of threads will do."""
    max_memory: int | None = None
    """Bytes that a call may take at its peak."""
    deterministic: bool = False
    uses: tuple[str, ...] = ()
    """Capabilities that the call uses beyond those of its mask and mode."""
    library: str | None = None
    """Whose arrays the backend is to take; None: any."""
    compiling: bool = True
    """Whether a call may stop for seconds to compile."""
    backends: tuple[str, ...] = ()
    """By name, those that may run it; none: every known one."""
    baseline: str = ""
    """What runs by default: another one takes its place only by times of both that compare, and if
    measured then only where it is known to be faster."""

    def __post_init__(self) -> None:
        if min(self.shape) < 1:
            raise ValueError(f"shape is {tuple(self.shape)}: every size must be at least 1")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}: one of {', '.join(DTYPES)}")
        for name, value, known in (
            ("mask", self.mask, get_args(Mask)),
            ("mode", self.mode, get_args(Mode)),
        ):
            if not isinstance(value, str) or value not in known:
                raise ValueError(f"{name} is {value!r}: one of {', '.join(known)}")
        if self.mask == "causal" and self.shape.L != self.shape.S:
            raise ValueError("mask is 'causal': that needs as many queries as keys, L == S")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}: at least 1")
        if self.max_memory is not None and self.max_memory < 1:
            raise ValueError(f"max_memory is {self.max_memory}: at least 1 byte")
        if unknown := [name for name in self.backends if name not in names()]:
            raise ValueError(f"backend is {unknown[0]!r}: one of {', '.join(names())}")

    @property
    def candidates(self) -> tuple[str, ...]:
        """The backends that may run it."""
        return self.backends or tuple(names())

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the command line calls such a call."""
        return (
            *("--shape", ",".join(map(str, self.shape)), "--dtype", self.dtype),
            *("--mask", self.mask, "--mode", self.mode),
            *("--device", self.device, "--threads", str(self.threads)),
            *(() if self.max_memory is None else ("--max-memory", f"{self.max_memory / GIB:.17g}")),
            *(("--deterministic",) if self.deterministic else ()),
            *itertools.chain(*(("--backend", name) for name in self.backends)),
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """The capabilities that such a call uses, its dtype first."""
        kept = ("determinism",) if self.deterministic else ()
        return needs(self.dtype, self.mask, (*USED_BY_MODE.get(self.mode, ()), *kept, *self.uses))

    @property
    def on_gpu(self) -> bool:
        """Whether the arrays lie elsewhere than in the host's memory."""
        return _kind(self.device) != "cpu"

    def is_of(self, record: Timing | Comparison) -> bool:
        """Whether a record is of such a call, in whatever shape.

        Of a GPU which one it was does not matter, nor how many threads the CPU had.
        """
        threads = self.on_gpu or record.environment.threads == self.threads
        return threads and self.is_like(record)

    def is_like(self, record: Timing | Comparison) -> bool:
        """Whether a record is of such a call, with whatever number of threads."""
        wanted, told = (
            (_kind(one.device), one.dtype, one.mask, one.mode) for one in (self, record)
        )
        return wanted == told


def _kind(device: str) -> str:
    return device.partition(":")[0]


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is kept of this hardware."""

    folder: Path
    """Of the store."""
    key: str
    here: Environment
    timings: Sequence[Timing]
    """The oldest first."""
    comparisons: Sequence[Comparison]

    def timed_for(self, request: Request) -> list[str]:
        """The backends that were timed at such calls, less those of other libraries' arrays.

        It loads none of them: that would import their libraries.
        """
        libraries = ("", request.library)  # old records do not tell theirs
        return list(
            dict.fromkeys(
                timing.backend
                for timing in self.timings
                if timing.status == "timed"
                and request.is_like(timing)
                and (request.library is None or timing.library in libraries)
            )
        )


def known_here(store: Store | None = None) -> Known:
    """What a store keeps of the hardware that this process runs on."""
    here = environment(usable_cores())
    key = hardware_key(here)
    kept = store or Store()
    return Known(
        folder=kept.folder,
        key=key,
        here=here,
        timings=kept.timings(key).records,
        comparisons=kept.comparisons(key).records,
    )


def choose(
    shape: Sequence[int],
    *,
    dtype: object = "float32",
    mask: Mask = "none",
    mode: Mode = "forward",
    device: object = "cpu",
    threads: int | None = None,
    max_memory: int | None = None,
    deterministic: bool = False,
    backends: Iterable[str] = (),
    store: Store | None = None,
) -> Choice:
    """Rank the backends for a call by what was measured on this hardware.

    Args:
        shape: B, L, S, H, E, D.
        dtype: of the arrays, by name or as torch or NumPy has it.
        mask: "none", "causal" or "padding".
        mode: "forward", "weights", "training" or "host".
        device: where the arrays lie, by name or as torch has it.
        threads: that the libraries may use; None: as many as there are usable cores.
        max_memory: bytes that a call may take at its peak; None: any.
        deterministic: whether the same input must give the same bits.
        backends: names of those to choose from; none: every known one.
        store: what was measured; None: the user's own.

    Returns:
        The fastest first; those that are out of question, with their reasons, last.

    Raises:
        NothingMeasuredError: no backend that could run it was measured on this hardware.
        OSError: the store's folder is none.
        ValueError: an argument makes no sense; the message names it.
    """
    if isinstance(backends, str):
        raise ValueError(f"backends is {backends!r}: a list of names, such as [{backends!r}]")
    request = Request(
        shape=_sizes(shape),
        dtype=getattr(dtype, "__name__", str(dtype)).removeprefix("torch."),
        mask=mask,
        mode=mode,
        device=str(device),
        threads=usable_cores() if threads is None else _whole("threads", threads),
        max_memory=None if max_memory is None else _whole("max_memory", max_memory),
        deterministic=deterministic,
        backends=tuple(backends),
    )
    return rank(request, known_here(store and existing(store.folder)), request.candidates)


def _sizes(shape: Sequence[int]) -> Sizes:
    """Six whole numbers, as sizes."""
    try:
        return Sizes(*map(operator.index, shape))
    except TypeError as error:
        raise ValueError(
            f"shape is {shape!r}: six sizes B, L, S, H, E, D, whole numbers"
        ) from error


def _whole(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise ValueError(f"{name} is {value!r}: a whole number") from error


def rank(request: Request, known: Known, backends: Iterable[str]) -> Choice:
    """Rank some backends for a call.

    Timings that were disturbed count only where there are no others, of whatever backend. The
    request's baseline takes part in any case.

    Raises:
        NothingMeasuredError: none of them that could run it was measured.
    """
    default = (request.baseline,) if request.baseline else ()
    backends = list(dict.fromkeys((*backends, *default)))
    timed = _with_timed_threads(request, [t for t in known.timings if t.backend in backends])
    comparisons = list(filter(timed.is_of, known.comparisons))
    timings = in_proportion(list(filter(timed.is_of, known.timings)), comparisons)
    of = {name: [timing for timing in timings if timing.backend == name] for name in backends}
    options: list[Option] = []
    for calm in (True, False):
        options = [_option(name, request, of[name], known.here, calm=calm) for name in of]
        options = _beside_baseline(options, request.baseline)
        if any(map(_has_time, options)):
            break
    else:
        raise NothingMeasuredError(nothing_measured(request, known, options))
    return Choice(
        shape=request.shape,
        dtype=request.dtype,
        mask=request.mask,
        mode=request.mode,
        device=request.device,
        threads=request.threads,
        timed_threads=None if timed.threads == request.threads else timed.threads,
        hardware=known.key,
        options=_ranked(options, request, comparisons),
        environment=known.here,
    )


def _with_timed_threads(request: Request, timings: Iterable[Timing]) -> Request:
    """The request, by as many threads as the timings that are to tell of it were made with."""
    if request.on_gpu or not request.nearest_threads:
        return request
    counts = {
        timing.environment.threads
        for timing in timings
        if timing.status == "timed" and request.is_like(timing)
    }
    nearest = min(counts, key=lambda n: (abs(n - request.threads), n), default=request.threads)
    return replace(request, threads=nearest)


def _option(
    name: str, request: Request, timings: Sequence[Timing], here: Environment, *, calm: bool
) -> Option:
    """What is known of a backend, by its undisturbed timings alone where it is to be `calm`."""
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


def _beside_baseline(options: list[Option], baseline: str) -> list[Option]:
    """The options, without the times that say nothing of how long the baseline would take.

    Those of other runs, of another moment of the machine, and any where the baseline has none. All
    stay where the baseline is out of question.
    """
    base = next((option for option in options if option.backend == baseline), None)
    if base is None or (base.seconds is None and base.basis not in ("unknown", "void")):
        return options
    reason = f"{baseline}, which runs by default, has no time that this one's compares with"
    return [
        option
        if option.seconds is None or (option.basis, option.measured) == (base.basis, base.measured)
        else Option(backend=option.backend, basis="unknown", reason=reason)
        for option in options
    ]


def _is_disturbed(timing: Timing) -> bool:
    """Whether a time is one that disturbance may have lengthened, or made void."""
    return timing.status in ("timed", "void") and timing.disturbed


def _has_time(option: Option) -> bool:
    return option.seconds is not None


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
    """What fresh timings tell: the newest of the very shape, or else what the others come to."""
    newest = _newest(timings)
    last = newest.get(request.shape)
    if last is None:
        return _interpolated(name, request, newest)
    if last.conformant is False:
        return Option(backend=name, basis="not conformant", reason=last.reason)
    if last.status == "not run":
        reason = f"{last.reason} (as of {last.environment.time[:10]})"
        return Option(backend=name, basis="not run", reason=reason)
    if last.status != "timed":
        return Option(backend=name, basis=last.status, reason=last.reason)
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
    """The newest timing of each shape; one that was not run counts where there is no other."""
    newest: dict[Sizes, Timing] = {}
    for timing in timings:
        shape = Sizes(*timing.shape)
        if _was_judged(timing) or shape not in newest or not _was_judged(newest[shape]):
            newest[shape] = timing
    return newest


def _was_judged(timing: Timing) -> bool:
    """Whether it tells how fast or how right its backend is, not only why it was not run."""
    return timing.status != "not run" or timing.conformant is False


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
    if estimate.factor**2 > WIDEST:
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


def _ranked(
    options: Sequence[Option], request: Request, comparisons: Sequence[Comparison]
) -> tuple[Option, ...]:
    timed = sorted((o for o in options if o.seconds is not None), key=lambda o: o.seconds or 0.0)
    rest = [option for option in options if option.seconds is None]
    best = timed[0]
    found = verdicts(one for one in comparisons if tuple(one.shape) == tuple(request.shape))
    contest = (best.measured, best.workload)
    ranked = [replace(best, ratio=1.0, tied=False)]
    for option in timed[1:]:
        ratio = (option.seconds or 0.0) / (best.seconds or 1.0)
        together = (option.measured, option.workload) == contest
        verdict = found.get((contest, option.backend, best.backend)) if together else None
        ranked.append(replace(option, ratio=ratio, tied=_tied(best, option, verdict)))
    return (*_default_first(ranked, request.baseline), *rest)


def _default_first(ranked: Sequence[Option], baseline: str) -> list[Option]:
    """The ranked options, but first the baseline where no other is known to be faster."""
    kept = [o for o in ranked if o.backend == baseline and o.tied and o.basis == "measured"]
    return [*kept, *(option for option in ranked if option not in kept)]


def _tied(best: Option, other: Option, verdict: Speed | None) -> bool:
    """Whether it may be as fast as the fastest: by their contest's verdict, or by overlap."""
    if verdict is not None:
        return verdict != "slower"
    return (other.low or 0.0) <= (best.high or 0.0)
