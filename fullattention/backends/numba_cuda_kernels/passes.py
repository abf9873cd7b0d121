"""The forward and backward pass of Numba's CUDA kernels, on arrays that Numba can see."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda

from fullattention.backends import numba_cuda_arrays, numpy_arrays
from fullattention.backends.interface import Array, Shape, Sizes, dtype_name
from fullattention.backends.numba_cuda_kernels.kernels import (
    Constants,
    key_gradients,
    query_gradients,
)
from fullattention.backends.numba_cuda_kernels.launch import (
    TUNING,
    Tuning,
    forward_plan,
    launch,
    mask_kind,
    tiles_plan,
)
from fullattention.backends.numba_cuda_kernels.simulator import SIMULATED
from fullattention.backends.passes import Options
from fullattention.backends.precision import accumulator

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Library:
    """What the passes need of a library of arrays."""

    empty: Callable[[Shape, str, Array, Any], Array]
    """Makes an array: shape, dtype's name, an array on the device where it is to lie, and the
    stream that is to write it."""
    seen: Callable[[Array], Array]
    """An array's memory as a Numba device array."""
    device: Callable[[Array], str]
    stream: Callable[[Iterable[Array]], Any]
    """The stream to run on, as Numba knows it: behind the caller's work for all these arrays."""


def forward(
    library: Library,
    q: Array,
    k: Array,
    v: Array,
    hidden: Array | None,
    options: Options,
    *,
    weights: bool,
    logsumexp: bool,
    tuning: Tuning = TUNING,
) -> tuple[Array, Array | None, Array | None]:
    """V (B, L, H, D), the weights (B, H, L, S) if wanted, and logsumexp (B, H, L, 1) if wanted.

    Raises:
        LimitError: the device would refuse the launch.
    """
    c, sizes = _constants(q, k, v, hidden, options, weights=weights)
    plan = forward_plan(c, sizes, logsumexp=logsumexp, tuning=tuning)
    B, L, S, H, _, D = sizes
    stream = library.stream(_given(q, k, v, hidden))
    out = library.empty((B, L, H, D), c.dtype, q, stream)
    a = library.empty((B, H, L, S), c.dtype, q, stream) if weights else None
    level = library.empty((B, H, L, 1), accumulator(c.dtype), q, stream) if logsumexp else None
    device = library.device(q)
    with numba_cuda_arrays.on_device(device):
        seen = library.seen
        mask = nothing(device) if hidden is None else seen(hidden)
        result = seen(out)  # also stands where nothing else is wanted: it is not written to twice
        launch(
            plan,
            (
                *(seen(q), seen(k), seen(v), mask, result),
                result if a is None else seen(a),
                result if level is None else seen(level),
            ),
            mask,
            scale=options.scale,
            dropout=options.dropout,
            seed=options.seed,
            stream=stream,
        )
    return out, a, level


def backward(
    library: Library,
    g_out: Array,
    g_weights: Array | None,
    q: Array,
    k: Array,
    v: Array,
    hidden: Array | None,
    logsumexp: Array,
    options: Options,
    *,
    tuning: Tuning = TUNING,
) -> tuple[Array, Array, Array]:
    """Gradients by q, k and v; the weights are recomputed from logsumexp (B, H, L, 1).

    Raises:
        LimitError: the device would refuse a launch.
    """
    given = g_weights is not None
    c, sizes = _constants(q, k, v, hidden, options, weights=given)
    by_query = tiles_plan(query_gradients, c, sizes, tuning=tuning)
    by_key = tiles_plan(key_gradients, c, sizes, tuning=tuning)
    B, L, S, H, E, D = sizes
    stream = library.stream(_given(g_out, g_weights, q, k, v, hidden, logsumexp))
    g_q = library.empty((B, L, H, E), c.dtype, q, stream)
    g_k = library.empty((B, S, H, E), c.dtype, q, stream)
    g_v = library.empty((B, S, H, D), c.dtype, q, stream)
    rowsum = library.empty((B, H, L, 1), accumulator(c.dtype), q, stream)
    device = library.device(q)
    with numba_cuda_arrays.on_device(device):
        seen = library.seen
        mask = nothing(device) if hidden is None else seen(hidden)
        grad = seen(g_out)
        given_arrays = (
            *(seen(q), seen(k), seen(v), mask, grad),
            grad if g_weights is None else seen(g_weights),
            *(seen(logsumexp), seen(rowsum)),
        )
        run = functools.partial(
            launch,
            mask=mask,
            scale=options.scale,
            dropout=options.dropout,
            seed=options.seed,
            stream=stream,
        )
        run(by_query, (*given_arrays, seen(g_q)))
        run(by_key, (*given_arrays, seen(g_k), seen(g_v)))  # reads the sums that the first wrote
    return g_q, g_k, g_v


def _given(*arrays: Array | None) -> list[Array]:
    """Those that the call has."""
    return [array for array in arrays if array is not None]


def _constants(
    q: Array,
    k: Array,
    v: Array,
    hidden: Array | None,
    options: Options,
    *,
    weights: bool,
) -> tuple[Constants, Sizes]:
    B, L, H, E = (int(n) for n in q.shape)
    S, D = int(k.shape[1]), int(v.shape[3])
    c = Constants(
        dtype=dtype_name(q),
        E=E,
        D=D,
        mask=mask_kind(hidden, options.causal),
        weights=weights,
        dropout=options.dropout > 0,
    )
    return c, Sizes(B, L, S, H, E, D)


@functools.cache
def nothing(device: str) -> Array:
    """What stands for a mask where there is none."""
    return numba_cuda_arrays.ARRAYS.put(np.zeros((1, 1, 1, 1), bool), device)


# Numba device arrays.


def _itself(array: Array) -> Array:
    return array


def _empty(shape: Shape, dtype: str, like: Array, stream: Any) -> Array:
    return numba_cuda_arrays.empty(shape, dtype, numba_cuda_arrays.device_of(like), stream)


def common_stream(arrays: Iterable[Array]) -> Any:
    """The stream that all arrays are bound to; where they differ, 0, the default one.

    The default stream and those that Numba makes wait for each other, so every input is ready
    there. A stream of another library may be one that does not: Numba waits for it when it takes
    an array over, and what is queued on it later is the caller's to wait for.
    """
    streams = {_handle(array.stream): array.stream for array in arrays}
    return streams.popitem()[1] if len(streams) == 1 else 0


def _handle(stream: Any) -> int:
    """What tells a stream from another: several of Numba's objects may stand for one."""
    return id(stream) if SIMULATED else int(getattr(stream, "handle", stream))


NUMBA = Library(
    empty=_empty, seen=_itself, device=numba_cuda_arrays.device_of, stream=common_stream
)


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    hidden: Array | None,
    causal: bool,
    scale: float,
    dropout: float,
    weights: bool,
    tuning: Tuning = TUNING,
) -> tuple[Array, Array | None]:
    """Attend on Numba device arrays; see `interface.Attend`."""
    seed = numpy_arrays.draw_seed() if dropout > 0 else 0
    options = Options(causal=causal, scale=scale, dropout=dropout, seed=seed)
    out, a, _ = forward(
        NUMBA, q, k, v, hidden, options, weights=weights, logsumexp=False, tuning=tuning
    )
    return out, a


# Torch tensors.


def _torch_empty(shape: Shape, dtype: str, like: torch.Tensor, stream: Any) -> torch.Tensor:
    import torch

    return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)


def _torch_seen(tensor: torch.Tensor) -> Array:
    if SIMULATED:
        return numba_cuda_arrays.TYPE(tensor.detach().numpy())
    return cuda.as_cuda_array(tensor.detach(), sync=False)


def _torch_device(tensor: torch.Tensor) -> str:
    return str(tensor.device)


def _torch_stream(tensors: Iterable[torch.Tensor]) -> Any:
    """The current one, by which torch's allocator knows the new tensors too."""
    if SIMULATED:
        return 0
    import torch

    device = next(iter(tensors)).device
    return _external(torch.cuda.current_stream(device).cuda_stream)


@functools.cache
def _external(handle: int) -> Any:
    """A stream that another library made; 0 is the default one."""
    return cuda.external_stream(handle) if handle else 0


TORCH = Library(empty=_torch_empty, seen=_torch_seen, device=_torch_device, stream=_torch_stream)


@dataclass(frozen=True, kw_only=True)
class TorchKernels:
    """Both passes on torch tensors; see `torch_autograd.Kernels`."""

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
        """V, the weights or None, and logsumexp."""
        out, a, logsumexp = forward(
            TORCH,
            *(q, k, v, hidden, options),
            weights=weights,
            logsumexp=True,
            tuning=self.tuning,
        )
        assert logsumexp is not None
        return out, a, logsumexp[..., 0]

    def backward(
        self,
        g_out: torch.Tensor,
        g_weights: torch.Tensor | None,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        hidden: torch.Tensor | None,
        out: torch.Tensor,
        logsumexp: torch.Tensor,
        options: Options,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients by q, k and v."""
        return backward(
            TORCH,
            *(g_out, g_weights, q, k, v, hidden, logsumexp[..., None], options),
            tuning=self.tuning,
        )
