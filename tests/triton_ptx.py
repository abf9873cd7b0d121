"""The Triton kernels compile for the GPUs in use, stay in their precision, and keep to registers.

It needs Triton's compiler and the assembler that it brings, not a GPU: `nox -s triton`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import mangle_type

from fullattention.backends.interface import Sizes
from fullattention.backends.passes import Options
from fullattention.backends.triton_kernels.kernels import VARYING
from fullattention.backends.triton_kernels.passes import Launch, TritonKernels
from fullattention.backends.triton_kernels.simulator import SIMULATED

assert not SIMULATED, "the interpreter compiles nothing: unset TRITON_INTERPRET"

LEAST_SHARED = 99 * 1024
"""Bytes of shared memory that a block may have on every GPU since compute capability 8.0."""

MOST_SPILLED = 64
"""Bytes of a thread that may not fit into registers, but for the widest heads, which never do."""

PLAIN = Options(causal=False, scale=0.3, dropout=0.0, seed=0)
TRAINED = Options(causal=False, scale=0.3, dropout=0.1, seed=2**40)
CAUSAL = Options(causal=True, scale=0.3, dropout=0.1, seed=1)


class Call(NamedTuple):
    """What is launched for."""

    dtype: str
    sizes: Sizes
    options: Options = PLAIN
    masked: bool = False
    weights: bool = False


TINY, CROSS = Sizes(896, 42, 42, 4, 4, 4), Sizes(32, 7, 11, 8, 64, 60)
USUAL, LONG = Sizes(32, 96, 96, 8, 64, 64), Sizes(1, 2048, 2048, 8, 128, 100)
WIDE = Sizes(2, 300, 300, 2, 256, 256)

CALLS = {
    "tiny-float32": Call("float32", TINY),
    "tiny-float16": Call("float16", TINY, TRAINED),
    "cross-float32": Call("float32", CROSS, TRAINED, masked=True, weights=True),
    "cross-bfloat16": Call("bfloat16", CROSS, masked=True, weights=True),
    "usual-float32": Call("float32", USUAL),
    "usual-float32-causal": Call("float32", USUAL, CAUSAL, weights=True),
    "long-float16": Call("float16", LONG),
    "long-bfloat16-causal": Call("bfloat16", LONG, CAUSAL, weights=True),
    "wide-float32": Call("float32", WIDE),
    "wide-float16": Call("float16", WIDE, TRAINED, masked=True),
}


def launches(call: Call) -> Iterator[Launch]:
    """What both passes launch, of tensors without memory."""
    queued: list[Launch] = []

    def empty(*shape: int, dtype: str = call.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    B, L, S, H, E, D = call.sizes
    q, k, v, g = empty(B, L, H, E), empty(B, S, H, E), empty(B, S, H, D), empty(B, L, H, D)
    hidden = empty(B, 1, 1, S, dtype="bool") if call.masked else None
    g_weights = empty(B, H, L, S) if call.weights else None
    kernels = TritonKernels()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Launch, "queue", lambda self, like: queued.append(self))
        out, _, rows = kernels.forward(q, k, v, hidden, call.options, weights=call.weights)
        kernels.backward(g, g_weights, q, k, v, hidden, out, rows, call.options)
    yield from queued


def source(launch: Launch) -> ASTSource:
    """What Triton compiles at that launch: it compiles strides of 1 in, and what 16 divides."""
    names: list[str] = launch.kernel.arg_names
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}

    def typed(value: Any, path: tuple[int, ...]) -> Any:
        if isinstance(value, tuple):
            return tuple(typed(part, (*path, index)) for index, part in enumerate(value))
        is_step = isinstance(value, int) and names[path[0]] not in VARYING
        if value is None or (is_step and value == 1):
            constants[path] = value
            return "constexpr"
        if isinstance(value, torch.Tensor) or (is_step and value % 16 == 0):
            attributes[path] = [["tt.divisibility", 16]]
        return mangle_type(value)

    pairs = zip(names, launch.arguments, strict=False)
    signature = {name: typed(value, (index,)) for index, (name, value) in enumerate(pairs)}
    for name, value in launch.constants.items():
        signature[name] = "constexpr"
        constants[(names.index(name),)] = value
    return ASTSource(launch.kernel, signature, constants, attributes)


@functools.cache
def launched(name: str) -> dict[str, Launch]:
    return {launch.kernel.__name__: launch for launch in launches(CALLS[name])}


@pytest.fixture(autouse=True)
def _compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in Triton's cache has no assembler's log."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(triton.knobs.nvidia, "dump_ptxas_log", True)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("kernel", ["attend", "query_gradients", "key_gradients"])
@pytest.mark.parametrize("name", CALLS)
def test_kernel_compiles(
    name: str, kernel: str, capability: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """To PTX by Triton, and from that to the machine's code by NVIDIA's assembler."""
    launch = launched(name)[kernel]
    compiled = triton.compile(
        source(launch),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": launch.tiles.warps, "num_stages": launch.tiles.stages},
    )
    ptx, log = compiled.asm["ptx"], capsys.readouterr().out
    assert f".target sm_{capability}" in ptx
    assert compiled.asm["cubin"]
    assert ".f64" not in ptx, "something is computed in float64"
    assert "tf32" not in ptx, "factors are cut to TF32"
    assert ".ftz" not in ptx, "subnormal numbers are flushed to zero"
    by_tensor_cores = "mma.sync." in ptx or "wgmma." in ptx
    half = CALLS[name].dtype != "float32"
    assert by_tensor_cores == half, "half types, and they alone, go by tensor cores"
    assert compiled.metadata.shared <= LEAST_SHARED
    spilled = re.search(r"(\d+) bytes spill stores", log)
    assert spilled is not None, log
    assert int(spilled[1]) <= MOST_SPILLED or CALLS[name].sizes == WIDE, log
