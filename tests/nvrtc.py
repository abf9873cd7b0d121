"""NVIDIA's run-time compiler, which needs neither a GPU nor its driver."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import re
from dataclasses import dataclass

WHEEL = "nvidia-cuda-nvrtc"


@dataclass(frozen=True)
class Usage:
    """What one kernel takes of a multiprocessor."""

    registers: int
    spilled: int
    """Bytes written to memory for want of registers."""
    stack: int
    """Bytes of local memory."""


def is_installed() -> bool:
    """Whether the compiler is here."""
    try:
        importlib.metadata.version(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@functools.cache
def nvrtc() -> ctypes.CDLL:
    """The compiler, from its wheel.

    Raises:
        importlib.metadata.PackageNotFoundError: the wheel is not installed.
    """
    files = importlib.metadata.files(WHEEL) or []
    (place,) = (file for file in files if re.fullmatch(r"libnvrtc\.so\.\d+", file.name))
    return ctypes.CDLL(str(place.locate()))


def compile_for(source: str, arch: str, options: tuple[str, ...]) -> dict[str, Usage]:
    """Compile to machine code; what each kernel of the source uses.

    Raises:
        RuntimeError: the source does not compile; the message is the compiler's.
    """
    library, program = nvrtc(), ctypes.c_void_p()
    library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"attention.cu", 0, None, None
    )
    given = [option.encode() for option in (f"-arch={arch}", "--ptxas-options=-v", *options)]
    failed = library.nvrtcCompileProgram(
        program, len(given), (ctypes.c_char_p * len(given))(*given)
    )
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    text = log.value.decode()
    if failed:
        raise RuntimeError(text)
    return _usages(text)


def _usages(log: str) -> dict[str, Usage]:
    found = re.findall(
        r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores"
        r".*?Used (\d+) registers",
        log,
        re.DOTALL,
    )
    return {
        name: Usage(registers=int(registers), spilled=int(spilled), stack=int(stack))
        for name, stack, spilled, registers in found
    }
