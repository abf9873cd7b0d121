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

from fullattention.backends.numba_cuda import DTYPES
from fullattention.backends.numba_kernels import (
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
from fullattention.backends.numba_launch import (
    DEVICE,
    MOST_SHARED,
    Plan,
    Sizes,
    forward_plan,
    memory,
    real_size,
    signature,
    tiles_plan,
    validate,
)
from fullattention.bench.workloads import CATALOGUE

ARCHITECTURES = ((8, 0), (9, 0))

TILED = replace(DEVICE, short=0)


def plans() -> Iterator[Plan]:
    """What the built-in workloads launch, and every feature of a kernel for one shape."""
    for workload in CATALOGUE.values():
        E, D = workload.shape.E, workload.shape.D
        mask = CAUSAL if workload.mask == "causal" else SHOWN
        if workload.dtype in DTYPES:
            c = Constants(dtype=workload.dtype, E=E, D=D, mask=mask)
            yield forward_plan(c, Sizes(*workload.shape), tuning=DEVICE)
    sizes = Sizes(8, 96, 96, 8, 8, 12)
    for dtype in DTYPES:
        plain = Constants(dtype=dtype, E=8, D=12)
        full = replace(plain, mask=MASKED, weights=True, dropout=True)
        for c in (full, replace(plain, mask=CAUSAL)) if dtype == "float32" else (full,):
            for tuning in (DEVICE, TILED):
                yield forward_plan(c, sizes, logsumexp=True, tuning=tuning)
            yield tiles_plan(query_gradients, c, sizes, tuning=DEVICE)
            yield tiles_plan(key_gradients, c, sizes, tuning=DEVICE)
    for dtype in ("float64", "float32"):
        wide = Constants(dtype=dtype, E=512, D=512)
        for factory in (tiles, query_gradients, key_gradients):
            yield tiles_plan(factory, wide, Sizes(4, 96, 96, 2, 512, 512), tuning=DEVICE)


def name(plan: Plan) -> str:
    c = plan.constants
    flags = [flag for flag in ("weights", "logsumexp", "dropout") if getattr(c, flag)]
    hides = {SHOWN: (), CAUSAL: ("causal",), MASKED: ("masked",)}[c.mask]
    sizes = f"E{c.E}-D{c.D}-{c.queries}x{c.keys or c.heads}"
    return "-".join((plan.factory.__name__, c.dtype, sizes, *hides, *flags))


DISTINCT = {name(plan): plan for plan in plans()}


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba asks the current device, of which there is none, before it compiles a function."""
    lowest = SimpleNamespace(compute_capability=ARCHITECTURES[0])
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: lowest)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids="sm_{0[0]}{0[1]}".format)
@pytest.mark.parametrize("plan", DISTINCT.values(), ids=DISTINCT)
def test_kernel_compiles(plan: Plan, architecture: tuple[int, int], tmp_path: Path) -> None:
    """To PTX by Numba, and from that to the machine's code by NVIDIA's assembler.

    The assembler counts registers, of which a thread has 255, and what did not fit into them.
    """
    validate(plan)
    c = plan.constants
    kernel = plan.factory(c)
    ptx, _ = cuda.compile_ptx(kernel, signature(plan.factory, c), cc=architecture)
    target = "sm_{}{}".format(*architecture)
    assert f".target {target}" in ptx
    if c.dtype != "float64":
        assert ".f64" not in ptx, "something is computed in float64"
    assert "call.uni" not in ptx, "a device function is not part of its kernel"
    declared = re.findall(r"\.shared \.align \d+ \.b8 \w+\[(\d+)\]", ptx)
    assert sum(map(int, declared)) == memory(plan.factory, c) <= MOST_SHARED
    source = tmp_path / "kernel.ptx"
    source.write_text(ptx)
    command = [assembler(), "-v", f"-arch={target}", source, "-o", tmp_path / "kernel.cubin"]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
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
