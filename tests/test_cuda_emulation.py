"""The CUDA kernels, run on the CPU through the very code that launches them on a GPU.

`nox -s emulation` has every dtype and the other order of threads.
"""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

from fullattention import FullAttention, UnsupportedError
from fullattention.backends import numpy_arrays
from fullattention.backends.cupy_kernels import fused
from fullattention.backends.cupy_kernels.kernels import KERNELS, source
from fullattention.backends.interface import Sizes
from fullattention.conformance import check
from fullattention.conformance.case import Case, Failed, NotHere, expected_of, judge, run
from fullattention.conformance.layouts import LAYOUTS
from fullattention.conformance.limits import far_apart
from fullattention.conformance.subject import load_subject
from fullattention.records import Verdict
from tests.emulation import backends
from tests.emulation.emulator import EmulationError, Emulator

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


def require_conformant(verdict: Verdict) -> None:
    wrong = [(one.check, one.detail) for one in verdict.results if one.status == "failed"]
    assert verdict.conformant, wrong


def test_forward_and_gradients_are_conformant() -> None:
    pytest.importorskip("torch")
    verdict = check(backends.torch_first_to_last("cpu"), dtypes=("float32",))
    require_conformant(verdict)
    tried = {one.requirement for one in verdict.results if one.status == "passed"}
    assert {"C4", "C12", "M6", "N4", "W1", "P2", "G1", "G2", "G3"} <= tried


@pytest.mark.parametrize("only", ["C4", "M4: mask is", "L1: shape=65536", "L1: shape=16385"])
def test_strides_and_counts_are_right(only: str) -> None:
    verdict = check(
        backends.numpy_first_to_last("cpu"), level="standard", dtypes=("float32",), only=only
    )
    assert not [one for one in verdict.results if one.status == "failed"]


FAR = {
    "attend": Case(mask="random/B1LS"),
    "attend_by_tensor_cores": Case(dtype="float16", shape=Sizes(2, 64, 64, 1, 16, 16)),
}
"""Kernel -> a call that it serves, of two batch entries."""


def far(emulator: Emulator, case: Case) -> float:
    """The error over the bound where 2^31 elements lie between the batch entries."""
    try:
        return far_apart(load_subject(backends.for_numpy(emulator)), case)
    except NotHere as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("kernel", FAR)
def test_offsets_beyond_32_bits_are_right(kernel: str) -> None:
    emulator = Emulator()
    assert far(emulator, FAR[kernel]) <= 1
    assert {launch.kernel for launch in emulator.launches} == {kernel}


@pytest.mark.parametrize("kernel", FAR)
@pytest.mark.parametrize("array", ["q", "k"])
def test_offsets_of_32_bits_are_convicted(kernel: str, array: str) -> None:
    old, new = {
        "q": ("return place.b * array.b +", "return int(place.b * array.b) +"),
        "k": ("[slot] = b * first.b +", "[slot] = int(b * first.b) +"),
    }[array]
    if kernel == "attend_by_tensor_cores" and array == "q":
        old, new = "query_pair(call, b * call.q.b +", "query_pair(call, int(b * call.q.b) +"
    assert old in source(KERNELS[kernel])
    with pytest.raises((Failed, EmulationError)):
        far(Emulator(edit=lambda text: text.replace(old, new)), FAR[kernel])


def layer(emulator: Emulator, **options: Any) -> FullAttention:
    return FullAttention(
        backend=backends.for_numpy(emulator), attention_dropout=0.0, **options
    ).eval()


RNG = np.random.default_rng(4)


def drawn(B: int, L: int, H: int, E: int) -> np.ndarray:
    return RNG.standard_normal((B, L, H, E)).astype(np.float32)


def test_a_causal_call_skips_tiles_and_still_meets_a_hidden_nan() -> None:
    """0 times NaN is NaN, in a tile that no query of the block sees too."""
    x = drawn(1, 300, 1, 64)
    v = x.copy()
    v[0, -1, 0, 3] = np.nan
    emulator = Emulator()
    out, _ = layer(emulator)(x, x, v, None)
    (launch,) = emulator.launches
    assert launch.tile < 300
    assert np.isnan(out[0, :, 0, 3]).all()
    assert np.isfinite(np.delete(out[0, :, 0], 3, axis=-1)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_long_half_precision_calls_go_by_tensor_cores(dtype: str) -> None:
    """Causally too, with a last tile and a last warp in part, and with NaN in a hidden value."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    q, k, v = (drawn(2, 150, 3, size).astype(kind) for size in (24, 24, 40))
    plain = FullAttention(attention_dropout=0.0, backend="numpy-reference")
    want, _ = plain(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64), None)
    emulator = Emulator()
    got, _ = layer(emulator)(q, k, v, None)
    assert emulator.launches[0].kernel == "attend_by_tensor_cores"
    step = float(ml_dtypes.finfo(kind).eps)
    assert abs(got.astype(np.float64) - want).max() <= 4 * step
    v[1, -1, 2, 5] = np.nan
    poisoned, _ = layer(Emulator())(q, k, v, None)
    assert np.isnan(poisoned[1, :, 2, 5].astype(np.float64)).all()
    poisoned[1, :, 2, 5] = got[1, :, 2, 5]
    assert poisoned.tobytes() == got.tobytes()


def error_by_tensor_cores(emulator: Emulator, layout: str) -> float:
    """The error over the bound of a call of two tiles."""
    case = Case(dtype="float16", shape=Sizes(2, 70, 100, 3, 16, 8), layout=layout)
    subject = load_subject(backends.for_numpy(emulator))
    ratio = judge(run(subject, case), expected_of(subject, case))
    assert {launch.kernel for launch in emulator.launches} == {"attend_by_tensor_cores"}
    return ratio


@pytest.mark.parametrize("last_to_first", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensor_cores_serve_every_layout(layout: str, last_to_first: bool) -> None:
    assert error_by_tensor_cores(Emulator(reversed=last_to_first), layout) <= 1


def test_tensor_cores_copy_nothing_that_is_not_aligned() -> None:
    right, fault = "} else if (array.by_chunks) {", "} else if (array.e == 1) {"
    assert right in source("tensor_cores")
    with pytest.raises(EmulationError, match="misaligned"):
        error_by_tensor_cores(Emulator(edit=lambda text: text.replace(right, fault)), "misaligned")


def test_a_causal_call_reads_no_key_of_a_skipped_tile() -> None:
    x = drawn(1, 300, 1, 64)
    k = x.copy()
    k[0, -1] = np.nan
    out, _ = layer(Emulator())(x, k, x, None)
    assert np.isfinite(out[0, :-1]).all()
    assert np.isnan(out[0, -1]).all()


def test_weights_of_several_tiles_are_right() -> None:
    q, k, v = drawn(1, 4, 2, 64), drawn(1, 300, 2, 64), drawn(1, 300, 2, 8)
    options: dict[str, Any] = {"mask_flag": False, "output_attention": True}
    _, want = FullAttention(attention_dropout=0.0, backend="numpy-reference", **options)(
        q, k, v, None
    )
    emulator = Emulator()
    _, got = layer(emulator, **options)(q, k, v, None)
    assert emulator.launches[0].tile < 300
    assert got is not None
    assert want is not None
    assert np.allclose(got, want, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("size", ["E", "D"])
def test_more_features_than_the_kernels_hold_are_refused(size: str) -> None:
    q, v = drawn(1, 3, 1, 513 if size == "E" else 8), drawn(1, 3, 1, 513 if size == "D" else 8)
    with pytest.raises(UnsupportedError, match=f"{size} = 513: at most 512"):
        layer(Emulator(), mask_flag=False)(q, q, v, None)


def apart(x: np.ndarray, spare: int, shift: int = 0) -> np.ndarray:
    """The same numbers with spare bytes after each row of features, from a shifted address on."""
    *rows, E = x.shape
    row = E * x.itemsize + spare
    memory = np.zeros(shift + row * int(np.prod(rows)), np.uint8)
    strides = (row * rows[1] * rows[2], row * rows[2], row, x.itemsize)
    view = np.ndarray(x.shape, x.dtype, memory, shift, strides)
    view[...] = x
    return view


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("spare_and_shift", [(1, 0), (0, 2)])
def test_elements_that_no_gpu_can_load_are_refused(
    name: str, spare_and_shift: tuple[int, int]
) -> None:
    arrays = {"q": drawn(2, 5, 3, 8), "k": drawn(2, 5, 3, 8), "v": drawn(2, 5, 3, 8)}
    arrays[name] = apart(arrays[name], *spare_and_shift)
    with pytest.raises(
        UnsupportedError, match=f"{name} lies at .*: they must be multiples of .* 4"
    ):
        layer(Emulator(), mask_flag=False)(arrays["q"], arrays["k"], arrays["v"], None)


def test_whole_elements_apart_are_served() -> None:
    q, k, v = (drawn(2, 5, 3, 8) for _ in "qkv")
    want, _ = layer(Emulator(), mask_flag=False)(q, k, v, None)
    got, _ = layer(Emulator(), mask_flag=False)(apart(q, 4), apart(k, 12, 4), apart(v, 0, 8), None)
    assert np.array_equal(got, want)


def test_the_widest_features_are_served() -> None:
    q, k, v = drawn(2, 5, 3, 512), drawn(2, 9, 3, 512), drawn(2, 9, 3, 300)
    plain = FullAttention(False, attention_dropout=0.0, backend="numpy-reference")
    want, _ = plain(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64), None)
    got, _ = layer(Emulator(), mask_flag=False)(q, k, v, None)
    assert np.allclose(got, want, atol=1e-5)


def test_a_broadcast_mask_is_not_expanded() -> None:
    """One byte for all of it: every stride that the kernel gets is zero."""
    seen = []

    class Watching(Emulator):
        def launch(self, launch: Any, call: np.ndarray, like: Any) -> None:
            seen.append(call["hidden"][0])
            super().launch(launch, call, like)

    x = drawn(2, 5, 3, 8)
    layer(Watching())(x, x, x, np.zeros((), bool))
    (hidden,) = seen
    assert hidden["data"] != 0
    assert [hidden[axis] for axis in "bhls"] == [0, 0, 0, 0]


# What the emulation tells: kernels that no device would stand for.


def run_edited(old: str, new: str) -> None:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    x = drawn(1, 20, 3, 8)
    layer(Emulator(edit=edit), mask_flag=False)(x, x, x, None)


LAST_LINE = "    Real inverse[ROWS];\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("if (threadIdx.x < 7) return; __syncthreads();", "a barrier that not all threads reach"),
        ("if (threadIdx.x < 7) { __syncthreads();\n } else __syncthreads();", "not all threads"),
        ("if (threadIdx.x > 3) __shfl_xor_sync(~0u, 1.0f, 1);", "a shuffle that not all threads"),
        ("memory[-1] = 0;", "a write outside of shared memory"),
        ("shared.row[2][call.tile * shared.heads] = 0;", "a write outside of shared memory"),
        ("*reinterpret_cast<Real*>(16) = 0;", "misaligned or not mapped"),
        ("*reinterpret_cast<Real*>(memory + 1) = 0;", "misaligned or not mapped"),
        ("static_cast<float*>(call.out.data)[-1] = 0;", "outside of an array"),
    ],
)
def test_the_emulation_tells_what_no_device_stands_for(line: str, words: str) -> None:
    run_edited(LAST_LINE, LAST_LINE)
    with pytest.raises(EmulationError, match=words):
        run_edited(LAST_LINE, f"{line}\n{LAST_LINE}")


def test_shared_memory_starts_as_nan() -> None:
    emulator = Emulator(
        edit=lambda text: text.replace("stage(shared, 1,", "if (0) stage(shared, 1,")
    )
    x = drawn(1, 20, 3, 8)
    out, _ = layer(emulator, mask_flag=False)(x, x, x, None)
    assert np.isnan(out).all()


def test_the_backend_differs_from_the_real_one_in_its_runtime_alone() -> None:
    emulated = backends.numpy_first_to_last("cpu")
    assert emulated.seed is numpy_arrays.seed
    assert emulated.arrays is numpy_arrays.ARRAYS
    assert dict(emulated.precision) == {
        dtype: fused.precision(dtype) for dtype in emulated.precision
    }
