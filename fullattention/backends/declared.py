"""What our own backends for GPUs can do, told without a GPU and without the library that drives it.

They take it from here themselves. A GPU of a type that is too old may lack more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fullattention.backends.precision import DTYPES
from fullattention.backends.reasons import ONCE


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What a backend is, wherever it runs."""

    dtypes: tuple[str, ...]
    lacks: Mapping[str, str]
    """Missing capability (or dtype) -> why."""


OWN_BACKWARD = {"double_backward": ONCE}
"""Of backends whose kernels come with a backward pass."""

_UNDIFFERENTIATED = ("gradient", "double_backward")
_CUPY = Declared(
    dtypes=DTYPES, lacks=dict.fromkeys(_UNDIFFERENTIATED, "CuPy does not differentiate")
)
_NUMBA = ("float64", "float32", "float16")
_NO_BFLOAT16 = {"bfloat16": "NumPy, by which Numba names dtypes, has no bfloat16"}

DECLARED: Mapping[str, Declared] = MappingProxyType(
    {
        "cupy-matmul": _CUPY,
        "cupy-fused": _CUPY,
        "cupy-fused-torch": Declared(dtypes=DTYPES, lacks=OWN_BACKWARD),
        "numba-cuda": Declared(
            dtypes=_NUMBA,
            lacks={
                **dict.fromkeys(_UNDIFFERENTIATED, "Numba does not differentiate"),
                **_NO_BFLOAT16,
            },
        ),
        "numba-cuda-torch": Declared(dtypes=_NUMBA, lacks={**OWN_BACKWARD, **_NO_BFLOAT16}),
        "triton": Declared(
            dtypes=("float32", "float16", "bfloat16"),
            lacks={
                **OWN_BACKWARD,
                "float64": "Triton's compiler fails on chained products of float64",
            },
        ),
    }
)
"""By the backend's name."""
