"""Swaps the FullAttention layers of a model for the drop-in, once they are seen to compute it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fullattention.backends import Backend, load
from fullattention.backends.interface import MaskedRows
from fullattention.conformance.bound import attention_bound, error_over_bound
from fullattention.nn.deciding import AUTO
from fullattention.nn.module import FullAttention

PARAMETERS = ("queries", "keys", "values", "attn_mask")
"""What `forward` of a layer like FullAttention begins with."""

SETTINGS = ("mask_flag", "scale", "output_attention", "dropout")
"""What such a layer keeps of its constructor's arguments; `dropout` as a module."""

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
    and values it must lie within the bound around the exact ones. So layers that share the
    signature but attend in another way stay.

    Args:
        model: changed in place.
        backend: as in `nn.FullAttention`.
        device: as in `nn.FullAttention`.
        masked_rows: as in `nn.FullAttention`.
        tune: as in `nn.FullAttention`.

    Returns:
        What became of each layer whose `forward` takes queries, keys, values and attn_mask, in the
        order of `named_modules`.
    """
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
                drop_ins[found] = _drop_in(
                    found, backend=backend, device=device, masked_rows=masked_rows, tune=tune
                )
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, drop_ins[found])
        done.append(Replacement(path, type(found).__qualname__, not judged[found], judged[found]))
    return done


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
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:  # noqa: SLF001 - no public way
        return "it has hooks, which the drop-in would lose"
    return next(_failed_trials(module), "")


def _failed_trials(module: Any) -> Iterator[str]:
    """What a layer computes otherwise than FullAttention, told by trials in float64."""
    layer = copy.deepcopy(module).cpu().eval()
    random = torch.Generator().manual_seed(31)
    q, k, v = (
        torch.randn((2, 70, 3, size), generator=random, dtype=torch.float64) for size in (8, 8, 5)
    )
    mask = torch.rand((2, 1, 70, 70), generator=random) < 0.3
    later = torch.ones((70, 70), dtype=torch.bool).triu(1)
    factors = {"tau": torch.full((2, 1), 2.0), "delta": torch.ones((2, 70))}
    hidden = later if module.mask_flag else None
    for what, given, hides, more in (
        ("plain", None, hidden, {}),
        ("with a mask", _Mask(mask), mask if module.mask_flag else None, {}),
        ("with tau and delta", None, hidden, factors),
    ):
        try:
            out = layer(q, k, v, given, **more)[0].detach().numpy()
        except Exception as error:  # noqa: BLE001 - the layer is other people's code
            yield f"{what} it raises {type(error).__name__}: {error}"
            continue
        expected = attention_bound(
            q.numpy(),
            k.numpy(),
            v.numpy(),
            hidden=None if hides is None else hides.broadcast_to((2, 1, 70, 70)).numpy(),
            scale=module.scale or 8**-0.5,
            precision=load("torch-einsum").precision["float64"],
        )
        ratio = error_over_bound(out, expected.out, expected.out_bound)
        if not ratio <= 1:
            yield f"{what} it computes something else: error/bound {ratio:.3g}"


class _Mask:
    def __init__(self, mask: torch.Tensor) -> None:
        self.mask = mask
