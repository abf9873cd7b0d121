"""Finds backends: the built-in table, entry points, `module:object`, and `path.py[:object]`."""

from __future__ import annotations

import copyreg
import functools
import importlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from fullattention.backends import extras
from fullattention.backends.errors import InvalidInputError, UnavailableError, described
from fullattention.backends.interface import Backend

ENTRY_POINTS = "fullattention.backends"

DEVICE = r"[a-z][a-z0-9_]*(:(0|[1-9][0-9]*))?"
"""What names of devices look like."""

BUILT_IN: dict[str, str] = {
    "numpy-reference": "fullattention.backends.numpy_reference:backend",
    "numpy-matmul": "fullattention.backends.numpy_matmul:backend",
    "torch-einsum": "fullattention.backends.torch_einsum:backend",
    "torch-bmm": "fullattention.backends.torch_bmm:backend",
    "torch-compile": "fullattention.backends.torch_compile:backend",
    "torch-sdpa": "fullattention.backends.torch_sdpa:backend",
    "torch-sdpa-math": "fullattention.backends.torch_sdpa:math",
    "torch-sdpa-flash": "fullattention.backends.torch_sdpa:flash_attention",
    "torch-sdpa-efficient": "fullattention.backends.torch_sdpa:efficient",
    "torch-sdpa-cudnn": "fullattention.backends.torch_sdpa:cudnn",
    "torch-flex": "fullattention.backends.torch_flex:backend",
    "flash-attn": "fullattention.backends.flash_attn_2:backend",
    "xformers": "fullattention.backends.xformers_attention:backend",
    "numba-cpu": "fullattention.backends.numba_cpu:backend",
    "numba-cpu-torch": "fullattention.backends.numba_cpu:for_torch",
    "onnxruntime": "fullattention.backends.onnxruntime_cpu:backend",
    "onnxruntime-attention": "fullattention.backends.onnxruntime_cpu:attention",
    "openvino": "fullattention.backends.openvino_cpu:backend",
    "jax": "fullattention.backends.jax_sdpa:backend",
    "jax-einsum": "fullattention.backends.jax_einsum:backend",
    "cupy-matmul": "fullattention.backends.cupy_matmul:backend",
    "cupy-fused": "fullattention.backends.cupy_fused:backend",
    "cupy-fused-torch": "fullattention.backends.cupy_fused:for_torch",
    "numba-cuda": "fullattention.backends.numba_cuda:backend",
    "numba-cuda-torch": "fullattention.backends.numba_cuda:for_torch",
    "triton": "fullattention.backends.triton_fused:backend",
}
"""Name -> a function of a device. A table works in a bare checkout, without package metadata."""

_origins: dict[Backend, tuple[str, str]] = {}
"""What each backend was loaded by, and for which device."""


def names() -> list[str]:
    """Every backend known by name: built in, and registered by entry points."""
    return list(dict.fromkeys([*BUILT_IN, *_entry_points()]))


def load(spec: str, device: object = "cpu") -> Backend:
    """The backend that a name, `module:object` or `path.py[:object]` stands for, built once.

    Args:
        spec: what it goes by.
        device: where it is to run, by name or as torch has it.

    Raises:
        InvalidInputError: the device is no name of one.
        UnavailableError: it cannot run here; the reason says why.
        LookupError: there is no such backend.
        TypeError: the object is no backend.
    """
    name = str(device)
    if not re.fullmatch(DEVICE, name):
        raise InvalidInputError(
            f"device is {name!r}: a kind, such as 'cpu' or 'cuda', or one of several, as 'cuda:1'"
        )
    return _loaded(spec, name)


@functools.cache
def _loaded(spec: str, device: str) -> Backend:
    found = load_object(spec)
    if isinstance(found, Backend):
        if found.device != device:
            raise UnavailableError(spec, f"it runs on device {found.device!r} only, not {device!r}")
    elif isinstance(found, type) or not callable(found):
        kind = type(found).__qualname__
        raise TypeError(f"{spec!r} is a {kind}: neither a Backend nor a function of a device")
    else:
        found = _build(spec, found, device)
    _origins[found] = spec, device
    return found


def _reduced(backend: Backend) -> Any:
    """How to pickle or copy a backend: what was loaded is loaded again, as it runs there.

    Not all of it can be pickled, such as kernels that were compiled here; any other goes by its
    fields.
    """
    if backend in _origins:
        return load, _origins[backend]
    return object.__reduce_ex__(backend, 2)


copyreg.pickle(Backend, _reduced)


def _build(spec: str, build: Callable[[str], object], device: str) -> Backend:
    try:
        built = build(device)
    except UnavailableError:
        raise
    except ImportError as error:
        raise UnavailableError(spec, _missing(error)) from error
    except Exception as error:
        told = f"called with {device!r} it raised {described(error)}"
        inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
        if isinstance(error, TypeError) and not inside:  # the call itself made no sense
            raise TypeError(
                f"{spec!r} is no function of a device, nor one of q, k and v: {told}"
            ) from error
        raise UnavailableError(spec, told) from error
    if not isinstance(built, Backend):
        raise TypeError(f"{spec!r} gave {built!r}: not a Backend")
    return built


def load_object(spec: str) -> object:
    """The object that a name, `module:object` or `path.py[:object]` stands for.

    Without `:object`, a file stands for its `backend`, else for its only Backend or its own class
    `FullAttention`.

    Raises:
        UnavailableError: the module needs a library that is not installed.
        LookupError: there is nothing by that name; the message lists what there is.
    """
    target = BUILT_IN.get(spec) or _entry_points().get(spec) or spec
    place, attribute = split_file(target)
    is_file = bool(place)
    if not is_file:
        place, _, attribute = target.partition(":")
    if not is_file and not attribute:
        file = f"{spec}.py"
        hint = f"; there is a file {file}" if Path(file).is_file() else ""
        raise LookupError(
            f"no backend is called {spec!r}{hint}; known are {', '.join(names())}; "
            "your own goes by module:object or path.py[:object]"
        )
    if is_file and not Path(place).is_file():
        raise LookupError(f"{spec!r}: there is no file {place}")
    module = _imported(spec, place, is_file)
    if attribute:
        if not hasattr(module, attribute):
            raise LookupError(f"{spec!r}: {place} has no {attribute!r}")
        return getattr(module, attribute)
    return _only_candidate(module, spec)


def split_file(spec: str) -> tuple[str, str]:
    """Path and object of `path.py[:object]`; both empty where that is something else.

    A path may hold colons, and an object's name holds none.
    """
    found = re.fullmatch(r"(.+\.py)(?::([^:]*))?", spec, re.DOTALL)
    return (found[1], found[2] or "") if found else ("", "")


def _imported(spec: str, place: str, is_file: bool) -> ModuleType:
    try:
        return _module_from_file(Path(place)) if is_file else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if not is_file and error.name and f"{place}.".startswith(f"{error.name}."):
            raise LookupError(f"{spec!r}: there is no module {error.name!r}") from error
        raise UnavailableError(spec, _missing(error)) from error
    except (Exception, SystemExit) as error:
        raise LookupError(f"{spec!r} does not import: {described(error)}") from error


def _only_candidate(module: ModuleType, spec: str) -> object:
    """The object of a file that names none; what the file merely imports does not count."""
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, Backend)
        or (
            name in ("backend", "FullAttention")
            and getattr(value, "__module__", None) == module.__name__
        )
    }
    if "backend" in found:
        return found["backend"]
    if len(found) == 1:
        return next(iter(found.values()))
    own = [name for name, value in vars(module).items() if _is_own(value, module)]
    functions = [name for name in own if not name.startswith("_")]
    others = f", such as {', '.join(functions)}" if functions and not found else ""
    raise LookupError(
        f"{spec!r}: the file defines {', '.join(found) or 'no Backend, `backend` or FullAttention'}"
        f"; name one object as path.py:object{others}"
    )


def _is_own(value: object, module: ModuleType) -> bool:
    """Whether a file's object is a function or class that is written there."""
    return callable(value) and getattr(value, "__module__", None) == module.__name__


@functools.cache  # a file that is named twice is run once
def _module_from_file(path: Path) -> ModuleType:
    path = path.resolve()
    # A file may import its neighbours, as it does when it is run as a script.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = f"_candidate_{path.stem}_{abs(hash(path)):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@functools.cache
def _entry_points() -> dict[str, str]:
    return {
        point.name: point.value for point in importlib.metadata.entry_points(group=ENTRY_POINTS)
    }


def _missing(error: ImportError) -> str:
    library = (error.name or "").partition(".")[0]
    if command := extras.command(library):
        return f"{library} is not installed: {command}"
    if isinstance(error, ModuleNotFoundError):
        return f"{library} is not installed"
    return f"{library or 'a library'} does not import: {error}"
