"""Numba's kernels compile for the GPUs in use, stay in their precision, and keep to registers.

It needs NVIDIA's compilers, not a GPU: `nox -s ptx` installs them.
"""

from __future__ import annotations

import functools
import re
import site
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from numba import cuda
from numba.cuda import dispatcher

from fullattention.backends.interface import Sizes
from fullattention.backends.numba_cuda import DTYPES
from fullattention.backends.numba_cuda_kernels.kernels import (
    CAUSAL,
    CHUNK,
    MASKED,
    SHOWN,
    Constants,
    key_gradients,
    query_gradients,
    rows,
    tiles,
)
from fullattention.backends.numba_cuda_kernels.launch import (
    DEVICE,
    MOST_SHARED,
    Plan,
    forward_plan,
    memory,
    real_size,
    signature,
    tiles_plan,
    validate,
)
from fullattention.bench.workloads import CATALOGUE

TILED = replace(DEVICE, short=0)


def plans_of_workloads() -> Iterator[Plan]:
    """What the built-in workloads launch."""
    for workload in CATALOGUE.values():
        if workload.dtype in DTYPES:
            E, D = workload.shape.E, workload.shape.D
            mask = CAUSAL if workload.mask == "causal" else SHOWN
            c = Constants(dtype=workload.dtype, E=E, D=D, mask=mask)
            yield forward_plan(c, Sizes(*workload.shape), tuning=DEVICE)


def plans_of_features() -> Iterator[Plan]:
    """Every kernel with all it can do, and at its widest."""
    sizes = Sizes(8, 96, 96, 8, 8, 12)
    for dtype in DTYPES:
        full = Constants(dtype=dtype, E=8, D=12, mask=MASKED, weights=True, dropout=True)
        for c in (full, replace(full, mask=CAUSAL)) if dtype == "float32" else (full,):
            for tuning in (DEVICE, TILED):
                yield forward_plan(c, sizes, logsumexp=True, tuning=tuning)
            yield tiles_plan(query_gradients, c, sizes, tuning=DEVICE)
            yield tiles_plan(key_gradients, c, sizes, tuning=DEVICE)
    wide = Constants(dtype="float64", E=512, D=512)
    for factory in (tiles, query_gradients, key_gradients):
        yield tiles_plan(factory, wide, Sizes(4, 96, 96, 2, 512, 512), tuning=DEVICE)


def name(plan: Plan) -> str:
    c = plan.constants
    flags = [flag for flag in ("weights", "logsumexp", "dropout") if getattr(c, flag)]
    hides = {SHOWN: (), CAUSAL: ("causal",), MASKED: ("masked",)}[c.mask]
    sizes = f"E{c.E}-D{c.D}-{c.queries}x{c.keys or c.heads}"
    return "-".join((plan.factory.__name__, c.dtype, sizes, *hides, *flags))


FEATURES = {name(plan): plan for plan in plans_of_features()}
WORKLOADS = {name(plan): plan for plan in plans_of_workloads()}
TRIALS = {
    **{f"{name}-sm_80": (plan, "sm_80") for name, plan in FEATURES.items()},
    **{f"{name}-sm_90": (plan, "sm_90") for name, plan in (FEATURES | WORKLOADS).items()},
}


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba asks the current device, of which there is none, before it compiles a function."""
    lowest = SimpleNamespace(compute_capability=(8, 0))
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: lowest)


@pytest.mark.parametrize(("plan", "target"), TRIALS.values(), ids=TRIALS)
def test_kernel_compiles(plan: Plan, target: str, tmp_path: Path) -> None:
    """To PTX by Numba, and from that to the machine's code by NVIDIA's assembler.

    The assembler counts registers, of which a thread has 255, and what did not fit into them.
    """
    validate(plan)
    c = plan.constants
    kernel = plan.factory(c)
    ptx, _ = cuda.compile_ptx(kernel, signature(plan.factory, c), cc=(int(target[3]), 0))
    assert f".target {target}" in ptx
    if c.dtype != "float64":
        assert ".f64" not in ptx, "something is computed in float64"
    assert "call.uni" not in ptx, "a device function is not part of its kernel"
    declared = re.findall(r"\.shared \.align \d+ \.b8 \w+\[(\d+)\]", ptx)
    assert sum(map(int, declared)) == memory(plan.factory, c) <= MOST_SHARED
    source = tmp_path / "kernel.ptx"
    source.write_text(ptx)
    log = subprocess.run(
        [assembler(), "-v", f"-arch={target}", source, "-o", tmp_path / "kernel.cubin"],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert re.search(r"\b0 bytes spill stores", log), log
    stack = int(re.search(r"(\d+) bytes stack frame", log)[1])  # type: ignore[index]
    # A chunk's scores may lie outside of the registers: they are touched once for many products.
    assert stack <= (c.queries * CHUNK * real_size(c) if plan.factory is rows else 0), log


@functools.cache
def assembler() -> Path:
    """NVIDIA's assembler, from its wheel."""
    return next(
        found
        for folder in site.getsitepackages()
        for found in Path(folder).glob("nvidia/*/bin/ptxas")
    )
