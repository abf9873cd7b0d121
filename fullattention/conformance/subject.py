"""What is being judged: a backend, or a class with the layer's constructor and forward."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fullattention.backends import numpy_arrays
from fullattention.backends.interface import Arrays, Backend, MaskedRows
from fullattention.backends.precision import DTYPES, Precision, flash, prescaled, stored, widest
from fullattention.backends.registry import load, load_object
from fullattention.layer import FullAttention

LAYER_LACKS: Mapping[str, str] = {
    "strict_sizes": "Time-Series-Library's layer broadcasts axes of size 1",
    "bare_masks": "Time-Series-Library's layer takes objects with a `mask`",
    "masked_rows=zero": "Time-Series-Library's layer gives NaN in fully hidden rows",
    "wide_scores": "a class declares no precision, so scores may be stored in the input's dtype",
}
"""What a class is not asked for beyond the capabilities of a backend, and why."""


class Layer(Protocol):
    """An instance of the layer."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Takes what `forward` takes: queries, keys, values, attn_mask, tau, delta."""

    def train(self, mode: bool = True) -> Any:
        """Switches dropout on."""

    def eval(self) -> Any:
        """Switches dropout off."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One candidate on one device, with all that the checks need to know of it."""

    name: str
    library: str
    version: str
    device: str
    arrays: Arrays
    precision: Mapping[str, Precision]
    build: Callable[..., Layer]
    """Takes the layer's constructor arguments and `masked_rows` by keyword."""
    lacks: Mapping[str, str]
    deviates: Mapping[str, str]
    seed: Callable[[int], None]
    batch_invariant: bool = False


def load_subject(spec: str | Backend | type, device: str = "cpu") -> Subject:
    """The candidate that a name, `module:object`, `path.py[:object]`, Backend or class stands for.

    Raises:
        UnavailableError, LookupError, TypeError: as `backends.load`.
    """
    if isinstance(spec, str):
        found = _load_named(spec, device)
        return from_class(found, spec, device) if isinstance(found, type) else from_backend(found)
    return (
        from_class(spec, spec.__qualname__, device)
        if isinstance(spec, type)
        else from_backend(spec)
    )


def _load_named(spec: str, device: str) -> Backend | type:
    if ":" in spec or spec.endswith(".py"):
        found = load_object(spec)
        if isinstance(found, type):
            return found
    return load(spec, device)


def from_backend(backend: Backend) -> Subject:
    """A backend under the layer's policy, in both profiles."""

    def build(**arguments: Any) -> Layer:
        return FullAttention(backend=backend, **arguments)

    return Subject(
        name=backend.name,
        library=backend.arrays.library,
        version=backend.version,
        device=backend.device,
        arrays=backend.arrays,
        precision=backend.precision,
        build=build,
        lacks=backend.lacks,
        deviates=backend.deviates,
        seed=backend.seed,
        batch_invariant=backend.batch_invariant,
    )


def from_class(layer: type, name: str, device: str) -> Subject:
    """A class with the layer's constructor and forward; a torch module takes tensors, others NumPy.

    A class declares nothing, so it is judged by the widest of the usual precisions, and by
    Time-Series-Library's own answer (NaN) in fully hidden rows.
    """
    torch = sys.modules.get("torch")  # a torch module cannot exist without it
    is_module = torch is not None and issubclass(layer, torch.nn.Module)
    if is_module:
        from fullattention.backends import torch_arrays

        torch_arrays.require_device(name, device)
        arrays, seed, library = torch_arrays.ARRAYS, torch_arrays.seed, "torch"
    else:
        numpy_arrays.require_cpu(name, device)
        arrays, seed, library = numpy_arrays.ARRAYS, numpy_arrays.seed, "numpy"

    def build(*, masked_rows: MaskedRows, **arguments: Any) -> Layer:
        made: Any = layer(**arguments)
        placed: Layer = made.to(device) if is_module else made
        return placed

    return Subject(
        name=name,
        library=library,
        version=sys.modules[library].__version__,
        device=device,
        arrays=arrays,
        precision={
            dtype: widest(stored(dtype), prescaled(dtype), flash(dtype)) for dtype in DTYPES
        },
        build=build,
        lacks=LAYER_LACKS,
        deviates={},
        seed=seed,
    )
