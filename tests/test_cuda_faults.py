"""Faults of the GPU kind, planted in the CUDA source: the suite convicts each in the emulation."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fullattention.backends.cupy_kernels.kernels import KERNELS, source
from fullattention.conformance.catalogue import selected
from fullattention.conformance.subject import load_subject
from fullattention.conformance.trial import run_check
from fullattention.records import Result
from tests.emulation import backends
from tests.emulation.emulator import Emulator

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

TILE = "shape=2,5,7,3,11,13"
"""One tile of keys, which has a tail; several heads in a block, the last of which has fewer."""

TILES = "shape=1,4,600,2,64,8"
"""Several tiles of keys."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An edit of the kernels' source, and where the suite finds it."""

    name: str
    old: str
    new: str
    only: str
    """The checks that are asked: ids that begin so."""
    dtype: str = "float32"
    words: str = ""
    """Part of what one of them says."""

    def __str__(self) -> str:
        return self.name

    def edit(self, text: str) -> str:
        """The source of a pass with the fault; a pass without the place stays as it is."""
        return text.replace(self.old, self.new)


STAGED = """        stage(shared, 1, call, call.v, int(call.D), first, count, room);
        __syncthreads();
"""

FORWARD = (
    Fault(
        name="no barrier after staging",
        old=STAGED,
        new=STAGED.replace("        __syncthreads();\n", ""),
        only=f"C1: {TILE}",
    ),
    Fault(
        name="no barrier before staging the next tile",
        old="__syncthreads();  // the starts are shared; the tile before is no longer read",
        new="if (first == 0) __syncthreads();",
        only=f"N1: {TILES}",
    ),
    Fault(
        name="no barrier between starts and staging",
        old="__syncthreads();  // the starts are shared; the tile before is no longer read",
        new="if (first > 0) __syncthreads();",
        only=f"C1: {TILE}",
    ),
    Fault(
        name="early return before a barrier",
        old="    share_starts(shared, call, call.k, call.v);\n",
        new="    if (!place.exists) return;\n    share_starts(shared, call, call.k, call.v);\n",
        only=f"C1: {TILE}",
        words="not all threads reach",
    ),
    Fault(
        name="barrier in a branch",
        old=STAGED,
        new=STAGED.replace("__syncthreads();", "if (place.row < call.L) __syncthreads();"),
        only="C5: shape=2,9,33",
        words="not all threads",
    ),
    Fault(
        name="dropped tail",
        old="for (int key = 0; key < count; key += STEP) {\n            Real scores[ROWS]",
        new="for (int key = 0; key < count / STEP * STEP; key += STEP) {\n"
        "            Real scores[ROWS]",
        only="C5: shape=2,9,33",
    ),
    Fault(
        name="padding joins the sum",
        old="const bool shown = key + s < call.S && is_row &&",
        new="const bool shown = is_row &&",
        only="C5: shape=2,9,33",
    ),
    Fault(
        name="stale shared memory behind the last key",
        old="if (index < total) reinterpret_cast",
        new="if (index < count * shared.heads * ROW_CHUNKS) reinterpret_cast",
        only=f"C1: {TILE}",
    ),
    Fault(
        name="innermost stride ignored",
        old="chunk.at[i] = data[(column + i) * array.e]",
        new="chunk.at[i] = data[column + i]",
        only="C4: shape=2,5,7,3,11,13 dtype=float32 layout=every-other",
    ),
    Fault(
        name="time's stride of another layout",
        old="(first + row) * array.t,",
        new="(first + row) * call.H * size,",
        only="C4: shape=2,5,7,3,11,13 dtype=float32 layout=packed",
    ),
    Fault(
        name="alignment not looked at",
        old="    if (array.by_chunks) {\n        if (column < size) chunk = ",
        new="    if (array.e == 1 && size % CHUNK == 0) {\n        if (column < size) chunk = ",
        only="C4: shape=2,40,40,3,8,8 dtype=float32 layout=misaligned",
        words="misaligned",
    ),
    Fault(
        name="blocks beyond a limit of the grid",
        old="const Index block = blockIdx.x;",
        new="const Index block = blockIdx.x % 255;  // the grid of this test is smaller",
        only="L1: shape=65536,2,2",
    ),
    Fault(
        name="a last block's spare heads are written",
        old="place.exists = place.head < call.B * call.H;",
        new="place.exists = true;",
        only=f"C1: {TILE}",
        words="outside of an array",
    ),
    Fault(
        name="last shuffle forgotten",
        old="distance > 0; distance /= 2",
        new="distance > 1; distance /= 2",
        only=f"C1: {TILE}",
    ),
    Fault(
        name="sum not rescaled",
        old="sum[r][f] *= shrink;",
        new="sum[r][f] *= 1;",
        only=f"N1: {TILES}",
    ),
    Fault(
        name="minus infinity less minus infinity",
        old="const Real shift = maximum == minus_infinity() ? Real(0) : maximum;",
        new="const Real shift = maximum;",
        only="M4: shape=1,150,150,2,8,8 dtype=float32 mask=band/LS",
    ),
    Fault(
        name="mask of the first batch entry",
        old="place.b * hidden.b + ",
        new="",
        only="M4: shape=2,5,7,3,11,13 dtype=float32 mask=random/BHLS",
    ),
    Fault(
        name="one mask of dropout for all heads",
        old="unsigned(head), unsigned(head >> 32)",
        new="0u, 0u",
        only="P2: p=0.5",
    ),
)

HALF = "float16"

TENSOR_CORES = (
    Fault(
        name="tensor cores: no barrier after staging",
        old="__syncthreads();  // the tile is staged, and the one before is no longer read",
        new="",
        dtype=HALF,
        only="N1: shape=1,33,64,2,128,32",
    ),
    Fault(
        name="tensor cores: no barrier before the next tile",
        old="__syncthreads();  // the tile is staged, and the one before is no longer read",
        new="if (first == 0) __syncthreads();",
        dtype=HALF,
        only="C5: shape=1,130,130",
    ),
    Fault(
        name="tensor cores: no barrier between starts and staging",
        old="__syncthreads();  // the starts are shared\n",
        new="",
        dtype=HALF,
        only="N1: shape=1,33,64,2,128,32",
    ),
    Fault(
        name="tensor cores: copies not waited for",
        old="finish_copies();\n        __syncthreads();",
        new="__syncthreads();",
        dtype=HALF,
        only="N1: shape=1,33,64,2,128,32",
    ),
    Fault(
        name="tensor cores: copies waited for after the barrier",
        old="finish_copies();\n        __syncthreads();",
        new="__syncthreads(); finish_copies();",
        dtype=HALF,
        only="N1: shape=1,33,64,2,128,32",
    ),
    Fault(
        name="tensor cores: the next tile over the present one",
        old="stage_pair(pairs + (buffer ^ 1) * 2 * TILE,",
        new="stage_pair(pairs + buffer * 2 * TILE,",
        dtype=HALF,
        only="C5: shape=1,130,130",
    ),
    Fault(
        name="tensor cores: columns of the wrong rows",
        old="(k * 16 + threadIdx.x % 16) * STRIDE",
        new="(k * 16 + threadIdx.x % 8) * STRIDE",
        dtype=HALF,
        only="N1: shape=1,33,64,2,128,32",
    ),
    Fault(
        name="tensor cores: rows of a fragment exchanged",
        old="query + i % 2 * 8,",
        new="query + i / 2 * 8,",
        dtype=HALF,
        only="N1: shape=1,33,64,2,128,32",
    ),
    Fault(
        name="tensor cores: sum of a quarter of the keys",
        old="1.0f / over_quad(total[r], true)",
        new="1.0f / total[r]",
        dtype=HALF,
        only="N1: shape=1,33,64,2,128,32",
    ),
    Fault(
        name="tensor cores: padding joins the sum",
        old="const bool shown = s < S && !(call.causal && s > l);",
        new="const bool shown = !(call.causal && s > l);",
        dtype=HALF,
        only="C5: shape=1,130,130",
    ),
    Fault(
        name="tensor cores: sum not rescaled",
        old="sum[d][2 * r + 1] *= shrink;",
        new="",
        dtype=HALF,
        only="C5: shape=1,130,130",
    ),
)

BACKWARD = (
    Fault(
        name="backward: no barrier after staging",
        old="shared.row[2][index] = call.slope[row];\n        }\n        __syncthreads();",
        new="shared.row[2][index] = call.slope[row];\n        }",
        only=f"G1: gradient {TILE}",
    ),
    Fault(
        name="backward: slope of the wrong row",
        old="exists ? shared.row[2][staged_row]",
        new="exists ? shared.row[2][query * shared.heads + place.slot]",
        only=f"G1: gradient {TILE}",
    ),
    Fault(
        name="backward: other weights dropped",
        old="pair.kept = kept(call, place.head, l, s);",
        new="pair.kept = kept(call, place.head + 1, l, s);",
        only="G1: gradient p=",
    ),
    Fault(
        name="backward: first queries skipped without a causal mask",
        old="const int begin = call.causal ? place.block_row / tile * tile : 0;",
        new="const int begin = place.block_row / tile * tile;",
        only="G1: gradient shape=1,9,129",
    ),
    Fault(
        name="backward: no scale",
        old="gradient_of_score(pair, slope) * Real(call.scale);",
        new="gradient_of_score(pair, slope);",
        only=f"G1: gradient {TILE}",
    ),
    Fault(
        name="backward: gradient of returned weights forgotten",
        old="if (EXTRAS && table.data) {",
        new="if (false) {",
        only="G2",
    ),
)


def results(fault: Fault, *, gradients: bool) -> Iterator[Result]:
    """What the suite finds of the kernels with the fault, for both orders of the threads."""
    for order in (False, True):
        emulator = Emulator(reversed=order, edit=fault.edit)
        candidate = (backends.for_torch if gradients else backends.for_numpy)(emulator)
        subject = load_subject(candidate)
        for one in selected((fault.dtype,), "full", only=fault.only):
            yield run_check(subject, one)


def require_convicted(fault: Fault, *, gradients: bool) -> None:
    failed = (one for one in results(fault, gradients=gradients) if one.status == "failed")
    found = next(failed, None)
    assert found is not None, f"{fault} is not found"
    assert fault.words in found.detail


@pytest.mark.parametrize("fault", [*FORWARD, *TENSOR_CORES], ids=str)
def test_a_fault_of_the_forward_pass_is_convicted(fault: Fault) -> None:
    require_convicted(fault, gradients=False)


@pytest.mark.parametrize("fault", BACKWARD, ids=str)
def test_a_fault_of_the_backward_pass_is_convicted(fault: Fault) -> None:
    pytest.importorskip("torch")
    require_convicted(fault, gradients=True)


@pytest.mark.parametrize(
    ("dtype", "only"),
    sorted({(fault.dtype, fault.only) for fault in (*FORWARD, *TENSOR_CORES, *BACKWARD)}),
)
def test_without_the_fault_the_same_checks_pass(dtype: str, only: str) -> None:
    pytest.importorskip("torch")
    same = Fault(name="none", old="", new="", only=only, dtype=dtype)
    found = {one.status for one in results(same, gradients=True)}
    assert "passed" in found
    assert "failed" not in found


@pytest.mark.parametrize("fault", [*FORWARD, *TENSOR_CORES, *BACKWARD], ids=str)
def test_the_place_of_a_fault_is_in_the_source(fault: Fault) -> None:
    assert any(fault.old in source(of) for of in set(KERNELS.values()))
