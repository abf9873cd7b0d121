"""The record of the machine, the libraries and the settings that a timing depends on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform

from fullattention.machine import hardware
from fullattention.machine.blas import blas
from fullattention.records import Environment
from fullattention.version import __version__

LIBRARIES = (
    "numpy",
    "torch",
    "numba",
    "numba-cuda",
    "llvmlite",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "jax",
    "jaxlib",
    "onnxruntime",
    "openvino",
    "mkl",
    "triton",
    "flash-attn",
    "xformers",
)
"""Distributions that do or compile the arithmetic of a backend."""

VARIABLES = (
    "CUBLAS_",
    "CUDA_",
    "CUPY_",
    "GOMP_",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "KMP_HW_SUBSET",
    "MKL_",
    "NPY_",
    "NUMBA_",
    "NVIDIA_TF32_",
    "OMP_",
    "OPENBLAS_",
    "PYTORCH_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "VECLIB_",
    "XLA_",
)
"""Beginnings of the environment variables that change speed."""


def environment(thread_count: int) -> Environment:
    """Everything that timings taken in this process from now on depend on.

    Load the backends first: a BLAS that is not loaded yet cannot be named.
    """
    gpu, driver = hardware.gpu()
    return Environment(
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        suite=__version__,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        platform=platform.platform(),
        cpu=hardware.cpu_model(),
        cores=hardware.usable_cores(),
        memory_gib=round(hardware.memory_limit() / hardware.GIB, 1),
        gpu=gpu,
        gpu_driver=driver,
        threads=thread_count,
        load=hardware.load_average(),
        libraries=_versions(),
        blas=blas(),
        variables={
            name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)
        },
    )


def _versions() -> dict[str, str]:
    installed = {}
    for name in LIBRARIES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # the record lists what there is
    return installed
