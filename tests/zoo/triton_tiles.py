"""`triton` cut into other tiles: small ones, so that few cases reach every edge, and large ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fullattention.backends import Backend, torch_autograd, triton_fused


def backend(device: str) -> Backend:
    """Heads of every length are cut into small tiles."""
    return _cut(device, "triton-tiles", short=0, sides=(16,))


def large(device: str) -> Backend:
    """Many heads share a program: the interpreter takes as long for each, whatever its size."""
    return _cut(device, "triton-large", numbers=2**18)


def _cut(device: str, name: str, **tuning: Any) -> Backend:
    made = triton_fused.backend(device)
    from fullattention.backends.triton_kernels.launch import Tuning
    from fullattention.backends.triton_kernels.passes import TritonKernels

    kernels = TritonKernels(tuning=Tuning(**tuning))
    return replace(made, name=name, attend=torch_autograd.differentiable(name, kernels))
