"""Which BLAS and OpenMP libraries are loaded, and the instructions they dispatched to."""

from __future__ import annotations

import re
import sys

import threadpoolctl

TORCH_BUILT_IN = {
    "MKL": r"Math Kernel Library Version (\S+?)(?:-Product|\s)",
    "oneDNN": r"MKL-DNN v?(\S+)",
}
"""Libraries linked into torch, where no dynamic loader sees them -> how torch words them."""


def blas() -> tuple[str, ...]:
    """Each BLAS and OpenMP that is loaded by now: name, version, architecture where known."""
    pools = threadpoolctl.threadpool_info()
    linked = _inside_torch() if "torch" in sys.modules else []
    return tuple(sorted({*map(_described, pools), *linked}))


def _described(pool: dict[str, str | int | None]) -> str:
    facts = (pool["prefix"], pool["version"], pool.get("architecture"))
    return " ".join(str(fact) for fact in facts if fact is not None)


def _inside_torch() -> list[str]:
    torch = sys.modules["torch"]
    built = torch.__config__.show()
    found = {name: re.search(pattern, built) for name, pattern in TORCH_BUILT_IN.items()}
    vectors = torch.backends.cpu.get_cpu_capability()
    versions = [f"{name} {match[1]}" for name, match in found.items() if match]
    return [f"torch's {version}, {vectors}" for version in versions]
