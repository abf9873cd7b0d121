"""Numba's CPU kernels beyond what the conformance suite asks of every backend."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from fullattention import FullAttention, UnavailableError, load
from fullattention.backends.interface import Sizes
from fullattention.conformance import check
from fullattention.conformance.bound import attention_bound, error_over_bound
from fullattention.conformance.gradient_bound import exact_gradients, gradient_bound
from fullattention.conformance.oracle import exact_attention

numba = pytest.importorskip("numba")
llvm = pytest.importorskip("llvmlite.binding")
torch = pytest.importorskip("torch")

from fullattention.backends import (  # noqa: E402 - they need Numba
    numba_cpu,
    numba_cpu_torch,
    numpy_arrays,
)
from fullattention.backends.numba_cpu_kernels import (  # noqa: E402
    dropout,
    entry,
    exponential,
    memory,
    vector,
    workers,
)

REALS = (np.float32, np.float64)
RNG = np.random.default_rng(11)
NO_FACTORS = np.empty(0, np.float32)


@numba.njit  # type: ignore[untyped-decorator]
def powers(x: Any, factor: Any, out: Any) -> None:
    p, q = vector.aligned(x), vector.aligned(out)
    for i in range(0, x.size - 64, vector.lanes_at(p)):
        y = exponential.exp2(vector.load(p, i), vector.splat(p, factor))
        vector.store(q, i, y)


def at_aligned(array: np.ndarray) -> np.ndarray:
    """The part of an array that begins where `vector.aligned` does."""
    skip = -array.__array_interface__["data"][0] % 64 // array.itemsize
    return array[skip : skip + array.size - 64]


def exp2_of(x: np.ndarray, factor: float) -> np.ndarray:
    """What the kernels' exponential makes of x, whose size is a multiple of 16."""
    given, got = np.zeros(x.size + 64, x.dtype), np.zeros(x.size + 64, x.dtype)
    at_aligned(given)[:] = x
    powers(given, x.dtype.type(factor), got)
    return at_aligned(got).copy()


@pytest.mark.parametrize("real", REALS)
def test_the_exponential_keeps_the_ulp_that_it_states(real: type[np.floating[Any]]) -> None:
    lowest = np.log2(float(np.finfo(real).tiny))
    x = np.concatenate([-np.geomspace(1e-8, -lowest, 2**17), lowest * RNG.random(2**17)])
    x = x.astype(real)
    exact = np.exp2(x.astype(np.longdouble))
    normal = exact >= np.finfo(real).tiny
    ulp = np.spacing(exact.astype(real)).astype(np.longdouble)
    error = float((abs(exp2_of(x, 1.0) - exact) / ulp)[normal].max())
    assert 0.5 < error < exponential.EXP_ULP


@pytest.mark.parametrize("real", REALS)
def test_the_exponential_is_exact_where_the_softmax_needs_it(
    real: type[np.floating[Any]],
) -> None:
    unsigned = np.uint32 if real is np.float32 else np.uint64
    odd_nan: np.ndarray = np.array([np.nan], real).view(unsigned)
    odd_nan += unsigned(1)
    x = np.array([0, -0.0, -np.inf, -1e30, np.nan, 0, -3, -11] * 2, real)
    x[5:6] = odd_nan.view(real)
    got = exp2_of(x, 1.0)
    assert got[:4].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert np.isnan(got[4:6]).all()
    assert got[6:8].tolist() == [0.125, 2.0**-11]


@numba.njit  # type: ignore[untyped-decorator]
def bits_of(seed: int, pair: int, row: int, numbers: Any, out: Any) -> None:
    p, q = vector.aligned(numbers), vector.as_bits(vector.aligned(out))
    key = dropout.row_key(seed, pair, row)
    first = vector.splat_bits(p, np.uint32(key))
    second = vector.splat_bits(p, np.uint32(key >> np.uint64(32)))
    keys = vector.lane_numbers(p)
    for i in range(0, 2 * out.size - 128, vector.lanes_at(p)):
        vector.store(q, i, dropout.random_bits(keys, first, second))
        keys = keys + vector.constant(keys, vector.lanes_at(p))


def random_row(seed: int, pair: int, row: int, count: int = 4096) -> np.ndarray:
    """The random bits of one row of weights, as `dropout` draws them."""
    out = np.zeros(count // 2 + 64, np.uint64)
    bits_of(seed, pair, row, np.zeros(64, np.float32), out)
    return at_aligned(out).view(np.uint32)[:count]


def test_random_bits_are_uniform_and_depend_on_each_part_of_a_place() -> None:
    rows = {place: random_row(*place) for place in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))}
    for bits in rows.values():
        ones = np.unpackbits(bits.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(32 * bits.size)
        low_and_high = bits / 2.0**32
        counts, _ = np.histogram(low_and_high, 16, (0, 1))
        assert ((counts - bits.size / 16) ** 2 / (bits.size / 16)).sum() < 50  # chi2, 15 degrees
    first, *others = rows.values()
    for other in others:  # of 32 bits half differ, whatever part of the place does
        changed = np.unpackbits((first ^ other).view(np.uint8)).mean()
        assert abs(changed - 0.5) < 5 * 0.5 / np.sqrt(32 * first.size)
    neighbours = np.corrcoef(first[:-1].astype(float), first[1:].astype(float))[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(first.size)
    assert (random_row(1, 0, 0) == first).all()


REGIMES = get_args(numba_cpu.Regime)


def inputs(
    B: int, L: int, S: int, H: int, E: int, D: int, real: Any = np.float32
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shapes = (B, L, H, E), (B, S, H, E), (B, S, H, D)
    return tuple(RNG.standard_normal(shape).astype(real) for shape in shapes)  # type: ignore[return-value]


def send_to(regime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send every call to one regime, whatever its sizes."""
    monkeypatch.setattr(numba_cpu, "_regime", lambda *_: regime)
    numba_cpu.plan.cache_clear()


@pytest.fixture(params=REGIMES)
def regime(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each of the regimes, for calls of any sizes."""
    send_to(request.param, monkeypatch)
    yield request.param
    numba_cpu.plan.cache_clear()


def attended(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    hidden: np.ndarray | None = None,
    causal: bool = False,
    scale: float = 0.5,
    dropout: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    out, weights = numba_cpu.attend(
        q, k, v, hidden=hidden, causal=causal, scale=scale, dropout=dropout, weights=True
    )
    assert weights is not None
    return out, weights


EDGES = [
    *((3, L, S, 3, 5, 6) for L, S in ((1, 1), (2, 3), (3, 2), (15, 16), (16, 17), (17, 33))),
    *((1, 5, 7, H, E, D) for H, E, D in ((1, 1, 1), (8, 4, 3), (9, 17, 2), (16, 3, 33))),
    (1, 3, 300, 2, 8, 4),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", EDGES, ids=str)
def test_every_regime_is_right_at_its_edges(
    regime: str, sizes: tuple[int, ...], causal: bool
) -> None:
    B, L, S, H, E, D = sizes
    S = L if causal else S
    q, k, v = inputs(B, L, S, H, E, D)
    hidden = np.triu(np.ones((L, S), bool), 1)[None, None] if causal else None
    want = attention_bound(
        *(x.astype(np.float64) for x in (q, k, v)),
        hidden=hidden,
        scale=0.5,
        precision=numba_cpu.backend("cpu").precision["float32"],
    )
    out, weights = attended(q, k, v, causal=causal)
    assert error_over_bound(out, want.out, want.out_bound) <= 1
    assert error_over_bound(weights, want.weights, want.weights_bound) <= 1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", EDGES, ids=str)
def test_every_regime_differentiates_at_its_edges(
    regime: str, sizes: tuple[int, ...], causal: bool
) -> None:
    B, L, S, H, E, D = sizes
    S = L if causal else S
    qkv = inputs(B, L, S, H, E, D)
    g_out, g_weights = (
        RNG.standard_normal(shape).astype(np.float32) for shape in ((B, L, H, D), (B, H, L, S))
    )
    hidden = np.triu(np.ones((L, S), bool), 1)[None, None] if causal else None
    exact = exact_attention(*(x.astype(np.float64) for x in qkv), hidden=hidden, scale=0.5)
    want = exact_gradients(exact, g_out, g_weights, hidden=hidden)
    precision = numba_cpu.for_torch("cpu").precision["float32"]
    bound = gradient_bound(exact, g_out, g_weights, precision, hidden=hidden)
    layer = FullAttention(causal, scale=0.5, output_attention=True, backend="numba-cpu-torch")
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in qkv)
    results = layer.eval()(q, k, v, None)
    got = torch.autograd.grad(results, (q, k, v), [torch.from_numpy(g) for g in (g_out, g_weights)])
    for gradient, exactly, most in zip(got, want, bound, strict=True):
        assert error_over_bound(gradient.numpy(), exactly, most) <= 1


@pytest.mark.proof
def test_every_regime_is_conformant(regime: str) -> None:
    verdict = check(numba_cpu.for_torch("cpu"), dtypes=("float32", "bfloat16"))
    assert verdict.conformant, [one for one in verdict.results if one.status == "failed"]


NARROW = """
from fullattention.backends.numba_cpu_kernels import vector
vector.WIDTH = 16  # before anything is compiled for it
from typing import get_args
import torch
from fullattention import load
from fullattention.backends import numba_cpu

def results(name, q, k, v):
    out, _ = load(name).attend(
        q, k, v, hidden=None, causal=False, scale=0.5, dropout=0.0, weights=False
    )
    return out, *torch.autograd.grad(out.sin().sum(), (q, k, v))

torch.manual_seed(1)
for regime in get_args(numba_cpu.Regime):
    numba_cpu._regime = lambda *_: regime
    numba_cpu.plan.cache_clear()
    for keys in range(4, 8):
        shapes = [(2, n, 2, 6) for n in (5, keys, keys)]
        qkv = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
        for got, want in zip(results("numba-cpu-torch", *qkv), results("torch-einsum", *qkv)):
            assert torch.allclose(got, want, rtol=1e-9, atol=1e-9), (regime, keys)
"""


@pytest.mark.proof
def test_every_regime_is_right_where_a_register_holds_two_numbers(tmp_path: Path) -> None:
    """As it does in float64 without AVX2, and on ARM."""
    apart = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", NARROW], env=apart, check=True)


@pytest.mark.parametrize(
    "sizes", [(4, 6, 6, 8, 4, 4), (4, 12, 12, 2, 64, 64), (4, 9, 130, 2, 8, 8)]
)
@pytest.mark.parametrize("threads", [1, 3, 8])
def test_the_regime_is_the_same_for_any_batch_and_number_of_threads(
    sizes: tuple[int, ...], threads: int
) -> None:
    """Else a batch would change the results of its elements."""
    steps = ((1, 1, 1, 1),) * 3
    for direction in get_args(numba_cpu.Direction):
        plans = [
            numba_cpu.plan(
                *(direction, "float32", Sizes(B, *sizes[1:]), steps),
                *(4, None, False, 1.0, 0.0, threads),
            )
            for B in (1, 2, 64)
        ]
        assert len({plan.work.kernel for plan in plans}) == 1


def test_a_value_that_is_no_number_reaches_the_rows_that_cannot_see_it(regime: str) -> None:
    q, k, v = inputs(2, 20, 20, 3, 4, 5)
    v[1, 19, 2, 3] = np.inf
    k[0, 19, 0, 0] = np.nan
    out, _ = attended(q, k, v, causal=True)
    assert np.isnan(out[1, :19, 2, 3]).all()  # 0 * inf, as the definition has it
    assert np.isnan(out[0, 19, 0]).all()
    touched = np.zeros_like(out, bool)
    touched[1, :, 2, 3] = touched[0, 19, 0] = True
    assert np.isfinite(out[~touched]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("argument", ["queries", "keys", "values", "gradient"])
def test_what_is_no_number_spoils_the_gradients_that_the_definition_has_it_spoil(
    regime: str, argument: str, value: float
) -> None:
    """Hidden keys are skipped where they cannot tell, and 0 * NaN tells."""
    for query in (0, 5, 20, 39):
        given = (*inputs(2, 40, 40, 2, 4, 4), inputs(2, 40, 40, 2, 4, 4)[0])
        given[("queries", "keys", "values", "gradient").index(argument)][0, query, 1, 0] = value
        *qkv, g_out = map(torch.from_numpy, given)
        patterns = []
        for name in ("torch-einsum", "numba-cpu-torch"):
            q, k, v = (x.clone().requires_grad_() for x in qkv)
            out, _ = FullAttention(True, attention_dropout=0.0, backend=name)(q, k, v, None)
            patterns.append([x.isfinite() for x in torch.autograd.grad(out, (q, k, v), g_out)])
        for definition, found in zip(*patterns, strict=True):
            assert torch.equal(definition, found)
        assert not all(pattern.all() for pattern in patterns[0])


def test_every_regime_drops_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs(3, 21, 30, 2, 4, 5)
    results = []
    for regime in REGIMES:
        send_to(regime, monkeypatch)
        numpy_arrays.seed(3)
        results.append(attended(q, k, v, dropout=0.4)[1] == 0)
    numba_cpu.plan.cache_clear()
    for result in results[1:]:
        assert (results[0] == result).all()
    assert abs(results[0].mean() - 0.4) < 5 * np.sqrt(0.24 / results[0].size)


def test_threads_share_the_work_and_change_no_bit(
    regime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba_cpu, "WORK_OF_A_THREAD", 1)
    q, k, v = inputs(5, 70, 33, 7, 4, 5)
    results = []
    for threads in (1, 4):
        monkeypatch.setattr(numba, "get_num_threads", lambda count=threads: count)
        results.append(attended(q, k, v))
    for one, many in zip(*results, strict=True):
        assert (one == many).all()


@pytest.mark.parametrize("units", [1, 2, 7, 64, 1000])
def test_every_unit_of_work_is_done_once_on_no_more_threads_than_asked(units: int) -> None:
    done: list[int] = []
    threads: set[int] = set()

    def kernel(call: Any, factors: Any, numbers: Any, integers: Any, start: int, stop: int) -> None:
        done.extend(range(start, stop))
        threads.add(threading.get_ident())

    workers.Work(kernel, NO_FACTORS, np.float32, 1, units, 3).run(())
    assert sorted(done) == list(range(units))
    assert len(threads) <= 3


def test_small_work_stays_on_one_thread() -> None:
    steps = ((1, 1, 1, 1),) * 3
    small, large = (
        numba_cpu.plan("forward", "float32", (B, 6, 6, 2, 8, 8), steps, 4, None, False, 1.0, 0, 8)
        for B in (8, 80_000)
    )
    assert small.work.threads == 1
    assert large.work.threads == 8


def test_small_work_asks_numba_for_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba starts all of its own when it is asked how many there are."""

    def started() -> int:
        raise AssertionError("Numba starts its threads")

    monkeypatch.setattr(numba, "get_num_threads", started)
    out, _ = attended(*inputs(8, 6, 6, 2, 8, 8))
    assert out.shape == (8, 6, 2, 8)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_scratch_is_for_no_more_queries_than_there_are(direction: numba_cpu.Direction) -> None:
    steps = ((1, 1, 1, 1),) * 3

    def scratch(L: int) -> int:
        sizes = Sizes(2, L, 8, 4, 8, 8)
        plan = numba_cpu.plan(direction, "float32", sizes, steps, 4, None, False, 1.0, 0.0, 1)
        return plan.work.scratch

    assert scratch(1) == scratch(2) < scratch(5) == scratch(6) < scratch(15)  # rows go in pairs
    assert scratch(15) == scratch(16) == scratch(17)


def test_an_array_lies_where_numpy_says(tmp_path: Path) -> None:
    whole = np.arange(24.0).reshape(4, 6)
    mapped = np.memmap(tmp_path / "numbers", float, "w+", shape=(3,))
    fixed = np.broadcast_to(whole[1, 2:3], (5, 3))
    for array in (whole, whole[::-1, 1::2], fixed, mapped, whole[1:].astype(np.float16)):
        address = array.__array_interface__["data"][0]
        assert numba_cpu._address(array) == address  # noqa: SLF001 - shown nowhere else


def test_an_error_in_a_thread_reaches_the_caller() -> None:
    def failing(
        call: Any, factors: Any, numbers: Any, integers: Any, start: int, stop: int
    ) -> None:
        if start:
            raise MemoryError("no room")

    work = workers.Work(failing, NO_FACTORS, np.float32, 1, 64, 4)
    with pytest.raises(MemoryError, match="no room"):
        work.run(())


@pytest.mark.parametrize("name", ["numba-cpu", "numba-cpu-torch"])
def test_calls_from_many_threads_at_once_are_right(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba_cpu, "WORK_OF_A_THREAD", 1)
    numba_cpu.plan.cache_clear()
    layer = FullAttention(False, attention_dropout=0.0, backend=name)
    put, take = layer.backend.arrays.put, layer.backend.arrays.take
    cases = [inputs(4, L, L, 3, 4, 4) for L in (5, 17, 40, 200)] * 3

    def call(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
        q, k, v = (put(x, "cpu") for x in case)
        return take(layer(q, k, v, None)[0])

    alone = [call(case) for case in cases]
    with ThreadPoolExecutor(len(cases)) as pool:
        together = list(pool.map(call, cases))
    numba_cpu.plan.cache_clear()
    for one, other in zip(alone, together, strict=True):
        assert (one == other).all()


def attend_in_child(queue: Any, *qkv: np.ndarray) -> None:
    queue.put(attended(*qkv)[0])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.filterwarnings(
    "ignore:os.fork.. was called:RuntimeWarning"
)  # JAX's, once it is loaded
def test_a_forked_process_makes_itself_new_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_cpu, "WORK_OF_A_THREAD", 1)
    monkeypatch.setattr(numba, "get_num_threads", lambda: 3)
    numba_cpu.plan.cache_clear()
    qkv = inputs(16, 9, 9, 4, 4, 4)  # whose results fit into a pipe
    out, _ = attended(*qkv)  # this process has its threads by now
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=attend_in_child, args=(queue, *qkv))
    child.start()
    child.join(60)
    numba_cpu.plan.cache_clear()
    assert child.exitcode == 0
    assert (queue.get() == out).all()


def test_what_is_compiled_is_looked_up_by_the_cpu_and_by_all_source_files() -> None:
    attended(*inputs(1, 2, 2, 1, 4, 4))
    kernel: Any = entry.kernels()["lanes_forward"].run
    signature = kernel.signatures[0]
    codegen = kernel.targetctx.codegen()
    key = kernel._cache._index_key(signature, codegen)  # noqa: SLF001 - shown nowhere else
    assert codegen.magic_tuple() in key
    assert llvm.get_host_cpu_name() in codegen.magic_tuple()
    assert any("avx" in part or "neon" in part for part in codegen.magic_tuple())
    assert [cell.cell_contents for cell in kernel.py_func.__closure__] == [entry.digest()]


def test_functions_that_differ_by_the_stored_dtype_alone_differ_in_name() -> None:
    """Else a kernel read from disk may be linked with another kernel's function."""
    for move in ("gather", "scatter", "read", "write"):
        kinds = [getattr(memory, f"_{move}_{kind}") for kind in ("native", "float16", "bfloat16")]
        assert len({kind.py_func.__qualname__ for kind in kinds}) == 3


def test_vectors_fill_the_widest_registers() -> None:
    register = {64: "zmm", 32: "ymm"}.get(vector.WIDTH)
    if register is None:
        pytest.skip("this CPU has neither AVX2 nor AVX-512")
    exp2_of(np.zeros(16, np.float32), 1.0)
    assembly = "".join(powers.inspect_asm().values())  # a kernel from disk would show none
    fused = [line for line in assembly.splitlines() if "vfmadd" in line and "ps" in line]
    assert fused
    assert all(register in line for line in fused)


def test_another_device_is_refused() -> None:
    with pytest.raises(UnavailableError, match="run on 'cpu', not 'cuda'"):
        load("numba-cpu", "cuda")


Runs = list[tuple[numba_cpu.Plan, tuple[int, ...]]]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Every plan that is run from now on, and what it is given."""
    seen: Runs = []
    run = numba_cpu.Plan.run

    def recorded(plan: numba_cpu.Plan, *addresses_and_seed: int) -> None:
        seen.append((plan, addresses_and_seed))
        run(plan, *addresses_and_seed)

    monkeypatch.setattr(numba_cpu.Plan, "run", recorded)
    return seen


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_torch_tensors_are_read_and_written_where_they_lie(
    dtype: str, large: bool, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba_cpu_torch, "LARGE", 0 if large else 10**9)
    kind = getattr(torch, dtype)
    q, k, v = (torch.from_numpy(x).to(kind) for x in inputs(2, 5, 7, 3, 4, 6))
    hidden = torch.from_numpy(RNG.random((1, 1, 5, 7)) < 0.3)
    backend = load("numba-cpu-torch")

    def attended(*tensors: Any) -> tuple[Any, Any]:
        *qkv, mask = tensors
        out, weights = backend.attend(
            *qkv, hidden=mask, causal=False, scale=0.5, dropout=0.0, weights=True
        )
        assert runs[-1][1][:6] == tuple(x.data_ptr() for x in (*tensors, out, weights))
        assert out.untyped_storage().resizable() is not large  # NumPy's memory is not
        return out, weights

    # Every third number: whoever needs them dense has to copy.
    apart = [torch.stack([x, x, x], -1).unbind(-1)[1] for x in (q, k, v, hidden)]
    for got, want in zip(attended(*apart), attended(q, k, v, hidden), strict=True):
        assert got.dtype == kind
        assert torch.equal(got, want)


@pytest.mark.parametrize("threads", [1, 3])
def test_torch_tensors_are_shared_among_the_threads_that_torch_has(
    threads: int, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba_cpu, "WORK_OF_A_THREAD", 1)
    numba_cpu.plan.cache_clear()
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in inputs(2, 5, 7, 3, 4, 6))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        layer = FullAttention(False, attention_dropout=0.0, backend="numba-cpu-torch")
        layer(q, k, v, None)[0].sum().backward()
    finally:
        torch.set_num_threads(before)
        numba_cpu.plan.cache_clear()
    assert [plan.work.threads for plan, _ in runs] == [threads, threads]  # forward and backward


def test_a_tensor_without_memory_is_refused_and_not_read() -> None:
    layer = FullAttention(False, attention_dropout=0.0, backend="numba-cpu-torch")
    x = torch.randn(2, 5, 3, 8)
    freed = torch.randn(2, 5, 3, 8)
    freed.untyped_storage().resize_(0)
    for wrong in (freed, torch._efficientzerotensor((2, 5, 3, 8))):  # noqa: SLF001 - no public way
        with pytest.raises(RuntimeError, match=r"no memory|storage"):
            layer(wrong, x, x, None)
