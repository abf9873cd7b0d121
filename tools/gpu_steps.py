"""The steps of `gpu_check.py`, each run in a process of its own: `gpu_steps.py STEP --out DIR`.

The last line that a step prints says what came of it; its exit status is 0 if all is right.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import functools
import importlib.metadata
import importlib.util
import json
import math
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from fullattention.conformance.ledger import Exceptions
from fullattention.conformance.subject import Subject, from_backend
from fullattention.conformance.suite import check
from fullattention.records import SKIPPED, Level, Result, Verdict, write

DEVICE = "cuda"
RIGHT, WRONG, NOT_RUN = 0, 1, 4

HELPFUL = {
    "ml_dtypes": "bfloat16 is not checked",
    "psutil": "verdicts name no environment",
    "threadpoolctl": "verdicts name no environment",
}
"""Libraries that no step needs, and what is missing without each."""

SPENT = "no time is left"
"""Why a check is skipped."""

DELAY = 2_000_000
"""Clock cycles, about a millisecond, for which a side stream is kept busy before each call."""

SMALL_SET = "C1"
"""Checks that a sanitizer, which slows kernels down a hundredfold, can watch."""

GIB = 2**30
MATRIX = 8192

GOALS = ("patchtst/*", "tslib/patchtst/*", "crossformer/m4")
"""Timed first, and in float16 and bfloat16 too: whoever runs out of time has those."""

WORKLOADS = (
    *("toy", "timexer/cross", "transformer/*", "itransformer/*", "long/2k*", "decode*"),
    *("vit/b16*", "hazard/*"),
)
"""The others."""

CALLS = 20
"""Of one figure, at most."""

FIGURE = 0.2
"""Seconds that they take, if they are more than one."""

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
    parser.add_argument("--seconds", type=float, default=math.inf, help="to begin something in")
    parser.add_argument("--inputs", type=Path, help="where `times` keeps them for other backends")
    options = parser.parse_args()
    missing = [name for name in HELPFUL if importlib.util.find_spec(name) is None]
    if missing:
        print("; ".join(f"{name} is not installed: {HELPFUL[name]}" for name in missing))
    step = STEPS[options.step]
    if options.step in PACED:
        step = functools.partial(step, end=time.monotonic() + options.seconds)
    if options.step == "times":
        step = functools.partial(step, inputs=options.inputs)
    try:
        status, line = step(options.backend, options.out)
    except (UnavailableError, UnsupportedError) as error:
        status, line = NOT_RUN, error.reason
    print(line)
    return status


def backends(_: str, out: Path) -> tuple[int, str]:
    """Which of all known backends run on the device, or why not.

    Noted one by one: where loading one ends the process, the next goes on after it.
    """
    (out / "environment.json").write_text(json.dumps(_environment()), encoding="utf-8")
    path = out / "backends.json"
    found: dict[str, dict[str, Any]] = {}
    if path.exists():
        found = json.loads(path.read_text("utf-8"))
    for name in names():
        if name in found:
            continue
        found[name] = {"reason": "a process that loaded it came to no end", "compiles": False}
        path.write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
        try:
            found[name] = {"reason": "", "compiles": load(name, DEVICE).compiles}
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are looked at
            found[name]["reason"] = str(
                getattr(error, "reason", "") or error or type(error).__name__
            )
    path.write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
    usable = [name for name, one in found.items() if not one["reason"]]
    return RIGHT, f"{len(usable)} of {len(found)} run on {DEVICE!r}: {', '.join(usable)}"


def _environment() -> dict[str, Any]:
    """What the figures depend on, as far as the standard library and the driver's tool tell."""
    query = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    gpus: list[str] = []
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
        gpus = done.stdout.splitlines()
    installed = importlib.metadata.distributions()
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": sys.version,
        "platform": platform.platform(),
        "gpus": gpus,
        "libraries": {one.name: one.version for one in installed},
    }


# Conformance, plainly and under circumstances that show what plain runs hide.


Levels = Sequence[tuple[Level, Sequence[str]]]
"""Levels and dtypes, in the order in which they are checked."""

QUICK: Levels = [("quick", ())]


class _From(Mapping[str, str]):
    """Checks to be skipped: none until a moment by `time.monotonic`, and from then on all."""

    def __init__(self, end: float) -> None:
        self.end = end

    def __getitem__(self, check: str) -> str:
        if time.monotonic() <= self.end:
            raise KeyError(check)
        return SPENT

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _judged(
    candidate: str | Backend, path: Path, end: float, levels: Levels = QUICK, only: str = ""
) -> tuple[int, str]:
    """Check level by level until a moment, and record each verdict as it is reached."""
    verdicts: list[Verdict] = []
    for level, dtypes in levels:
        verdict = check(
            candidate,
            device=DEVICE,
            level=level,
            dtypes=dtypes,
            only=only,
            exceptions=Exceptions(skipped=_From(end)),
            progress=_tell,
        )
        verdicts.append(verdict)
        write(path, [verdict])
        if time.monotonic() > end:
            break
    return _told(verdicts)


def _tell(result: Result) -> None:
    """Print what failed at once, in case that the step does not come to its end."""
    if result.status == "failed":
        print(f"{result.check}: {result.detail}", flush=True)


def _told(verdicts: Sequence[Verdict]) -> tuple[int, str]:
    found: dict[str, Result] = {}
    for result in (result for verdict in verdicts for result in verdict.results):
        if result.status != "not run" or result.check not in found:
            found[result.check] = result
    results = found.values()
    counts = Counter(result.status for result in results)
    left = sum(result.detail == SKIPPED + SPENT for result in results)
    counts["not run"] -= left
    told = f"{counts['passed']} passed, {counts['not run']} not run"
    if left:
        told += f", {left} left for lack of time"
    failed = [result.check for result in results if result.status == "failed"]
    if failed:
        return WRONG, f"{len(failed)} failed, {told}; first: {failed[0]}"
    if not counts["passed"]:
        return (NOT_RUN if left else WRONG), told
    return RIGHT, told


def conformance(name: str, out: Path, end: float = math.inf) -> tuple[int, str]:
    """The standard level, and before it the quick one, which has something of each requirement.

    The quick one in one dtype alone, where each new kind of call is compiled for seconds.
    """
    backend = load(name, DEVICE)
    primary = "float32" if "float32" in backend.precision else next(iter(backend.precision))
    levels: Levels = [("quick", (primary,))]
    if not backend.compiles:
        levels = [*levels, ("quick", ()), ("standard", ())]
    return _judged(name, out / f"verdict-{name}.jsonl", end, levels)


def small_set(name: str, out: Path, end: float = math.inf) -> tuple[int, str]:
    """A few checks, for a sanitizer to watch."""
    levels: Levels = [("quick", ("float32",))]
    return _judged(name, out / f"small-set-{name}.jsonl", end, levels, only=SMALL_SET)


def _steered(name: str, *, calls: str) -> Backend:
    """A backend of a library that the steps know, for one call or for many kinds of calls.

    Raises:
        UnsupportedError: it is of another, or would compile each kind of call for seconds.
    """
    backend = load(name, DEVICE)
    if calls == "many" and backend.compiles:
        raise UnsupportedError(name, "this step", "it compiles for each kind of call")
    if backend.arrays.library not in STREAMED:
        reason = f"not tried with arrays of {backend.arrays.library}"
        raise UnsupportedError(name, "this step", reason)
    return backend


def nan_allocations(name: str, out: Path, end: float = math.inf) -> tuple[int, str]:
    """The quick level where fresh memory holds NaN: what is not written shows."""
    backend = _steered(name, calls="many")
    if backend.arrays.library == "torch":
        import torch

        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    if importlib.util.find_spec("cupy"):
        import cupy

        pool = cupy.get_default_memory_pool()

        def filled(size: int) -> Any:
            memory = pool.malloc(size)
            if size:
                memory.memset_async(0xFF, size)
            return memory

        cupy.cuda.set_allocator(filled)
    return _judged(backend, out / f"nan-allocations-{name}.jsonl", end)


def side_stream(name: str, out: Path, end: float = math.inf) -> tuple[int, str]:
    """The quick level on a stream of its own, where inputs come late: who does not wait, errs."""
    backend = _steered(name, calls="many")
    stream, copies = _side_stream(backend)

    def attend(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array | None]:
        return backend.attend(*copies(q, k, v), **options)

    late = dataclasses.replace(backend, attend=attend)
    levels: Levels = [("quick", ("float32" if "float32" in late.precision else "float16",))]
    with stream:
        return _judged(late, out / f"side-stream-{name}.jsonl", end, levels)


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
    subject = from_backend(_steered(name, calls="one"))
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
    """Workloads and modes: forward passes first, and of them the goals in all of their dtypes."""
    goals = select(GOALS)
    halves = [w.in_dtype(dtype) for dtype in ("float16", "bfloat16") for w in goals]
    for mode in MODES:
        for workload in dict.fromkeys([*goals, *halves, *select(WORKLOADS)]):
            if applies(mode, workload, device):
                yield workload, mode


def times(
    name: str, out: Path, end: float = math.inf, inputs: Path | None = None
) -> tuple[int, str]:
    """Device and wall time of the workloads in all modes, as far as time allows, and the floor.

    Args:
        name: of the backend.
        out: for the records.
        end: the last moment at which a workload is begun, by `time.monotonic`.
        inputs: where the workloads' inputs are kept for the next backend; None: nowhere.
    """
    with contextlib.ExitStack() as stack:
        if inputs is None:
            inputs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return _times(name, out, end, inputs)


def _times(name: str, out: Path, end: float, inputs: Path) -> tuple[int, str]:
    subject = from_backend(load(name, DEVICE))
    path = out / "ceilings.json"
    known: dict[str, float] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    counts: Counter[str] = Counter()
    with (out / f"times-{name}.jsonl").open("a", encoding="utf-8") as file:
        for workload, mode in jobs(DEVICE):
            if time.monotonic() > end:
                counts["left for lack of time"] += 1
                continue
            record = _timed(subject, workload, mode, known, inputs)
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
    subject: Subject, workload: Workload, mode: str, known: dict[str, float], inputs: Path
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
        return record | _figures(subject, _pool(inputs, MODES[mode](workload)), known)
    except UnsupportedError as error:
        return record | {"reason": error.reason}
    except ModuleNotFoundError as error:  # bfloat16 on the host, by ml_dtypes
        return record | {"reason": f"{error.name} is not installed"}
    except Exception as error:  # noqa: BLE001 - the other workloads are still to be timed
        status = "not run" if is_out_of_memory(error) else "raised"
        reason = f"{type(error).__name__}: {''.join(str(error).splitlines()[:1])}"
        return record | {"status": status, "reason": reason}


def _pool(folder: Path, workload: Workload) -> InputPool:
    """The inputs of a workload, drawn once for all modes and backends that take the same."""
    backward = "-backward" * (workload.mode == "training")
    path = folder / f"{'-'.join(map(str, workload.shape))}-{workload.dtype}{backward}"
    if not path.exists():
        fresh = path.with_suffix(".part")  # a step may be ended while it draws
        InputPool(fresh, workload).write(SEED)
        fresh.rename(path)
    return InputPool(path, workload)


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
    start = time.perf_counter()
    call()
    subject.arrays.synchronize(DEVICE)
    calls = max(1, min(CALLS, int(FIGURE / (time.perf_counter() - start))))
    device = _device_seconds(subject, call, calls)
    wall = _wall_seconds(subject, call, calls)
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


def _wall_seconds(subject: Subject, call: Callable[[], Any], calls: int) -> float:
    """Per call, of calls in a row with one wait at their end."""
    samples = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        subject.arrays.synchronize(DEVICE)
        samples.append((time.perf_counter() - start) / calls)
    return statistics.median(samples)


def _device_seconds(subject: Subject, call: Callable[[], Any], calls: int) -> float | None:
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
        for _ in range(calls):
            call()
        subject.arrays.synchronize(DEVICE)
    total = sum(
        event.time_range.elapsed_us()
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA
    )
    return total / 1e6 / calls if total else None


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


STEPS: dict[str, Callable[..., tuple[int, str]]] = {
    "backends": backends,
    "conformance": conformance,
    "small-set": small_set,
    "nan-allocations": nan_allocations,
    "side-stream": side_stream,
    "graph": graph,
    "ceilings": ceilings,
    "times": times,
}

PACED = ("conformance", "small-set", "nan-allocations", "side-stream", "times")
"""Steps that end by themselves when their time is spent."""


if __name__ == "__main__":
    sys.exit(main())
