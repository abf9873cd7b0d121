"""`triton` with heads of every length cut into small tiles, so that few cases reach every edge."""

from __future__ import annotations

from dataclasses import replace

from fullattention.backends import Backend, torch_autograd, triton_fused


def backend(device: str) -> Backend:
    made = triton_fused.backend(device)
    from fullattention.backends.triton_kernels.launch import TUNING
    from fullattention.backends.triton_kernels.passes import TritonKernels

    kernels = TritonKernels(tuning=replace(TUNING, short=0, sides=(16,)))
    return replace(made, name="triton-tiles", attend=torch_autograd.differentiable(kernels))
