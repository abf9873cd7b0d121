"""What to do where nothing tells of a call: the command that measures it, or why none can."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from fullattention.choosing.hardware_key import cpu_words
from fullattention.choosing.known import Known
from fullattention.choosing.request import Request
from fullattention.choosing.store import Store
from fullattention.machine.hardware import usable_cores
from fullattention.records import Option
from fullattention.units import counted, memory

LASTING = ("unavailable", "unsupported")
"""Why a backend is out, where measuring would not change it."""


def nothing_measured(request: Request, known: Known, options: Sequence[Option]) -> str:
    """What was looked for and where, how to measure it, and why each backend is out."""
    threads = counted(request.threads, "thread")
    call = f"{request.mode}, mask {request.mask}, {request.dtype} on {request.device}"
    if request.max_memory and any(option.measured for option in options):
        limit = memory(request.max_memory)
        first = f"no backend that was measured fits into {limit}: {call} with {threads}"
    else:
        first = f"nothing was measured that tells of {call} with {threads}"
    lines = [
        first,
        f"  on this hardware: {known.key}",
        f"  by what is kept in {known.folder}",
    ]
    words = f"{cpu_words(known.here)}-"
    others = [key for key in Store(known.folder).hardware() if key != known.key]
    if alike := [key for key in others if key.startswith(words)]:
        lines.append(f"  where this CPU has, with other cores or GPU: {', '.join(alike)}")
    return "\n".join((*lines, _advice(request, known, options), *_reasons(options)))


def _advice(request: Request, known: Known, options: Sequence[Option]) -> str:
    """The command that measures, with those of the wanted backends that can be."""
    possible = {o.backend for o in options if o.basis not in LASTING or o.measured}
    if refused := _refused(request, bool(possible or not options)):
        return f"It cannot be measured here: {refused}"
    wanted = replace(request, backends=tuple(n for n in request.backends if n in possible))
    command = ["fullattention", "choose", "--measure", *wanted.arguments]
    if known.folder != Store().folder:
        command += ["--store", str(known.folder)]
    return f"This measures it: {shlex.join(command)}"


def _refused(request: Request, possible: bool) -> str:
    """Why no command could measure a call; empty where one can."""
    cores = usable_cores()
    if request.threads > cores:
        return f"threads is {request.threads}, this process may use {cores}"
    if request.mode == "host" and not request.on_gpu:
        return "mode host is for other devices than the CPU, where it is mode forward"
    if not possible:
        return f"no backend can run it on device {request.device}"
    return ""


def _reasons(options: Sequence[Option]) -> list[str]:
    """Why each backend is out; those that are not there in one line."""
    missing = [option.backend for option in options if option.basis == "unavailable"]
    told = [f"  {o.backend}: {o.reason}" for o in options if o.basis != "unavailable"]
    return [*told, *([f"  not available here: {', '.join(missing)}"] if missing else [])]
