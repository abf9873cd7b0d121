"""The steps of `gpu_check.py`, each run in a process of its own: `gpu_steps.py STEP --out DIR`.

The last line that a step prints says what came of it; its exit status is 0 if all is right.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import json
import math
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fullattention.backends import UnavailableError, UnsupportedError, load, names
from fullattention.backends.errors import is_out_of_memory
from fullattention.backends.interface import Array, Backend, Sizes
from fullattention.bench.graph import capture
from fullattention.bench.inputs import DRAWN, SEED, SETS, InputPool
from fullattention.bench.modes import MODES, Call, Inputs, Results, applies, make_call
from fullattention.bench.spot_check import SpotCheck, sample
from fullattention.bench.work import work
from fullattention.bench.workloads import Workload, select
from fullattention.conformance import case as cases
from fullattention.conformance import layouts
from fullattention.conformance.subject import Subject, from_backend
from fullattention.conformance.suite import check
from fullattention.records import Verdict, write

DEVICE = "cuda"
RIGHT, WRONG, NOT_RUN = 0, 1, 4

DELAY = 2_000_000
"""Clock cycles, about a millisecond, for which a side stream is kept busy before each call."""

SMALL_SET = "C1"
"""Checks that a sanitizer, which slows kernels down a hundredfold, can watch."""

GIB = 2**30
MATRIX = 8192

WORKLOADS = (
    *("patchtst/*", "tslib/patchtst/*", "crossformer/m4", "toy", "timexer/cross"),
    *("transformer/*", "itransformer/*", "long/2k*", "decode*", "vit/b16*", "hazard/*"),
)
"""Goals first: whoever runs out of time has those."""

HALF = ("patchtst/*", "tslib/patchtst/*", "crossformer/m4")
"""Timed in float16 and bfloat16 too."""

CALLS = 20
"""Of one figure."""

COLD = 2**28
"""Bytes of inputs that calls go through before they come back to the first: several times what a
GPU's cache holds. Small workloads have `COPIES` of theirs at most, and stay in it."""

COPIES = 16

STREAMED = ("torch", "cupy")
"""Libraries whose streams, graphs and memory the steps know how to steer."""


def main() -> int:
    """Run a step; its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", default="")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for `times`")
    options = parser.parse_args()
    missing = [
        name
        for name in ("ml_dtypes", "msgspec", "psutil", "tabulate", "threadpoolctl")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        print(
            f"not installed: {', '.join(missing)}; without ml_dtypes bfloat16 is not checked, "
            "without psutil and threadpoolctl verdicts name no environment"
        )
    step = STEPS[options.step]
    if step is times:
        step = functools.partial(times, end=time.monotonic() + options.seconds)
    try:
        status, line = step(options.backend, options.out)
    except (UnavailableError, UnsupportedError) as error:
        status, line = NOT_RUN, error.reason
    print(line)
    return status


def backends(_: str, out: Path) -> tuple[int, str]:
    """Which of all known backends run on the device, or why not."""
    found: dict[str, dict[str, Any]] = {}
    for name in names():
        try:
            found[name] = {"reason": "", "compiles": load(name, DEVICE).compiles}
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are looked at
            reason = str(getattr(error, "reason", "") or error or type(error).__name__)
            found[name] = {"reason": reason, "compiles": False}
    (out / "backends.json").write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
    usable = [name for name, one in found.items() if not one["reason"]]
    return RIGHT, f"{len(usable)} of {len(found)} run on {DEVICE!r}: {', '.join(usable)}"


# Conformance, plainly and under circumstances that show what plain runs hide.


def _told(verdict: Verdict, path: Path) -> tuple[int, str]:
    write(path, [verdict])
    failed = [result for result in verdict.results if result.status == "failed"]
    for result in failed:
        print(f"{result.check}: {result.detail}")
    passed = sum(result.status == "passed" for result in verdict.results)
    if failed:
        return WRONG, f"{len(failed)} failed, {passed} passed; first: {failed[0].check}"
    unlooked = sum(result.status == "not run" for result in verdict.results)
    return (RIGHT, f"{passed} checks passed, {unlooked} not run") if passed else (WRONG, "none")


def conformance(name: str, out: Path) -> tuple[int, str]:
    """The standard level; the quick one in one dtype, where each new kind of call is compiled."""
    if load(name, DEVICE).compiles:
        verdict = check(name, device=DEVICE, level="quick", dtypes=("float32",))
    else:
        verdict = check(name, device=DEVICE, level="standard")
    return _told(verdict, out / f"verdict-{name}.jsonl")


def small_set(name: str, out: Path) -> tuple[int, str]:
    """A few checks, for a sanitizer to watch."""
    verdict = check(name, device=DEVICE, only=SMALL_SET, dtypes=("float32",))
    return _told(verdict, out / f"small-set-{name}.jsonl")


def _steered(name: str) -> Backend:
    """A backend of a library that the steps know.

    Raises:
        UnsupportedError: it is of another.
    """
    backend = load(name, DEVICE)
    if backend.arrays.library not in STREAMED:
        reason = f"not tried with arrays of {backend.arrays.library}"
        raise UnsupportedError(name, "this step", reason)
    return backend


def nan_allocations(name: str, out: Path) -> tuple[int, str]:
    """The quick level where fresh memory holds NaN: what is not written shows."""
    backend = _steered(name)
    if backend.arrays.library == "torch":
        import torch

        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    if importlib.util.find_spec("cupy"):
        import cupy

        pool = cupy.get_default_memory_pool()

        def filled(size: int) -> Any:
            memory = pool.malloc(size)
            memory.memset_async(0xFF, size)
            return memory

        cupy.cuda.set_allocator(filled)
    return _told(check(backend, device=DEVICE), out / f"nan-allocations-{name}.jsonl")


def side_stream(name: str, out: Path) -> tuple[int, str]:
    """The quick level on a stream of its own, where inputs come late: who does not wait, errs."""
    backend = _steered(name)
    stream, copies = _side_stream(backend)

    def attend(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array | None]:
        return backend.attend(*copies(q, k, v), **options)

    late = dataclasses.replace(backend, attend=attend)
    with stream:
        verdict = check(late, device=DEVICE, dtypes=("float32",))
    return _told(verdict, out / f"side-stream-{name}.jsonl")


def _side_stream(
    backend: Backend,
) -> tuple[contextlib.AbstractContextManager[Any], Callable[..., tuple[Array, ...]]]:
    """A stream to run on, and a function that copies arrays on it after a delay."""
    if backend.arrays.library == "torch":
        import torch

        def copies(*tensors: Any) -> tuple[Any, ...]:
            # What torch's own tests of streams use.
            torch.cuda._sleep(DELAY)  # type: ignore[no-untyped-call] # noqa: SLF001
            return tuple(_like(tensor).copy_(tensor) for tensor in tensors)

        def _like(tensor: Any) -> Any:
            return torch.full_like(tensor, torch.nan)

        return torch.cuda.stream(torch.cuda.Stream()), copies  # type: ignore[no-untyped-call]
    import cupy

    code = (
        'extern "C" __global__ void delay(long long cycles)'
        "{ long long start = clock64(); while (clock64() - start < cycles) {} }"
    )
    delay = cupy.RawKernel(code, "delay")

    def copied(*arrays: Any) -> tuple[Any, ...]:
        fresh = tuple(cupy.full_like(array, np.nan) for array in arrays)
        delay((1,), (1,), (DELAY,))
        for new, array in zip(fresh, arrays, strict=True):
            new[...] = array
        return fresh

    return cupy.cuda.Stream(non_blocking=True), copied


def graph(name: str, _: Path) -> tuple[int, str]:
    """A captured call, replayed on other inputs than it was captured with."""
    subject = from_backend(_steered(name))
    dtype = "float32" if "float32" in subject.precision else subject.dtypes[0]
    first = cases.Case(dtype=dtype, shape=Sizes(3, 33, 33, 4, 8, 8))
    second = first.but(seed=1)
    layer = cases.layer_for(subject, first)
    arrays = cases.put(subject, first)
    layer(*arrays, None)  # a call that raises is not taken for one that cannot be captured
    try:
        captured = capture(subject.arrays.library, lambda: layer(*arrays, None)[0])
    except Exception as error:  # noqa: BLE001 - the library says why in its own class
        return NOT_RUN, f"not capturable: {str(error).splitlines()[0]}"
    for array, values in zip(arrays, cases.inputs(second), strict=True):
        array[...] = layouts.place(subject.arrays, values, "contiguous", DEVICE)
    captured.replay()
    subject.arrays.synchronize(DEVICE)
    got = cases.answer(subject, second, (captured.given, None))
    ratio = cases.judge(got, cases.expected_of(subject, second))
    return RIGHT, f"replayed on other inputs: error/bound {ratio:.3g}"


# Figures.


def ceilings(_: str, out: Path) -> tuple[int, str]:
    """What the device can do at best: copying, and products of large matrices, measured."""
    import torch

    found: dict[str, float] = {}
    source = torch.ones(GIB, dtype=torch.float32, device=DEVICE)  # 4 GiB, past every cache
    seconds = _event_seconds(functools.partial(torch.empty_like(source).copy_, source))
    found["copy_bytes_per_second"] = 2 * source.nbytes / seconds
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        a = torch.randn((MATRIX, MATRIX), device=DEVICE).to(getattr(torch, dtype))
        seconds = _event_seconds(functools.partial(torch.matmul, a, a))
        found[f"matmul_{dtype}_operations_per_second"] = 2 * MATRIX**3 / seconds
    found["device_bytes"] = torch.cuda.get_device_properties(DEVICE).total_memory
    (out / "ceilings.json").write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
    return RIGHT, ", ".join(f"{name} {value:.3g}" for name, value in found.items())


def _event_seconds(call: Callable[[], Any]) -> float:
    """Median time of a call between two events of torch's current stream."""
    import torch

    call()
    samples = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "12")  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        end.synchronize()
        samples.append(float(start.elapsed_time(end)) / 1e3)
    return statistics.median(samples)


def jobs(device: str) -> Iterator[tuple[Workload, str]]:
    """Workloads and modes, forward passes first."""
    chosen = select(WORKLOADS)
    halves = [w.in_dtype(dtype) for dtype in ("float16", "bfloat16") for w in select(HALF)]
    for mode in MODES:
        for workload in dict.fromkeys([*chosen, *halves]):
            if applies(mode, workload, device):
                yield workload, mode


def times(name: str, out: Path, end: float = math.inf) -> tuple[int, str]:
    """Device and wall time of the workloads in all modes, as far as time allows, and the floor.

    `end` is the last moment at which one is begun, by `time.monotonic`.
    """
    subject = from_backend(load(name, DEVICE))
    path = out / "ceilings.json"
    known: dict[str, float] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    counts: Counter[str] = Counter()
    with (out / f"times-{name}.jsonl").open("a", encoding="utf-8") as file:
        for workload, mode in jobs(DEVICE):
            if time.monotonic() > end:
                counts["left for lack of time"] += 1
                continue
            record = _timed(subject, workload, mode, known)
            counts[record["status"]] += 1
            print(json.dumps(record, allow_nan=False), file=file, flush=True)
            if mode == "forward":
                print(_line(record), flush=True)
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    if counts["wrong"] or counts["raised"]:
        return WRONG, told
    return (RIGHT if counts["timed"] else NOT_RUN), told


def _line(record: dict[str, Any]) -> str:
    if record["status"] != "timed":
        return f"{record['workload']}: {record['status']}: {record['reason']}"
    share = record["share_of_floor"]
    return (
        f"{record['workload']}: device {record['device_seconds']}, wall {record['wall_seconds']}"
        + (f", {share:.0%} of the floor" if share else "")
    )


def _timed(
    subject: Subject, workload: Workload, mode: str, known: dict[str, float]
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "backend": subject.name,
        "version": subject.version,
        "workload": workload.name,
        "shape": list(workload.shape),
        "dtype": workload.dtype,
        "mode": mode,
        "status": "not run",
        "reason": "",
    }
    try:
        if workload.dtype not in subject.precision:
            return record | {"reason": f"it takes {', '.join(subject.precision)}"}
        with tempfile.TemporaryDirectory() as folder:
            pool = InputPool(Path(folder) / "inputs", MODES[mode](workload))
            pool.write(SEED)
            return record | _figures(subject, pool, known)
    except UnsupportedError as error:
        return record | {"reason": error.reason}
    except Exception as error:  # noqa: BLE001 - the other workloads are still to be timed
        status = "not run" if is_out_of_memory(error) else "raised"
        reason = f"{type(error).__name__}: {''.join(str(error).splitlines()[:1])}"
        return record | {"status": status, "reason": reason}


def _figures(subject: Subject, pool: InputPool, known: dict[str, float]) -> dict[str, Any]:
    """What is found of a call, whose results are checked before it is timed and afterwards."""
    call = Rotating(make_call(subject, pool.workload), placed(subject, pool))
    start = time.perf_counter()
    results = call()
    subject.arrays.synchronize(DEVICE)
    first = time.perf_counter() - start
    error = _error(subject, pool, results, call.number)
    if not error <= 1:
        return {"status": "wrong", "reason": f"error/bound {error:.3g}"}
    device, wall = _device_seconds(subject, call), _wall_seconds(subject, call)
    results = call()
    later = _error(subject, pool, results, call.number)
    if not later <= 1:
        return {"status": "wrong", "reason": f"error/bound {later:.3g} after it was timed"}
    floor = _floor(pool.workload, known)
    return {
        "status": "timed",
        "error_over_bound": max(error, later),
        "first_call_seconds": first,
        "device_seconds": device,
        "wall_seconds": wall,
        "floor_seconds": floor,
        "share_of_floor": floor / device if floor and device else None,
    }


class Rotating:
    """A call that takes sets of inputs in turn, so that it seldom finds its own in a cache."""

    def __init__(self, call: Call, sets: Sequence[Inputs]) -> None:
        self.call = call
        self.sets = sets
        self.calls = 0

    def __call__(self) -> Results:
        """Call with the next set."""
        self.calls += 1
        return self.call(self.sets[(self.calls - 1) % len(self.sets)])

    @property
    def number(self) -> int:
        """Which of the pool's sets the last call took."""
        return (self.calls - 1) % len(self.sets) % SETS


def placed(subject: Subject, pool: InputPool) -> list[Inputs]:
    """Sets of inputs on the device, of several copies of the pool where the sets of one are small.

    On the host where that is what the workload is about. The sets of one copy overlap.
    """
    if pool.workload.mode == "host":
        return pool.sets(pool.private())
    count = max(1, min(COPIES, COLD // pool.bytes))
    copies = [subject.arrays.put(pool.private(), DEVICE) for _ in range(count)]
    sets = [pool.sets(copy, subject.arrays.strided) for copy in copies]
    return [sets[turn % count][turn % SETS] for turn in range(math.lcm(count, SETS))]


def _error(subject: Subject, pool: InputPool, results: Results, number: int) -> float:
    """The largest error over its bound of a sample of one call's results.

    `number` is that of the set of inputs which the call took.
    """
    take = np.asarray if pool.workload.mode == "host" else subject.arrays.take
    taken = Results(*(None if one is None else take(one) for one in results))
    found = sample(pool.workload, taken, DRAWN)
    return SpotCheck(pool).error(found, number, subject.precision[pool.workload.dtype], DRAWN)


def _wall_seconds(subject: Subject, call: Callable[[], Any]) -> float:
    """Per call, of calls in a row with one wait at their end."""
    samples = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        subject.arrays.synchronize(DEVICE)
        samples.append((time.perf_counter() - start) / CALLS)
    return statistics.median(samples)


def _device_seconds(subject: Subject, call: Callable[[], Any]) -> float | None:
    """Time of the kernels and copies of a call; None without torch, whose profiler tells it.

    It tells of all that the process launches, by whichever library.
    """
    try:
        import torch
        from torch._C._autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(CALLS):
            call()
        subject.arrays.synchronize(DEVICE)
    total = sum(
        event.time_range.elapsed_us()
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA
    )
    return total / 1e6 / CALLS if total else None


def _floor(workload: Workload, known: dict[str, float]) -> float | None:
    """The least time that the device can take: to move all arrays once, or to multiply.

    None where it is not known, or the arrays come from the host.
    """
    if workload.mode == "host":
        return None
    bandwidth = known.get("copy_bytes_per_second")
    speed = known.get(f"matmul_{workload.dtype}_operations_per_second")
    if not bandwidth or not speed:
        return None
    least = work(workload)
    return max(least.bytes / bandwidth, least.flop / speed)


STEPS: dict[str, Callable[[str, Path], tuple[int, str]]] = {
    "backends": backends,
    "conformance": conformance,
    "small-set": small_set,
    "nan-allocations": nan_allocations,
    "side-stream": side_stream,
    "graph": graph,
    "ceilings": ceilings,
    "times": times,
}


if __name__ == "__main__":
    sys.exit(main())
