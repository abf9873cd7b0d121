"""The forward and the backward pass of the Triton kernels, on torch's tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fullattention.backends.dropout import kept_factor, threshold
from fullattention.backends.interface import Shape, Sizes, broadcast_strides, dtype_name
from fullattention.backends.passes import Options, sizes_of
from fullattention.backends.triton_kernels.kernels import (
    attend,
    key_gradients,
    query_gradients,
)
from fullattention.backends.triton_kernels.launch import TUNING, Tiles, Tuning, tiles
from fullattention.backends.triton_kernels.simulator import SIMULATED, simulating


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch of a kernel."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    tiles: Tiles

    def queue(self, like: torch.Tensor) -> None:
        """Queue it on torch's current stream of a tensor's device."""
        cut = self.tiles
        with _on_device(like):
            self.kernel[(cut.programs,)](
                *self.arguments, **self.constants, num_warps=cut.warps, num_stages=cut.stages
            )


@dataclass(frozen=True, kw_only=True)
class TritonKernels:
    """Both passes; `torch_autograd.Kernels` says what they take and give.

    The forward pass keeps `levels` (2, B, H, L): the largest score of each row, and one over the
    sum of its exponentials. From these the backward pass rebuilds the weights with
    the forward pass's own rounding, and NaN where a row had none.
    """

    tuning: Tuning = TUNING

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        hidden: torch.Tensor | None,
        options: Options,
        *,
        weights: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """V, the weights or None, and what the backward pass needs of each row.

        Raises:
            LimitError: the call is too large.
        """
        B, L, S, H, _, D = sizes = sizes_of(q, v)
        out = _empty((B, L, H, D), q)
        a = _empty((B, H, L, S), q) if weights else None
        levels = _empty((2, B, H, L), q, torch.float32)
        arrays = (_array(q), _array(k), _array(v), _mask(hidden), _array(out), a, levels)
        launch(attend, arrays, q, sizes, options, self.tuning).queue(q)
        return out, a, levels

    def backward(
        self,
        g_out: torch.Tensor,
        g_weights: torch.Tensor | None,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        hidden: torch.Tensor | None,
        out: torch.Tensor,
        levels: torch.Tensor,
        options: Options,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients by q, k and v.

        Raises:
            LimitError: the call is too large.
        """
        B, L, S, H, E, D = sizes = sizes_of(q, v)
        g_q, g_k, g_v = _empty((B, L, H, E), q), _empty((B, S, H, E), q), _empty((B, S, H, D), q)
        slopes = _empty((B, H, L), q, torch.float32)
        given = (
            *(_array(g_out), g_weights, _array(q), _array(k), _array(v), _mask(hidden)),
            *(levels, slopes),
        )
        for kernel, results in (
            (query_gradients, (_array(g_q),)),
            (key_gradients, (_array(g_k), _array(g_v))),  # reads the slopes that the first wrote
        ):
            launch(kernel, (*given, *results), q, sizes, options, self.tuning).queue(q)
        return g_q, g_k, g_v


def launch(
    kernel: Any,
    arrays: tuple[Any, ...],
    like: torch.Tensor,
    sizes: Sizes,
    options: Options,
    tuning: Tuning = TUNING,
) -> Launch:
    """The launch of a kernel for a call.

    Raises:
        LimitError: the call is too large.
    """
    cut = tiles(kernel.__name__, dtype_name(like), sizes, tuning)
    return Launch(
        kernel=kernel,
        arguments=(*arrays, *_numbers(sizes, options)),
        constants=_constants(sizes, options, cut),
        tiles=cut,
    )


def _array(array: torch.Tensor) -> tuple[Any, ...]:
    """An array as the kernels take it."""
    return (array, *array.stride())


def _mask(hidden: torch.Tensor | None) -> tuple[Any, ...] | None:
    return hidden if hidden is None else (hidden, *broadcast_strides(hidden.shape, hidden.stride()))


def _empty(shape: Shape, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def _numbers(sizes: Sizes, options: Options) -> tuple[float, ...]:
    """The arguments `VARYING` of every kernel."""
    B, L, S, H, _, _ = sizes
    p = options.dropout
    return (B * H, H, L, S, options.scale, options.seed, threshold(p), kept_factor(p))


def _constants(sizes: Sizes, options: Options, cut: Tiles) -> dict[str, Any]:
    names = ("HEADS", "QUERIES", "KEYS", "WIDTH_E", "WIDTH_D")
    return {
        "E": sizes.E,
        "D": sizes.D,
        "CAUSAL": options.causal,
        "DROPOUT": options.dropout > 0,
        **{name: getattr(cut, name) for name in names},
    }


@contextlib.contextmanager
def _on_device(like: torch.Tensor) -> Iterator[None]:
    """Triton launches on torch's current device."""
    with simulating() if SIMULATED else torch.cuda.device(like.device):
        yield
