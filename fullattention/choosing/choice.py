"""The choice: every backend, ranked by its time for a call, or with the reason why it is not."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fullattention.backends import Backend, UnavailableError, load, names
from fullattention.backends.interface import Sizes, needs
from fullattention.backends.precision import DTYPES
from fullattention.choosing.hardware_key import hardware_key
from fullattention.choosing.model import fit
from fullattention.choosing.store import Store
from fullattention.machine.environment import environment
from fullattention.machine.hardware import usable_cores
from fullattention.records import Choice, Comparison, Environment, Mask, Mode, Option, Timing

USED_BY_MODE: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights",),
    "training": ("gradient", "dropout"),
}
"""Capabilities that a timed call uses by its mode."""


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
    max_memory: int | None = None
    """Bytes that a call may take at its peak."""
    deterministic: bool = False
    uses: tuple[str, ...] = ()
    """Capabilities that the call uses beyond those of its mask and mode."""
    library: str | None = None
    """Whose arrays the backend is to take; None: any."""
    compiling: bool = True
    """Whether a call may stop for seconds to compile."""

    def __post_init__(self) -> None:
        if min(self.shape) < 1:
            raise ValueError(f"shape is {tuple(self.shape)}: every size must be at least 1")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}: one of {', '.join(DTYPES)}")
        if self.mask == "causal" and self.shape.L != self.shape.S:
            raise ValueError("mask is 'causal': that needs as many queries as keys, L == S")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}: at least 1")

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the command line calls such a call."""
        return (
            *("--shape", ",".join(map(str, self.shape)), "--dtype", self.dtype),
            *("--mask", self.mask, "--mode", self.mode),
            *("--device", self.device, "--threads", str(self.threads)),
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """The capabilities that such a call uses, its dtype first."""
        kept = ("determinism",) if self.deterministic else ()
        return needs(self.dtype, self.mask, (*USED_BY_MODE.get(self.mode, ()), *kept, *self.uses))

    def is_of(self, record: Timing | Comparison) -> bool:
        """Whether a record is of such a call, in whatever shape.

        Of a GPU which one it was does not matter, nor how many threads the CPU had.
        """
        kind, record_kind = (device.partition(":")[0] for device in (self.device, record.device))
        wanted, told = ((one.dtype, one.mask, one.mode) for one in (self, record))
        threads = kind != "cpu" or record.environment.threads == self.threads
        return kind == record_kind and wanted == told and threads


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is kept of this hardware."""

    folder: Path
    """Of the store."""
    key: str
    here: Environment
    timings: Sequence[Timing]
    comparisons: Sequence[Comparison]

    @property
    def backends(self) -> list[str]:
        """The backends that were ever timed here."""
        return list(dict.fromkeys(timing.backend for timing in self.timings))


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
    dtype: str = "float32",
    mask: Mask = "none",
    mode: Mode = "forward",
    device: object = "cpu",
    threads: int | None = None,
    max_memory: int | None = None,
    deterministic: bool = False,
    store: Store | None = None,
) -> Choice:
    """Rank the backends for a call by what was measured on this hardware.

    Args:
        shape: B, L, S, H, E, D.
        dtype: of the arrays.
        mask: "none", "causal" or "padding".
        mode: "forward", "weights", "training" or "host".
        device: where the arrays lie, by name or as torch has it.
        threads: that the libraries may use; None: as many as there are usable cores.
        max_memory: bytes that a call may take at its peak; None: any.
        deterministic: whether the same input must give the same bits.
        store: what was measured; None: the user's own.

    Returns:
        The fastest first; those that are out of question, with their reasons, last.

    Raises:
        NothingMeasuredError: no backend that could run it was measured on this hardware.
        ValueError: an argument makes no sense; the message names it.
    """
    if len(shape) != len(Sizes._fields):
        raise ValueError(f"shape is {tuple(shape)}: six sizes B, L, S, H, E, D")
    request = Request(
        shape=Sizes(*shape),
        dtype=dtype,
        mask=mask,
        mode=mode,
        device=str(device),
        threads=usable_cores() if threads is None else threads,
        max_memory=max_memory,
        deterministic=deterministic,
    )
    return rank(request, known_here(store), names())


def rank(request: Request, known: Known, backends: Iterable[str]) -> Choice:
    """Rank some backends for a call.

    Timings that were disturbed count only where there are no others, of whatever backend.

    Raises:
        NothingMeasuredError: none of them that could run it was measured.
    """
    timings = [timing for timing in known.timings if request.is_of(timing)]
    of = {name: [timing for timing in timings if timing.backend == name] for name in backends}
    options = [_option(name, request, of[name], known.here, calm=True) for name in of]
    if not any(map(_has_time, options)):
        options = [_option(name, request, of[name], known.here, calm=False) for name in of]
    if not any(map(_has_time, options)):
        raise NothingMeasuredError(_nothing(request, known, options))
    comparisons = [one for one in known.comparisons if request.is_of(one)]
    return Choice(
        shape=request.shape,
        dtype=request.dtype,
        mask=request.mask,
        mode=request.mode,
        device=request.device,
        threads=request.threads,
        hardware=known.key,
        options=_ranked(options, request, comparisons),
        environment=known.here,
    )


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
    stale = {index: _expired(timing, backend, here) for index, timing in enumerate(timings)}
    fresh = [timings[index] for index, reason in stale.items() if not reason]
    if not fresh:
        reason = "; ".join(dict.fromkeys(stale.values())) or "not measured here"
        return Option(backend=name, basis="unknown", reason=reason)
    told = [timing for timing in fresh if not (calm and _is_disturbed(timing))]
    if not told:
        reason = f"measured only while others disturbed it, last {fresh[-1].environment.time[:10]}"
        return Option(backend=name, basis="unknown", reason=reason)
    return _told(name, request, told)


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


def _expired(timing: Timing, backend: Backend, here: Environment) -> str:
    """Why a timing tells nothing any more; empty where it does."""
    for what, then, now in (
        (backend.arrays.library, timing.library_version, backend.version),
        ("fullattention", timing.environment.suite, here.suite),
        ("the GPU's driver", timing.environment.gpu_driver, here.gpu_driver),
    ):
        if then != now:
            return f"expired: measured with {what} {then}, here is {now}"
    return ""


def _told(name: str, request: Request, timings: Sequence[Timing]) -> Option:
    """What fresh timings tell: the newest of the very shape, or else what the others come to."""
    exact = [timing for timing in timings if tuple(timing.shape) == tuple(request.shape)]
    if not exact:
        return _interpolated(name, request, timings)
    last = exact[-1]
    if last.conformant is False:
        return Option(backend=name, basis="not conformant", reason=last.reason)
    if last.status != "timed":
        return Option(backend=name, basis=last.status, reason=last.reason)
    over = _over_memory(last, request)
    if over:
        return Option(backend=name, basis="unsupported", reason=over)
    return Option(
        backend=name,
        basis="measured",
        seconds=last.median,
        low=last.lower_quartile,
        high=last.upper_quartile,
        error_over_bound=last.error_over_bound,
        measured=last.environment.time,
        reason="disturbed" if last.disturbed else "",
    )


def _over_memory(timing: Timing, request: Request) -> str:
    if request.max_memory is None:
        return ""
    if timing.peak_bytes is None:
        return "its peak memory was not measured"
    if timing.peak_bytes > request.max_memory:
        return f"it takes {timing.peak_bytes} bytes, the limit is {request.max_memory}"
    return ""


def _interpolated(name: str, request: Request, timings: Sequence[Timing]) -> Option:
    if request.max_memory is not None:
        reason = "this shape's peak memory was not measured"
        return Option(backend=name, basis="unknown", reason=reason)
    newest = {tuple(timing.shape): timing for timing in timings if timing.status == "timed"}
    seconds = [one.median for one in newest.values() if one.median is not None]
    model = fit([Sizes(*shape) for shape in newest], seconds)
    if model is None:
        reason = f"this shape was not measured, and too few others were: {len(newest)}"
        return Option(backend=name, basis="unknown", reason=reason)
    estimate = model.at(request.shape)
    disturbed = any(map(_is_disturbed, newest.values()))
    return Option(
        backend=name,
        basis="interpolated",
        seconds=estimate.seconds,
        low=estimate.seconds / estimate.factor,
        high=estimate.seconds * estimate.factor,
        model_error=model.error,
        reason=f"told from {len(newest)} other shapes" + (", disturbed" if disturbed else ""),
    )


def _ranked(
    options: Sequence[Option], request: Request, comparisons: Sequence[Comparison]
) -> tuple[Option, ...]:
    timed = sorted((o for o in options if o.seconds is not None), key=lambda o: o.seconds or 0.0)
    rest = [option for option in options if option.seconds is None]
    best = timed[0]
    against = _verdicts(best.backend, request, comparisons)
    ranked = [replace(best, ratio=1.0, tied=False)]
    for option in timed[1:]:
        ratio = (option.seconds or 0.0) / (best.seconds or 1.0)
        ranked.append(replace(option, ratio=ratio, tied=_tied(best, option, against)))
    return (*ranked, *rest)


def _verdicts(best: str, request: Request, comparisons: Sequence[Comparison]) -> Mapping[str, str]:
    """The newest verdict between the fastest and each other backend in this very shape."""
    verdicts: dict[str, str] = {}
    for one in comparisons:
        if tuple(one.shape) == tuple(request.shape) and best in (one.backend, one.against):
            verdicts[one.against if one.backend == best else one.backend] = one.verdict
    return verdicts


def _tied(best: Option, other: Option, verdicts: Mapping[str, str]) -> bool:
    """Whether the difference to the fastest may be none: by comparison, or by overlap."""
    if best.basis == other.basis == "measured" and other.backend in verdicts:
        return verdicts[other.backend] not in ("faster", "slower")
    return (other.low or 0.0) <= (best.high or 0.0)


def _nothing(request: Request, known: Known, options: Sequence[Option]) -> str:
    """What was looked for and where, the command that measures it, and why each backend is out."""
    command = ["fullattention", "choose", "--measure", *request.arguments]
    if known.folder != Store().folder:
        command += ["--store", str(known.folder)]
    what = f"{request.mode}, mask {request.mask}, {request.dtype} on {request.device}"
    return "\n".join(
        (
            f"nothing was measured that tells of {what} with {request.threads} threads",
            f"  on this hardware: {known.key}",
            f"  by what is kept in {known.folder}",
            f"This measures it: {shlex.join(command)}",
            *(f"  {option.backend}: {option.reason}" for option in options),
        )
    )
