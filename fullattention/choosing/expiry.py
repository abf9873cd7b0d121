"""Whether a timing has expired: made with a library, driver or setting that has changed since."""

from __future__ import annotations

from collections.abc import Iterator

from fullattention.backends import Backend
from fullattention.records import Environment, Timing

UNCOMPARED = ("_CACHE_DIR", "_NUM_THREADS", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES")
"""Ends of variables that expire nothing: torch sets the caches' place and how modules are loaded by
itself, once it compiles or sees a GPU; threads are matched by their number; GPUs by their kind."""


def took_part(timing: Timing) -> bool:
    """Whether a backend was loaded for its timing at all; else the record tells only why not."""
    return timing.status != "not run" or bool(timing.library_version)


def expired(timing: Timing, backend: Backend, here: Environment) -> str:
    """Why a timing tells nothing any more; empty where it does."""
    for what, then, now in _facts(timing, backend, here):
        if then != now:
            return f"expired: measured with {what} {then}, here is {now}"
    return ""


def _facts(
    timing: Timing, backend: Backend, here: Environment
) -> Iterator[tuple[str, str | None, str | None]]:
    """What a time depends on beside the hardware: as it was, and as it is."""
    then = timing.environment
    if took_part(timing):
        yield backend.arrays.library, timing.library_version, backend.version
    yield "fullattention", then.suite, here.suite
    yield "the GPU's driver", then.gpu_driver, here.gpu_driver
    for name in sorted({*then.variables, *here.variables}):
        if not name.endswith(UNCOMPARED):
            yield name, then.variables.get(name, "unset"), here.variables.get(name, "unset")
