"""Which backend runs a call of the module: decided once for each kind of call, then looked up."""

from __future__ import annotations

import functools
import shlex
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import torch

from fullattention.backends import Backend, load, names
from fullattention.nn.call import Call

if TYPE_CHECKING:
    from fullattention.choosing.choice import Known, Request
    from fullattention.records import Choice

AUTO = "auto"

DEFAULTS = ("torch-sdpa", "torch-einsum")
"""What runs where nothing tells which is fastest: the second where the first lacks something."""

_decisions: dict[tuple[Call, bool], Backend] = {}
"""By call, and by whether it may be measured."""

_deciding = threading.RLock()
"""Held while a decision is made: two threads must not measure at a time."""


def decide(call: Call, tune: bool) -> Backend:
    """The backend for a call; a lookup from the second time on.

    While torch compiles or exports a model, it is one of `DEFAULTS`, whose code torch can follow.
    """
    if torch.compiler.is_compiling():
        return _default(call)
    backend = _decisions.get((call, tune))
    if backend is not None:
        return backend
    with _deciding:
        if (call, tune) not in _decisions:
            _decisions[call, tune] = _decided(call, tune)
        return _decisions[call, tune]


def refused(call: Call, tune: bool) -> Backend:
    """What runs from now on where the backend that was decided for refuses a call."""
    _decisions[call, tune] = backend = _default(call)
    return backend


def _decided(call: Call, tune: bool) -> Backend:
    if not _is_choosable(call):
        return _default(call)
    choice = _choice(call)
    if tune and not _was_measured(choice):
        _measure(call)
        choice = _choice(call)
    if isinstance(choice, str):
        return _default(call)
    return load(choice.backend, call.device.type)


def _is_choosable(call: Call) -> bool:
    """Whether there is anything to compute; the layer refuses, or answers, the rest by itself."""
    if len(call.queries) != 4 or 0 in call.shape:
        return False
    return call.mask != "causal" or call.shape.L == call.shape.S


def _was_measured(choice: Choice | str) -> bool:
    return not isinstance(choice, str) and choice.options[0].basis == "measured"


def _measure(call: Call) -> None:
    """Time the backends that take tensors, in processes of their own, and read the result.

    Raises:
        RuntimeError: it fails; the message is what the measuring said.
    """
    command = [sys.executable, "-m", "fullattention", "choose", "--measure"]
    for option, value in (
        ("--shape", ",".join(map(str, call.shape))),
        ("--dtype", call.dtype),
        ("--mask", call.mask),
        ("--mode", call.mode),
        ("--device", call.device.type),
        ("--threads", str(call.threads)),
    ):
        command += [option, value]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"tune: {shlex.join(command)} failed: {done.stderr.strip()}")
    forget()


def explained(call: Call) -> str:
    """The decision for a call, and every backend's time or the reason why it has none."""
    choice = _choice(call, every=True)
    if isinstance(choice, str):
        return f"{_default(call).name}, by default: {choice}"
    from fullattention.reports.blocks import as_text
    from fullattention.reports.choices import choice_blocks

    return as_text(choice_blocks(choice))


def forget() -> None:
    """Decide anew from now on, by what is kept by then."""
    _decisions.clear()
    _known.cache_clear()


def _choice(call: Call, *, every: bool = False) -> Choice | str:
    """The choice among the backends that were ever timed here, or all; or why there is none."""
    try:
        from fullattention.choosing.choice import NothingMeasuredError, rank

        known = _known()
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed, which reading what was measured needs"
    try:
        return rank(_request(call), known, names() if every else known.backends)
    except NothingMeasuredError as error:
        return str(error)


@functools.cache
def _known() -> Known:
    from fullattention.choosing.choice import known_here

    return known_here()


def _request(call: Call) -> Request:
    from fullattention.choosing.choice import Request

    return Request(
        shape=call.shape,
        dtype=call.dtype,
        mask=call.mask,
        mode=call.mode,
        device=call.device.type,
        threads=call.threads,
        uses=call.needs,
        library="torch",
    )


def _default(call: Call) -> Backend:
    """The first of `DEFAULTS` that can run a call, or the last."""
    fused, plain = (load(name, call.device.type) for name in DEFAULTS)
    return plain if any(need in fused.lacks for need in call.needs) else fused
