"""The machine's ceilings: how fast it copies, multiplies matrices and exponentiates at best.

Measured in a process of its own, by whichever of NumPy and torch is faster at it. These libraries
may not reach what the machine could do, so a result is void only where it is well above a ceiling.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Literal, NamedTuple

import numpy as np

from fullattention.bench.turns import Clock
from fullattention.bench.work import Work
from fullattention.conformance.candidate_process import CandidateProcess, lead
from fullattention.machine.threads import set_threads
from fullattention.records import Ceilings, Environment

COPIED = tuple(2**power for power in range(14, 28, 2))
"""Bytes of the arrays that are copied, from what the first cache holds to what no cache does."""

SIDE = 1024
"""Rows, and columns, of the matrices that are multiplied."""

EXPONENTIALS = 2**18
"""Numbers in the array that is exponentiated; it fits the caches."""

SECONDS = 0.1
"""How long each operation of each library is repeated."""

MARGIN = 1.5
"""A call that is faster by more than this factor than copying or multiplying allows has not done
its work. Exponentials do not count: an approximation may take fewer steps."""

Floor = Literal["copy", "matmul", "exp"]


class Rates(NamedTuple):
    """Per second, at best."""

    copy: dict[str, float]
    """Bytes of an array -> bytes read and written."""
    matmul: float
    """FLOP."""
    exp: float
    """Exponentials."""


def measure(device: str, threads: int, clock: Clock = time.perf_counter) -> Rates:
    """The best rates of this machine by NumPy and torch; on a GPU by torch alone."""
    kits = list(_kits(device))
    set_threads(threads)
    copy = {
        str(size): max(2 * size / _fastest(kit.copy(size // 4), kit.wait, clock) for kit in kits)
        for size in COPIED
    }
    matmul = max(2 * SIDE**3 / _fastest(kit.matmul(SIDE), kit.wait, clock) for kit in kits)
    exp = max(EXPONENTIALS / _fastest(kit.exp(EXPONENTIALS), kit.wait, clock) for kit in kits)
    return Rates(copy, matmul, exp)


def _serve(connection: Connection, device: str, threads: int) -> None:
    """The process of `measure_apart`: answers once."""
    lead(os.open(os.devnull, os.O_WRONLY))
    try:
        connection.send(measure(device, threads))
    except (
        AssertionError,  # torch's, where it is built without CUDA
        RuntimeError,
        ValueError,
    ):
        connection.send(None)


def measure_apart(device: str, threads: int) -> Rates | None:
    """Measure in a process of its own; None where that cannot be done."""
    process = CandidateProcess(_serve, device, threads)
    try:
        rates: Rates | None = process.answer()
    except (EOFError, OSError):  # it was taken down
        return None
    finally:
        process.stop()
    return rates


def best_of(one: Rates, other: Rates) -> Rates:
    """Of each rate the higher one."""
    copy = {size: max(rate, other.copy[size]) for size, rate in one.copy.items()}
    return Rates(copy, max(one.matmul, other.matmul), max(one.exp, other.exp))


def ceilings(rates: Rates, device: str, environment: Environment) -> Ceilings:
    """The record of rates."""
    return Ceilings(device=device, **rates._asdict(), environment=environment)


def floors(work: Work, rates: Rates) -> dict[Floor, float]:
    """Seconds that each part of the work takes at its ceiling; parts may overlap.

    All that a call moves may lie in a cache. So the fastest copy counts of those whose two arrays
    are together at least as large.
    """
    copies = [rate for size, rate in rates.copy.items() if 2 * int(size) >= work.bytes]
    slowest = rates.copy[max(rates.copy, key=int)]
    return {
        "copy": work.bytes / max(copies, default=slowest),
        "matmul": work.flop / rates.matmul,
        "exp": work.exponentials / rates.exp,
    }


def impossible(floors: dict[Floor, float]) -> float:
    """Seconds below which a call cannot have done its work; 0 where no floor is known."""
    return max((floors[name] for name in floors if name != "exp"), default=0.0) / MARGIN


Operation = Callable[[], object]


class Kit(NamedTuple):
    """A library's operations on float32 arrays made beforehand, and the wait for its device."""

    copy: Callable[[int], Operation]
    matmul: Callable[[int], Operation]
    exp: Callable[[int], Operation]
    wait: Operation


def _kits(device: str) -> Iterator[Kit]:
    if device == "cpu":
        yield _numpy_kit()
    if importlib.util.find_spec("torch"):
        yield _torch_kit(device)


def _numpy_kit() -> Kit:
    def copy(size: int) -> Operation:
        source, target = np.ones(size, np.float32), np.ones(size, np.float32)
        return lambda: np.copyto(target, source)

    def matmul(side: int) -> Operation:
        a, b, c = (np.ones((side, side), np.float32) for _ in range(3))
        return lambda: np.matmul(a, b, out=c)

    def exp(size: int) -> Operation:
        x, y = np.linspace(-8, 0, size, dtype=np.float32), np.ones(size, np.float32)
        return lambda: np.exp(x, out=y)

    return Kit(copy, matmul, exp, lambda: None)


def _torch_kit(device: str) -> Kit:
    import torch

    def copy(size: int) -> Operation:
        source, target = torch.ones(size, device=device), torch.ones(size, device=device)
        return lambda: target.copy_(source)

    def matmul(side: int) -> Operation:
        a, b, c = (torch.ones((side, side), device=device) for _ in range(3))
        return lambda: torch.matmul(a, b, out=c)

    def exp(size: int) -> Operation:
        x, y = torch.linspace(-8, 0, size, device=device), torch.ones(size, device=device)
        return lambda: torch.exp(x, out=y)

    def wait() -> None:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)

    return Kit(copy, matmul, exp, wait)


def _fastest(operation: Operation, wait: Operation, clock: Clock) -> float:
    """Seconds of the fastest of many, after one that does not count."""
    operation()
    wait()
    fastest, end = float("inf"), clock() + SECONDS
    while clock() < end:
        start = clock()
        operation()
        wait()
        fastest = min(fastest, clock() - start)
    return fastest
