"""The kernels' source, the settings it is compiled for, and the record that a call hands over."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

FORWARD_STEP = 8
"""Keys between two rescalings of the online softmax: what the backend declares as its tile."""

BACKWARD_STEP = 4
"""Half as many in the backward pass, which holds twice as many arrays in registers."""

THREADS = 128
"""The most threads of a block."""

LARGEST_WIDTH = 512
"""The most features E and columns D."""

ELEMENTS = {"float16": 2, "bfloat16": 3, "float32": 4, "float64": 8}
"""Dtype -> the source's name for it."""

KERNELS = {
    "attend": "forward",
    "attend_by_tensor_cores": "tensor_cores",
    "gradient_of_queries": "backward",
    "gradient_of_keys": "backward",
}
"""Kernel -> the pass whose source has it."""

STANDARD = "-std=c++17"
"""Of the language; NVRTC and the host's compilers spell it alike."""

ARRAYS = ("q", "k", "v", "out", "dq", "dk", "dv")
TABLES = ("hidden", "weights")
ROWS = ("maximum", "inverse", "slope")
"""The arrays of a call, by what they are indexed with."""

_ARRAY = [(name, "i8") for name in ("data", "b", "t", "h", "e", "by_chunks")]
_TABLE = [(name, "i8") for name in ("data", "b", "h", "l", "s")]

CALL = np.dtype(
    [
        *((name, _ARRAY) for name in ARRAYS),
        *((name, _TABLE) for name in TABLES),
        *((name, "i8") for name in ROWS),
        *((name, "i8") for name in ("B", "L", "S", "H", "E", "D")),
        *((name, "i8") for name in ("causal", "heads_log2", "tile", "row_blocks")),
        *((name, "u8") for name in ("seed", "threshold")),
        *((name, "f8") for name in ("scale", "kept")),
    ]
)
"""`Call` in elements.cuh, which each kernel takes by value; every field has 8 bytes."""

_INTEGERS = len(ARRAYS) * len(_ARRAY) + len(TABLES) * len(_TABLE) + len(ROWS) + 6 + 4
_PACKED = struct.Struct(f"={_INTEGERS}q2Q2d")


def packed(values: Iterable[float]) -> np.ndarray:
    """One `CALL`, from all of its fields in their order."""
    return np.frombuffer(bytearray(_PACKED.pack(*values)), CALL)


@dataclass(frozen=True)
class Setting:
    """What a kernel is compiled for; elements.cuh tells what each means."""

    element: int
    width: int
    features: int
    rows: int
    step: int
    extras: int

    @property
    def macros(self) -> tuple[str, ...]:
        """The setting as the compilers' options."""
        given = {**asdict(self), "threads": THREADS}
        return tuple(f"-D{name.upper()}={value}" for name, value in given.items())

    @property
    def lanes(self) -> int:
        """Threads that share a row."""
        return self.width // self.features


@functools.cache
def source(of: str) -> str:
    """The CUDA C++ of what `KERNELS` tells apart, in one piece."""
    folder = Path(__file__).parent
    names = ("elements.cuh", "blocks.cuh", "random.cuh", f"{of}.cuh")
    # Errors are told by file and line.
    return "".join(f'#line 1 "{name}"\n{(folder / name).read_text("utf-8")}' for name in names)
