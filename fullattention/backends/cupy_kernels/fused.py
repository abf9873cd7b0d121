"""Backends of our own kernels, for whichever library brings the arrays and the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from fullattention.backends import numpy_arrays
from fullattention.backends.cuda_errors import attributed, attributed_passes
from fullattention.backends.cupy_kernels.kernels import FORWARD_STEP
from fullattention.backends.cupy_kernels.passes import FusedKernels, Runtime
from fullattention.backends.declared import OWN_BACKWARD
from fullattention.backends.interface import Array, Arrays, Attend, Backend
from fullattention.backends.passes import Options
from fullattention.backends.precision import DTYPES, Precision, standard, tensor_cores


def precision(dtype: str) -> Precision:
    """How the kernels round: inside in float32 (float64 for float64), with an online softmax."""
    model = tensor_cores(replace(standard(dtype), tile=FORWARD_STEP), dtype)
    if dtype == "float64":
        return model
    # CuPy has subnormal float32 numbers flushed to zero: those read as well as those written.
    return replace(model, eta_out=max(model.eta_out, 2.0**-125))


def attend_by(kernels: FusedKernels) -> Attend:
    """The forward pass alone, for arrays of a library that does not differentiate."""

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
    ) -> tuple[Array, Array | None]:
        seed = numpy_arrays.draw_seed() if dropout > 0 else 0
        options = Options(causal=causal, scale=scale, dropout=dropout, seed=seed)
        out, a, _ = kernels.forward(q, k, v, hidden, options, weights=weights)
        return out, a

    return attend


def without_gradient(
    name: str,
    runtime: Runtime,
    arrays: Arrays,
    *,
    device: str,
    version: str,
    lacks: Mapping[str, str],
) -> Backend:
    """The backend for arrays of a library that does not differentiate."""
    return _backend(
        name,
        attributed(name, attend_by(FusedKernels(runtime))),
        arrays,
        device,
        version,
        numpy_arrays.seed,
        lacks,
    )


def with_gradient(
    name: str, runtime: Runtime, *, device: str, version: str, lacks: Mapping[str, str]
) -> Backend:
    """The backend for torch's tensors, with gradients."""
    from fullattention.backends import torch_arrays, torch_autograd

    return _backend(
        name,
        torch_autograd.differentiable(name, attributed_passes(name, FusedKernels(runtime))),
        torch_arrays.ARRAYS,
        device,
        version,
        torch_arrays.seed,
        {**OWN_BACKWARD, **lacks},
    )


def _backend(
    name: str,
    attend: Attend,
    arrays: Arrays,
    device: str,
    version: str,
    restart: Callable[[int], None],
    lacks: Mapping[str, str],
) -> Backend:
    return Backend(
        name=name,
        version=version,
        attend=attend,
        arrays=arrays,
        device=device,
        seed=restart,
        precision={dtype: precision(dtype) for dtype in DTYPES if dtype not in lacks},
        masked_rows="nan",
        lacks=lacks,
    )
