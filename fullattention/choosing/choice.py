"""The choice: every backend, ranked by its time for a call, or with the reason why it is not."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fullattention.backends.interface import Sizes
from fullattention.choosing.advice import nothing_measured
from fullattention.choosing.contests import in_proportion, verdicts
from fullattention.choosing.known import Known, known_here
from fullattention.choosing.options import option_of
from fullattention.choosing.request import Request
from fullattention.choosing.store import Store, existing
from fullattention.machine.hardware import usable_cores
from fullattention.records import Choice, Comparison, Mask, Mode, Option, Speed, Timing


class NothingMeasuredError(LookupError):
    """No timing here tells anything of a call, so there is nothing to choose by."""


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
        The fastest first; those that cannot be chosen, with their reasons, last.

    Raises:
        NothingMeasuredError: no backend that could run it was measured on this hardware.
        OSError: the store's folder is none.
        ValueError: an argument makes no sense; the message names it.
    """
    if not isinstance(store, Store | None):
        raise ValueError(f"store is {store!r}: a choosing.Store, such as Store(Path('folder'))")
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

    Disturbed timings count only where no backend has any other. The request's baseline takes part
    in any case.

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
        options = [option_of(name, request, of[name], known.here, calm=calm) for name in of]
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


def _beside_baseline(options: list[Option], baseline: str) -> list[Option]:
    """The options, without the times that cannot be compared with the baseline's.

    These are times of other runs, so of another moment of the machine, and all of them where the
    baseline has none. If the baseline cannot run the call, all stay.
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


def _has_time(option: Option) -> bool:
    return option.seconds is not None


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
