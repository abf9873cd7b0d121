"""Which backend runs a call of the module: decided once for each kind of call, then looked up."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import shlex
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from fullattention.backends import Backend, UnavailableError, load, names
from fullattention.backends.interface import needs
from fullattention.backends.precision import DTYPES
from fullattention.backends.torch_followers import FORWARD_MODE
from fullattention.nn.call import Call

if TYPE_CHECKING:
    from fullattention.choosing.known import Known
    from fullattention.choosing.request import Request
    from fullattention.records import Choice

AUTO = "auto"

DEFAULTS = ("torch-sdpa", "torch-einsum")
"""What runs where nothing tells which is fastest, and where torch has to see every operation: the
second where the first lacks something."""

_decisions: dict[tuple[tuple[Any, ...], int, bool], Backend] = {}
"""By call, torch's number of threads, and whether it may be measured."""

_defaults: dict[str, tuple[Backend, ...]] = {}
"""By kind of device, as far as they are loaded."""

_deciding = threading.RLock()
"""Held while a decision is made: two threads must not measure at a time."""


def decide(fields: tuple[Any, ...], tune: bool) -> Backend:
    """The backend for the call with these fields; a lookup from the second time on."""
    key = (fields, torch.get_num_threads(), tune)
    backend = _decisions.get(key)
    if backend is not None:
        return backend
    with _deciding:
        if key not in _decisions:
            _decisions[key] = _decided(Call._make(fields), tune)
        return _decisions[key]


def refused(fields: tuple[Any, ...], tune: bool) -> Backend:
    """What runs from now on where the backend that was decided for refuses a call."""
    backend = default(fields)
    _decisions[fields, torch.get_num_threads(), tune] = backend
    return backend


def default(fields: tuple[Any, ...], followed_by: str = "") -> Backend:
    """The first of `DEFAULTS` that can run the call with these fields, or the last.

    Args:
        fields: as `fields_of` gives them.
        followed_by: what has to see the call's operations, as `follower` says.
    """
    call = Call._make(fields)
    load_defaults(call.device.type)
    fused, plain = _defaults[call.device.type]
    return plain if followed_by == FORWARD_MODE or not _serves(fused, call) else fused


def _serves(backend: Backend, call: Call) -> bool:
    return not any(need in backend.lacks for need in needs(call.dtype, call.mask, call.uses))


def load_defaults(device: str) -> None:
    """Have `DEFAULTS` at hand for a kind of device.

    They load in a thread of their own: to load, they try things, and what follows the operations of
    this thread would follow those.
    """
    if device not in _defaults:
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            _defaults[device] = tuple(thread.map(load, DEFAULTS, [device] * len(DEFAULTS)))


def _decided(call: Call, tune: bool) -> Backend:
    if not _is_choosable(call):
        return default(call)
    choice = _choice(call)
    if tune and not _was_measured(choice):
        if failure := _measure(call):
            warnings.warn(f"tune: nothing was measured: {failure}", RuntimeWarning, stacklevel=2)
        choice = _choice(call)
    if isinstance(choice, str):
        return default(call)
    return load(choice.backend, call.device.type)


def _is_choosable(call: Call) -> bool:
    """Whether there is anything to compute; the layer refuses, or answers, the rest by itself."""
    if len(call.queries) != 4 or 0 in call.shape or call.dtype not in DTYPES:
        return False
    return call.mask != "causal" or call.shape.L == call.shape.S


def _was_measured(choice: Choice | str) -> bool:
    if isinstance(choice, str) or choice.timed_threads is not None:
        return False
    return choice.options[0].basis == "measured"


def _measure(call: Call) -> str:
    """Time what may be chosen for a call, in processes of its own; says why, if that fails."""
    try:
        request = _request(call)
    except ModuleNotFoundError as error:
        return f"it needs {_missing(error)}"
    arguments = dataclasses.replace(request, backends=tuple(_candidates(call))).arguments
    command = [sys.executable, "-m", "fullattention", "choose", "--measure", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    _known.cache_clear()  # earlier decisions stay: checkpointing relies on them
    return f"{shlex.join(command)} says {done.stderr.strip()}" if done.returncode else ""


def _candidates(call: Call) -> Iterator[str]:
    """The backends that run here, take tensors, never stop to compile, and can do a call."""
    for name in names():
        try:
            backend = load(name, call.device.type)
        except (UnavailableError, LookupError):
            continue
        takes = backend.arrays.type is torch.Tensor and call.dtype in backend.precision
        if takes and not backend.compiles and _serves(backend, call):
            yield name


def explained(call: Call) -> str:
    """The decision for a call, and every backend's time or the reason why it has none."""
    choice = _choice(call, every=True)
    if isinstance(choice, str):
        return f"{default(call).name}, by default: {choice}"
    try:
        from fullattention.reports.blocks import as_text
        from fullattention.reports.choices import choice_blocks
    except ModuleNotFoundError as error:
        return f"{choice.backend}; why not the others needs {_missing(error)}"
    return as_text(choice_blocks(choice))


def _missing(error: ModuleNotFoundError) -> str:
    return f"{error.name}, which is not installed: pip install 'fullattention[suite]'"


def forget() -> None:
    """Decide anew from now on, by what is kept by then."""
    _decisions.clear()
    _known.cache_clear()


def _choice(call: Call, *, every: bool = False) -> Choice | str:
    """The choice among the backends that were ever timed here, or all; or why there is none."""
    try:
        from fullattention.choosing.choice import NothingMeasuredError, rank
    except ModuleNotFoundError as error:
        return f"reading what was measured needs {_missing(error)}"
    try:
        request, known = _request(call), _known()
        return rank(request, known, names() if every else known.timed_for(request))
    except NothingMeasuredError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - no record, however odd, is to stop a model
        return f"what was measured makes no sense: {type(error).__name__}: {error}"


@functools.cache
def _known() -> Known:
    from fullattention.choosing.known import known_here

    return known_here()


def _request(call: Call) -> Request:
    from fullattention.choosing.request import Request
    from fullattention.machine.hardware import usable_cores

    return Request(
        shape=call.shape,
        dtype=call.dtype,
        mask=call.mask,
        mode=call.mode,
        device=call.device.type,
        # torch's own default may be more than a quota allows, or fewer than `bench` uses: the
        # cores that the CPU has, without its second threads.
        threads=min(torch.get_num_threads(), usable_cores()),
        nearest_threads=True,
        uses=call.uses,
        library="torch",
        compiling=False,
        baseline=default(call).name,
    )
