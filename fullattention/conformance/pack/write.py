"""Writes a pack."""

from __future__ import annotations

import importlib.resources
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fullattention.backends.precision import DTYPES
from fullattention.conformance import contract, masks
from fullattention.conformance.bound import expected_within
from fullattention.conformance.oracle import exact_attention
from fullattention.conformance.pack.cases import Entry, entries
from fullattention.conformance.pack.layout import (
    CLASSES,
    INDEX,
    SCHEMA,
    sha256,
    to_storage,
    write_arrays,
)
from fullattention.layer import resolve_scale
from fullattention.outputs import require_folder
from fullattention.version import __version__

COMPANIONS = ("README.txt", "judge.py")
"""Files that go along as they are."""


def write_pack(folder: Path, dtypes: Sequence[str] = DTYPES) -> int:
    """Write a pack into a new or empty folder; returns the number of its cases.

    The same suite on the same machine and NumPy writes the same bytes.

    Raises:
        ValueError: the folder is not empty or cannot be written, or a dtype is unknown.
        ModuleNotFoundError: bfloat16 without ml_dtypes.
    """
    unknown = sorted(set(dtypes) - set(DTYPES))
    if unknown or not dtypes:
        raise ValueError(f"dtypes are {', '.join(unknown) or 'none'}: of {', '.join(DTYPES)}")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder {folder} is a file: a pack gets a folder of its own")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"folder {folder} is not empty: a pack gets a folder of its own")
    require_folder("folder", folder)
    (folder / "cases").mkdir(parents=True)
    for name in COMPANIONS:
        source = importlib.resources.files("fullattention.conformance.pack") / name
        (folder / name).write_bytes(source.read_bytes())
    cases = []
    numbers: Counter[str] = Counter()
    for dtype in dtypes:
        for entry in entries(dtype):
            stem = f"{entry.requirement}-{dtype}"
            numbers[stem] += 1
            cases.append(_write_case(folder, f"{stem}-{numbers[stem]:02}", entry))
    text = json.dumps(_index(folder, cases), indent=1, allow_nan=False)
    (folder / INDEX).write_bytes(f"{text}\n".encode())
    return len(cases)


def _index(folder: Path, cases: list[dict[str, Any]]) -> dict[str, Any]:
    used = {case["requirement"] for case in cases}
    return {
        "schema": SCHEMA,
        "contract": contract.VERSION,
        "suite": __version__,
        "classes": list(CLASSES),
        "requirements": {name: text for name, text in contract.TEXT.items() if name in used},
        "files": {name: sha256(folder / name) for name in COMPANIONS},
        "cases": cases,
    }


def _write_case(folder: Path, name: str, entry: Entry) -> dict[str, Any]:
    case = entry.case
    file = f"cases/{name}.npz"
    write_arrays(folder / file, _arrays(entry))
    return {
        "name": name,
        "requirement": entry.requirement,
        "text": entry.text,
        "dtype": case.dtype,
        "shape": case.shape._asdict(),
        "mask": {masks.OFF: "none", masks.CAUSAL: "causal"}.get(case.mask, "array"),
        "scale": _number(case.scale),
        "masked_rows": case.masked_rows,
        "file": file,
        "sha256": sha256(folder / file),
    }


def _number(scale: float | None) -> float | str | None:
    """A scale for JSON, which has no word for NaN and infinities."""
    return scale if scale is None or math.isfinite(scale) else str(scale)


def _arrays(entry: Entry) -> dict[str, np.ndarray]:
    case = entry.case
    q, k, v = entry.arrays
    exact = exact_attention(
        q,
        k,
        v,
        hidden=masks.hidden_by(case.mask, case.shape, case.seed),
        scale=resolve_scale(case.scale, case.shape.E),
        masked_rows=case.masked_rows,
    )
    arrays = {"q": to_storage(q), "k": to_storage(k), "v": to_storage(v)}
    if case.mask not in (masks.OFF, masks.CAUSAL):
        arrays["mask"] = masks.build(case.mask, case.shape, case.seed)
    arrays |= {"out": exact.out, "weights": exact.weights}
    for name, model in CLASSES.items():
        found = expected_within(exact, model(case.dtype))
        fixed = entry.tolerance
        arrays[f"out_bound_{name}"] = (
            found.out_bound if fixed is None else np.full(exact.out.shape, fixed)
        )
        arrays[f"weights_bound_{name}"] = found.weights_bound
    return arrays
