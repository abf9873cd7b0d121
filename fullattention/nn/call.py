"""What the choice of a backend depends on."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fullattention.backends.interface import Sizes
from fullattention.records import Mask, Mode


class Call(NamedTuple):
    """A call of the layer, without its numbers: equal calls get one decision."""

    queries: torch.Size
    """Shape (B, L, H, E)."""
    S: int
    D: int
    torch_dtype: torch.dtype
    device: torch.device
    masked: bool
    """Whether keys are hidden."""
    by_array: bool
    """Whether by a mask array, not causally."""
    weights: bool
    dropout: bool
    gradient: bool
    """Whether autograd records the call, or may record it when it is made again: one with dropout
    counts as recorded whatever autograd does. Checkpointing with `use_reentrant=True` makes it once
    without and once with autograd, and both times the same weights must be dropped."""

    @property
    def shape(self) -> Sizes:
        """The sizes of all axes."""
        B, L, H, E = self.queries
        return Sizes(B, L, self.S, H, E, self.D)

    @property
    def dtype(self) -> str:
        """The dtype as NumPy spells it."""
        return str(self.torch_dtype).removeprefix("torch.")

    @property
    def mask(self) -> Mask:
        """How keys are hidden, as workloads say it."""
        if not self.masked or (not self.by_array and self.queries[1] == 1):
            return "none"
        return "padding" if self.by_array else "causal"

    @property
    def mode(self) -> Mode:
        """What is wanted of the call, as workloads say it."""
        if self.gradient:
            return "training"
        return "weights" if self.weights else "forward"

    @property
    def uses(self) -> tuple[str, ...]:
        """The capabilities that the call uses beside its dtype and mask."""
        return tuple(name for name in ("weights", "dropout", "gradient") if getattr(self, name))


def call_of(
    layer: Any, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, attn_mask: Any
) -> Call:
    """The call that a layer would make, by its settings under the names that the layer keeps."""
    return Call._make(fields_of(layer, queries, keys, values, attn_mask))


def fields_of(
    layer: Any, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, attn_mask: Any
) -> tuple[Any, ...]:
    """The fields of `call_of`, which are equal to it and have its hash.

    They are gathered before every attention: nothing here may be slow.
    """
    dropout = layer.training and dropout_of(layer) > 0
    gradient = torch.is_grad_enabled() and (
        queries.requires_grad or keys.requires_grad or values.requires_grad
    )
    _, S, _, D = values.shape
    return (
        queries.shape,
        S,
        D,
        queries.dtype,
        queries.device,
        layer.mask_flag,
        attn_mask is not None,
        layer.output_attention,
        dropout,
        dropout or gradient,
    )


def mask_of(attn_mask: Any) -> Any:
    """The array that hides keys, which may come as another object's `mask`; or None."""
    # A tensor takes long to find that it has no attribute.
    is_array = attn_mask is None or isinstance(attn_mask, torch.Tensor)
    return attn_mask if is_array else getattr(attn_mask, "mask", attn_mask)


def dropout_of(layer: Any) -> float:
    """The probability of dropping a weight in training."""
    try:
        probability: float = layer.attention_dropout
    except AttributeError:
        probability = layer.dropout.p
    return probability
