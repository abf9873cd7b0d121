"""Judge answers to the pack beside this file, by NumPy alone.

python judge.py RESULTS [standard|stored|prescaled|flash|tf32] [DTYPE ...]
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np


def load(path: Path, name: str) -> dict[str, np.ndarray] | None:
    """The arrays `out` and, where given, `weights` of an answer; None if there is none."""
    if path.is_file():
        with np.load(path) as arrays:
            keys = {"out": name, "weights": f"{name}.weights"}
            return {part: arrays[key] for part, key in keys.items() if key in arrays} or None
    if (path / f"{name}.npy").is_file():
        return {"out": np.load(path / f"{name}.npy")}
    if (path / f"{name}.npz").is_file():
        with np.load(path / f"{name}.npz") as arrays:
            return {part: arrays[part] for part in ("out", "weights") if part in arrays}
    return None


def right(got: np.ndarray, want: np.ndarray, bound: np.ndarray, dtype: str) -> bool:
    """Whether shape and dtype are right, NaN and infinities in place, and errors within bound."""
    if got.shape != want.shape or got.dtype != ("uint16" if dtype == "bfloat16" else dtype):
        return False
    if dtype == "bfloat16":  # the upper half of a float32
        got = (got.astype(np.uint32) << 16).view(np.float32)
    got = got.astype(np.float64)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    finite = np.isfinite(got) & np.isfinite(want)
    with np.errstate(all="ignore"):
        return bool((same | (finite & (abs(got - want) <= bound))).all())


def judge(pack: Path, case: dict[str, Any], results: Path, precision_class: str) -> str:
    """One of "passed", "failed" and "not run"."""
    content = (pack / case["file"]).read_bytes()
    if hashlib.sha256(content).hexdigest() != case["sha256"]:
        sys.exit(f"the pack is damaged: {case['file']}")
    try:
        answer = load(results, case["name"])
    except Exception:  # noqa: BLE001 - the file holds no arrays: an answer may be anything
        return "failed"
    if answer is None:
        return "not run"
    with np.load(pack / case["file"]) as truth:
        parts = [
            right(got, truth[part], truth[f"{part}_bound_{precision_class}"], case["dtype"])
            for part, got in answer.items()
        ]
    return "passed" if "out" in answer and all(parts) else "failed"


def main(results: Path, precision_class: str = "standard", *dtypes: str) -> int:
    """Print a verdict for each case and how many there are of each; returns 0 if all passed."""
    pack = Path(__file__).parent
    index = json.loads((pack / "index.json").read_bytes())
    cases = index["cases"]
    if not results.exists():
        sys.exit(f"results {results}: there is no such file or folder")
    if precision_class not in index["classes"]:
        sys.exit(f"class {precision_class}: one of {', '.join(index['classes'])}")
    held = list(dict.fromkeys(case["dtype"] for case in cases))
    for dtype in dtypes:
        if dtype not in held:
            sys.exit(f"dtype {dtype}: the pack has {', '.join(held)}")
    verdicts = {
        case["name"]: judge(pack, case, results, precision_class)
        for case in cases
        if not dtypes or case["dtype"] in dtypes
    }
    for name, verdict in verdicts.items():
        print(name, verdict)
    counts = Counter(verdicts.values())
    print(", ".join(f"{counts[one]} {one}" for one in ("passed", "failed", "not run")))
    return 0 if set(counts) == {"passed"} else 1


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
