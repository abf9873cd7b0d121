"""Swaps the FullAttention layers of a model for the drop-in, once they are seen to compute it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from fullattention.backends import Backend, InvalidInputError
from fullattention.backends.interface import MaskedRows
from fullattention.layer import is_real
from fullattention.nn.deciding import AUTO
from fullattention.nn.module import FullAttention
from fullattention.nn.trials import difference

PARAMETERS = ("queries", "keys", "values", "attn_mask")
"""What `forward` of a layer like FullAttention begins with."""

SETTINGS = ("mask_flag", "scale", "output_attention", "dropout")
"""What such a layer keeps of its constructor's arguments; `dropout` as a module."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where torch keeps a module's hooks; it has no public names for them."""

NO_PARENT = "it is the model itself: build the drop-in in its place"


@dataclass(frozen=True)
class Replacement:
    """What became of a layer."""

    path: str
    """Name of the layer in the model, as `named_modules` gives it."""
    layer: str
    """Its class."""
    swapped: bool
    reason: str = ""
    """Why it was left as it is."""

    def __str__(self) -> str:
        done = "swapped" if self.swapped else f"left: {self.reason}"
        return f"{self.path or '(the model)'} ({self.layer}): {done}"


def replace(
    model: torch.nn.Module,
    backend: str | Backend = AUTO,
    *,
    device: object = "cpu",
    masked_rows: MaskedRows = "nan",
    tune: bool = False,
) -> list[Replacement]:
    """Swap every layer of a model that is FullAttention under whatever name.

    A layer qualifies by its signature and settings, and by its results: on random queries, keys
    and values V, the weights it returns and the gradients must lie within the bound around the
    exact ones; with masks and dropout too, for several lengths and for large scores, in float64
    and float32. So layers that share the signature but attend in another way stay.

    Args:
        model: changed in place.
        backend: as in `nn.FullAttention`.
        device: as in `nn.FullAttention`.
        masked_rows: as in `nn.FullAttention`.
        tune: as in `nn.FullAttention`.

    Returns:
        What became of each layer whose `forward` takes queries, keys, values and attn_mask, in the
        order of `named_modules`.

    Raises:
        InvalidInputError: the model is no module, or an option is out of its range.
        UnavailableError: the backend, or the device, cannot be had here.
    """
    require_module(model)
    options: dict[str, Any] = {
        "backend": backend,
        "device": device,
        "masked_rows": masked_rows,
        "tune": tune,
    }
    FullAttention(**options)  # refuses them before anything is changed
    judged: dict[torch.nn.Module, str] = {}
    drop_ins: dict[torch.nn.Module, FullAttention] = {}
    done = []
    # A layer that the model holds twice is judged once, and stays one layer.
    for path, found in list(model.named_modules(remove_duplicate=False)):
        if isinstance(found, FullAttention) or not takes_attention(found) or _wraps(found):
            continue
        if found not in judged:
            judged[found] = _difference(found) if path else NO_PARENT
        if not judged[found]:
            if found not in drop_ins:
                drop_ins[found] = _drop_in(found, **options)
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, drop_ins[found])
        done.append(Replacement(path, type(found).__qualname__, not judged[found], judged[found]))
    return done


def require_module(model: object) -> None:
    """Require a model whose layers can be gone through.

    Raises:
        InvalidInputError: it is no module of torch.
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidInputError(f"model is a {type(model).__qualname__}: a torch.nn.Module")


def _drop_in(layer: Any, **options: Any) -> FullAttention:
    """The drop-in with a layer's settings, in its mode."""
    made = FullAttention(
        layer.mask_flag,
        scale=layer.scale,
        attention_dropout=layer.dropout.p,
        output_attention=layer.output_attention,
        **options,
    )
    return made.train(layer.training)


def takes_attention(module: torch.nn.Module) -> bool:
    """Whether a layer's `forward` begins with queries, keys, values and attn_mask."""
    names = tuple(inspect.signature(module.forward).parameters)
    return names[: len(PARAMETERS)] == PARAMETERS


def _wraps(module: torch.nn.Module) -> bool:
    """Whether a layer with the signature only projects for another one inside it."""
    return any(takes_attention(inner) for inner in module.modules() if inner is not module)


def missing(module: torch.nn.Module) -> list[str]:
    """The settings that a layer does not keep."""
    return [name for name in SETTINGS if not hasattr(module, name)]


def _difference(module: Any) -> str:
    """How a layer differs from FullAttention; empty where it does not."""
    if lacking := missing(module):
        return f"it has no {' and no '.join(lacking)}"
    if not isinstance(module.dropout, torch.nn.Dropout):
        return "its dropout is no torch.nn.Dropout"
    if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
        return "it has parameters or buffers of its own"
    if module.dropout.training != module.training:
        return "its dropout is in another mode than itself: the drop-in has one mode for both"
    if not (module.scale is None or is_real(module.scale)):
        return "its scale is no number"
    if any(getattr(module, hooks) for hooks in HOOKS):
        return "it has hooks, which the drop-in would lose"
    return difference(module)
