"""How a pack lies on disk: names, versions, arrays and hashes."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fullattention.backends.precision import Precision, flash, prescaled, standard, stored, tf32

SCHEMA = 1
"""Version of the pack's format; a reader refuses any other."""

INDEX = "index.json"

CLASSES: Mapping[str, Callable[[str], Precision]] = MappingProxyType(
    {"standard": standard, "stored": stored, "prescaled": prescaled, "flash": flash, "tf32": tf32}
)
"""Precision class -> its model of a dtype: how an implementation that claims it rounds."""

STORAGE: Mapping[str, str] = MappingProxyType(
    {"float64": "float64", "float32": "float32", "float16": "float16", "bfloat16": "uint16"}
)
"""Dtype of a case -> NumPy's dtype of its arrays in files, which know no bfloat16."""


def to_storage(array: np.ndarray) -> np.ndarray:
    """An array as files hold it: bfloat16 as its bits."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def from_storage(array: np.ndarray) -> np.ndarray:
    """The float64 values of an array as files hold it."""
    if array.dtype == np.uint16:  # bfloat16 is the upper half of float32
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz whose bytes depend on the arrays alone: no time, no compression."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, allow_pickle=False)
            # ZipInfo's time is 1980-01-01 unless one is given.
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue())


def sha256(path: Path) -> str:
    """Hash of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pack_id(folder: Path) -> str:
    """Hash of a pack's index, which holds those of all its files."""
    return sha256(folder / INDEX)
