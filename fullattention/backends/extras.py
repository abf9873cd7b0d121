"""The extras of this package that bring the optional libraries."""

from __future__ import annotations

EXTRAS = {
    "torch": "torch",
    "ml_dtypes": "suite",
    "numba": "numba",
    "onnxruntime": "onnxruntime",
    "onnx": "onnxruntime",
    "openvino": "openvino",
    "jax": "jax",
}
"""Import name of a library -> the extra that brings it."""

BY_DRIVER = ("cupy", "numba_cuda")
"""Libraries that come for CUDA 12 or for CUDA 13."""


def command(library: str) -> str:
    """What installs a library, or both commands where the GPU's driver decides; "" for others."""
    if library in BY_DRIVER:
        return f"{_install('cuda13')}, or for a driver of CUDA 12: {_install('cuda12')}"
    return _install(EXTRAS[library]) if library in EXTRAS else ""


def _install(extra: str) -> str:
    return f"pip install 'fullattention[{extra}]'"
