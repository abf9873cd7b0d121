"""Candidates and clocks that the tests of the benchmarks control.

Each candidate's process imports this, so it imports no pytest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from fullattention.backends import Backend, numpy_matmul
from fullattention.bench.measure import Effort
from fullattention.conformance.subject import Subject, from_backend
from fullattention.records import Environment, Verdict

GOOD = numpy_matmul.backend("cpu")

BRIEF = Effort(contest=0.0, warm_up=0.0, differences=1)

ENVIRONMENT = Environment(
    time="2026-01-01T00:00:00+00:00",
    suite="0.1.0",
    python="CPython 3.11.7",
    platform="Linux",
    cpu="Some CPU",
    cores=4,
    memory_gib=16.0,
    gpu=None,
    gpu_driver=None,
    threads=2,
    load=0.0,
    libraries={"numpy": "2.4.6"},
    blas=("openblas 0.3.31 Haswell",),
    variables={},
)

Result = tuple[np.ndarray, np.ndarray | None]
Spoil = Callable[..., Result]


def backend(name: str, spoil: Spoil, **fields: Any) -> Backend:
    """The right backend, except for what `spoil(result, q, k, v)` makes of its result."""

    def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> Result:
        return spoil(GOOD.attend(q, k, v, **options), q, k, v)

    return dataclasses.replace(GOOD, name=name, attend=attend, **fields)


def subject(spoil: Spoil | None = None, **fields: Any) -> Subject:
    """A candidate that is right, or spoiled."""
    made = from_backend(backend("fake", spoil) if spoil else GOOD)
    return dataclasses.replace(made, **fields)


def verdict(*, conformant: bool = True) -> Verdict:
    """A verdict on the candidate, without its checks."""
    return Verdict(
        backend="fake",
        library="numpy",
        library_version="2.4.6",
        device="cpu",
        level="quick",
        contract=1,
        suite="0.1.0",
        conformant=conformant,
        results=(),
        seconds=0.0,
    )


def turns_of(
    backends: int,
    processes: int,
    blocks: int,
    *,
    noise: float,
    spread: float = 0.0,
    drift: float = 0.1,
    seed: int,
) -> list[np.ndarray]:
    """Times (blocks, processes) of backends that are equal.

    Each turn has noise of its own, each process an effect that stays, each block a drift of all.
    """
    random = np.random.default_rng(seed)
    common = drift * random.standard_normal((blocks, 1)).cumsum(axis=0)
    return [
        np.exp(
            common
            + spread * random.standard_normal(processes)
            + noise * random.standard_normal((blocks, processes))
        )
        for _ in range(backends)
    ]


class FakeClock:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeTimer:
    """A device's own clock, which tells another clock's time."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.began: float | None = None
        self.spans: list[float] = []

    def start(self) -> None:
        assert self.began is None
        self.began = self.clock()

    def stop(self) -> float:
        assert self.began is not None
        self.spans.append(self.clock() - self.began)
        self.began = None
        return self.spans[-1]
