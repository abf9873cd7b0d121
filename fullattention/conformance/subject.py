"""What is being judged: a backend, a class like the layer, or a function of q, k and v."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from fullattention.backends import numpy_arrays
from fullattention.backends.interface import Arrays, Backend, MaskedRows, ScoreCopies
from fullattention.backends.precision import DTYPES, Precision, flash, prescaled, stored, widest
from fullattention.backends.registry import load, load_object
from fullattention.layer import FullAttention

LAYER_LACKS: Mapping[str, str] = {
    "strict_sizes": "Time-Series-Library's layer broadcasts axes of size 1",
    "bare_masks": "Time-Series-Library's layer takes objects with a `mask`",
    "masked_rows=zero": "Time-Series-Library's layer gives NaN in fully hidden rows",
    "wide_scores": "a class declares no precision, so scores may be stored in the input's dtype",
    "double_backward": "a class declares no second derivative",
    "deterministic_gradient": "a class does not declare in which order its backward pass sums",
}
"""What a class is not asked for beyond the capabilities of a backend, and why."""

FUNCTION_LACKS: Mapping[str, str] = {
    **LAYER_LACKS,
    **dict.fromkeys(
        ("mask", "causal", "scale", "weights", "dropout", "arguments"),
        "a function takes q, k and v alone",
    ),
}
"""What a function cannot express, and why."""


class Layer(Protocol):
    """An instance of the layer."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Takes what `forward` takes: queries, keys, values, attn_mask, tau, delta."""

    def train(self, mode: bool = True) -> Any:
        """Switches dropout on."""

    def eval(self) -> Any:
        """Switches dropout off."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a candidate says of itself."""

    name: str
    library: str
    version: str
    device: str
    precision: Mapping[str, Precision]
    lacks: Mapping[str, str]
    deviates: Mapping[str, str]
    batch_invariant: bool = False
    compiles: bool = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes it takes, widest first."""
        return tuple(dtype for dtype in DTYPES if dtype in self.precision)


@dataclass(frozen=True, kw_only=True)
class Subject(Declaration):
    """One candidate on one device, with all that the checks need of it."""

    arrays: Arrays
    build: Callable[..., Layer]
    """Takes the layer's constructor arguments and `masked_rows` by keyword."""
    seed: Callable[[int], None]
    score_copies: ScoreCopies | None = None
    masked_rows: MaskedRows | None = "nan"
    """What it gives in a fully hidden row before our layer has its say; see `Backend`."""


def declaration_of(subject: Subject) -> Declaration:
    """What a candidate says of itself, without the candidate."""
    names = (field.name for field in dataclasses.fields(Declaration))
    return Declaration(**{name: getattr(subject, name) for name in names})


def load_subject(candidate: str | Backend | Callable[..., Any], device: object = "cpu") -> Subject:
    """The candidate that a name, `module:object`, `path.py[:object]` or an object stands for.

    Raises:
        UnavailableError, LookupError, TypeError: as `backends.load`.
    """
    device = str(device)
    name = candidate if isinstance(candidate, str) else getattr(candidate, "__qualname__", "")
    found = _loaded(candidate, device) if isinstance(candidate, str) else candidate
    if isinstance(found, Backend):
        return from_backend(found)
    if isinstance(found, type):
        return from_class(found, name, device)
    if not callable(found):
        raise TypeError(f"{found!r} is no Backend, class or function")
    return from_function(found, name, device)


def _loaded(spec: str, device: str) -> Backend | Callable[..., Any]:
    if ":" in spec or spec.endswith(".py"):
        found = load_object(spec)
        if isinstance(found, type) or _takes_three(found):
            return found  # type: ignore[return-value] # callable, as just seen
    return load(spec, device)


def _takes_three(found: object) -> bool:
    """Whether an object is a function that three positional arguments suffice for."""
    if isinstance(found, Backend) or not callable(found):
        return False
    try:
        signature = inspect.signature(found)
        signature.bind(None, None, None)
    except (TypeError, ValueError):
        return False
    return True


def from_backend(backend: Backend) -> Subject:
    """A backend under the layer's policy, in both profiles."""

    def build(**arguments: Any) -> Layer:
        return FullAttention(backend=backend, **arguments)

    return Subject(
        name=backend.name,
        library=backend.arrays.library,
        version=str(backend.version),  # torch's is of its own type, which to unpickle imports it
        device=backend.device,
        arrays=backend.arrays,
        precision=dict(backend.precision),
        build=build,
        lacks=dict(backend.lacks),
        deviates=dict(backend.deviates),
        seed=backend.seed,
        batch_invariant=backend.batch_invariant,
        compiles=backend.compiles,
        score_copies=backend.score_copies,
        masked_rows=backend.masked_rows,
    )


def from_class(layer: type, name: str, device: str) -> Subject:
    """A class with the layer's constructor and forward; a torch module takes tensors, others NumPy.

    A class declares nothing, so it is judged by the widest of the usual precisions, and by
    Time-Series-Library's own answer (NaN) in fully hidden rows.
    """
    torch = sys.modules.get("torch")  # a torch module cannot exist without it
    is_module = torch is not None and issubclass(layer, torch.nn.Module)

    def build(*, masked_rows: MaskedRows, **arguments: Any) -> Layer:
        made: Any = layer(**arguments)
        placed: Layer = made.to(device) if is_module else made
        return placed

    return _undeclared(build, name, device, is_torch=is_module, lacks=LAYER_LACKS)


def from_function(function: Callable[..., Any], name: str, device: str) -> Subject:
    """A function of q (B, L, H, E), k (B, S, H, E), v (B, S, H, D) that returns V (B, L, H, D).

    It takes tensors where its module has imported torch, else NumPy arrays.
    """
    module = sys.modules.get(getattr(function, "__module__", ""))
    is_torch = any(_is_of_torch(value) for value in vars(module).values()) if module else False

    def build(**arguments: Any) -> Layer:
        return _FunctionLayer(function)

    return _undeclared(build, name, device, is_torch=is_torch, lacks=FUNCTION_LACKS)


def _is_of_torch(value: object) -> bool:
    """Whether a global is torch, a module of it, or something from it."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(name, str) and name.partition(".")[0] == "torch"


class _FunctionLayer:
    """A function of q, k and v in the layer's form."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, q: Any, k: Any, v: Any, attn_mask: Any) -> tuple[Any, None]:
        return self.function(q, k, v), None

    def train(self, mode: bool = True) -> None:
        """A function has no dropout to switch."""

    def eval(self) -> None:
        """A function has no dropout to switch."""


def _undeclared(
    build: Callable[..., Layer],
    name: str,
    device: str,
    *,
    is_torch: bool,
    lacks: Mapping[str, str],
) -> Subject:
    """A candidate that declares nothing, of torch or NumPy."""
    if is_torch:
        from fullattention.backends import torch_arrays

        torch_arrays.require_device(name, device)
        arrays, seed = torch_arrays.ARRAYS, torch_arrays.seed
    else:
        numpy_arrays.require_cpu(name, device)
        arrays, seed = numpy_arrays.ARRAYS, numpy_arrays.seed
        lacks = {**lacks, "seed": "NumPy has no generator that every candidate draws from"}
    return Subject(
        name=name,
        library=arrays.library,
        version=str(sys.modules[arrays.library].__version__),
        device=device,
        arrays=arrays,
        precision={
            dtype: widest(stored(dtype), prescaled(dtype), flash(dtype)) for dtype in DTYPES
        },
        build=build,
        lacks=lacks,
        deviates={},
        seed=seed,
    )
