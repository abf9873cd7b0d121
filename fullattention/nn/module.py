"""Time-Series-Library's layer as a torch module that chooses its backend by what was measured."""

from __future__ import annotations

from typing import Any

import torch

from fullattention.backends import Backend, InvalidInputError, UnsupportedError, load
from fullattention.backends.interface import MaskedRows
from fullattention.backends.torch_followers import follower
from fullattention.layer import Policy, check_inputs
from fullattention.nn.autocast import in_one_dtype
from fullattention.nn.call import call_of, fields_of, mask_of
from fullattention.nn.deciding import (
    AUTO,
    DEFAULTS,
    decide,
    default,
    explained,
    load_defaults,
    refused,
)


class FullAttention(torch.nn.Module, Policy):
    """Attention of queries, keys and values laid out (batch, time, heads, features).

    It has no parameters, so its `state_dict` is empty, as that of the layer it stands in for.

    Args:
        mask_flag: whether keys are hidden: by `attn_mask`, or without one causally.
        factor: accepted for the layer's signature; has no effect.
        scale: factor on the scores; None or 0 means 1 / sqrt(E).
        attention_dropout: probability of dropping a weight in training.
        output_attention: whether `forward` returns the weights.
        backend: "auto" for the fastest that was measured on this hardware for the call at hand; or
            a name, `module:object`, `path.py[:object]`, or a `Backend` of torch arrays.
        device: where a backend that is given by name runs, itself by name or as a `torch.device`;
            "auto" follows the queries, and asks only that there be such a device.
        masked_rows: what a query gets when all keys are hidden from it: "nan" as in
            Time-Series-Library, or "zero".
        tune: whether "auto" stops to measure, for about a minute, at a call of a kind that was not
            measured before; where that fails it warns, and goes on with what is known.

    Raises:
        InvalidInputError: an argument is out of its range.
        UnavailableError: the backend cannot run here.
    """

    def __init__(
        self,
        mask_flag: bool = True,
        factor: int = 5,
        scale: float | None = None,
        attention_dropout: float = 0.1,
        output_attention: bool = False,
        *,
        backend: str | Backend = AUTO,
        device: object = "cpu",
        masked_rows: MaskedRows = "nan",
        tune: bool = False,
    ) -> None:
        torch.nn.Module.__init__(self)
        Policy.__init__(
            self,
            mask_flag=mask_flag,
            scale=scale,
            attention_dropout=attention_dropout,
            output_attention=output_attention,
            masked_rows=masked_rows,
        )
        if not isinstance(tune, bool):
            raise InvalidInputError(f"tune is {tune!r}: True or False")
        self.tune = tune
        self.backend = _fixed(backend, device)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attn_mask: Any,
        tau: Any = None,
        delta: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend; see `fullattention.FullAttention.forward`.

        Inside torch.autocast the dtypes of queries, keys and values may differ.
        """
        queries, keys, values = in_one_dtype(queries, keys, values)
        if self.backend:
            return self.attend_by(self.backend, queries, keys, values, attn_mask)
        try:
            fields = fields_of(self, queries, keys, values, attn_mask)
        except (AttributeError, IndexError, ValueError, TypeError):
            _check(queries, keys, values)  # says what is wrong with them
            raise
        followed_by = follower(queries, keys, values, mask_of(attn_mask))
        backend = default(fields, followed_by) if followed_by else decide(fields, self.tune)
        try:
            return self.attend_by(backend, queries, keys, values, attn_mask)
        except UnsupportedError:  # a limit that shapes near this one did not meet
            if backend.name in DEFAULTS:
                raise
            backend = refused(fields, self.tune)
            return self.attend_by(backend, queries, keys, values, attn_mask)

    def explain(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, attn_mask: Any = None
    ) -> str:
        """What would run for a call, why, and why not the others; runs nothing.

        Raises:
            InvalidInputError: no call could be made of the arguments.
        """
        if self.backend:
            return f"{self.backend.name}, as it was asked for"
        queries, keys, values = in_one_dtype(queries, keys, values)
        _check(queries, keys, values)
        call = call_of(self, queries, keys, values, attn_mask)
        followed_by = follower(queries, keys, values, mask_of(attn_mask))
        if followed_by:
            return f"{default(call, followed_by).name}, by default: {followed_by} sees operations"
        return explained(call)

    def extra_repr(self) -> str:
        """The settings, for `print(model)`."""
        name = self.backend.name if self.backend else AUTO
        return (
            f"mask_flag={self.mask_flag}, scale={self.scale}, "
            f"attention_dropout={self.attention_dropout}, "
            f"output_attention={self.output_attention}, backend={name!r}"
        )


def _check(queries: Any, keys: Any, values: Any) -> None:
    """Refuse inputs as the layer does, before a backend is chosen for them."""
    device = queries.device.type if isinstance(queries, torch.Tensor) else "cpu"
    check_inputs(load(DEFAULTS[-1], device), queries, keys, values)


def _fixed(backend: str | Backend, device: object) -> Backend | None:
    """The backend that was asked for; None where it is chosen call by call."""
    if backend == AUTO:
        for place in ("cpu", str(device)):
            load_defaults(place)  # before torch traces anything
        return None
    if not isinstance(backend, str | Backend):
        raise InvalidInputError(f"backend is {backend!r}: 'auto', a name or a Backend [C8]")
    found = backend if isinstance(backend, Backend) else load(backend, device)
    if found.arrays.type is not torch.Tensor:
        raise InvalidInputError(
            f"backend {found.name!r} takes arrays of {found.arrays.library}: a torch module needs "
            "one that takes tensors [C8]"
        )
    return found
