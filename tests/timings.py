"""Timings as a store holds them, and choices made from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from fullattention.backends import load
from fullattention.backends.interface import Sizes
from fullattention.choosing.choice import rank
from fullattention.choosing.known import Known, known_here
from fullattention.choosing.request import Request
from fullattention.choosing.store import Store
from fullattention.records import Choice, Comparison, Environment, Option, Timing
from tests.bench_fakes import ENVIRONMENT

TOY = Sizes(8, 6, 6, 2, 8, 8)
HERE = known_here(Store(Path("no-such-folder")))
NAMES = ("numpy-reference", "numpy-matmul")
THREADS = 2

NOT_RUN: dict[str, Any] = {"status": "not run", "conformant": None, "median": None}
"""Fields of a timing that was not made."""


def timing(backend: str, **fields: object) -> Timing:
    values: dict[str, object] = {
        "backend": backend,
        "library_version": "2.4.6",
        "device": "cpu",
        "workload": "toy",
        "shape": (8, 6, 6, 2, 8, 8),
        "dtype": "float32",
        "mask": "none",
        "status": "timed",
        "conformant": True,
        "median": 1e-3,
        "environment": ENVIRONMENT,
    }
    return Timing(**(values | fields))  # type: ignore[arg-type]


def comparison(environment: Environment, **fields: object) -> Comparison:
    values: dict[str, object] = {
        "backend": "a",
        "against": "b",
        "workload": "toy",
        "shape": (8, 6, 6, 2, 8, 8),
        "dtype": "float32",
        "mask": "none",
        "device": "cpu",
        "ratio": 1.01,
        "low": 1.0,
        "high": 1.02,
        "verdict": "not settled",
        "smallest_difference": 0.02,
        "blocks": 9,
        "processes": 2,
        "process_difference": 0.01,
        "environment": environment,
    }
    return Comparison(**(values | fields))  # type: ignore[arg-type]


def measured(backend: str, seconds: float, **fields: Any) -> Timing:
    """A timing that was taken here, with the library as it is now."""
    environment = dataclasses.replace(HERE.here, threads=THREADS)
    figures = {"lower_quartile": seconds * 0.99, "upper_quartile": seconds * 1.01}
    version = load(backend).version
    return timing(
        backend,
        **{
            "median": seconds,
            "library_version": version,
            "environment": environment,
            **figures,
            **fields,
        },
    )


def compared(backend: str, verdict: Any, **fields: Any) -> Comparison:
    """What the contest of the timings that `measured` makes finds, unless fields say otherwise."""
    environment = dataclasses.replace(HERE.here, threads=THREADS)
    known = {"backend": backend, "against": "numpy-matmul", "verdict": verdict}
    return comparison(environment, **{**known, **fields})


def ranked(timings: list[Timing], *comparisons: Comparison, **request: Any) -> Choice:
    wanted = Request(**{"shape": TOY, "threads": THREADS, **request})
    return rank(wanted, known(*timings, comparisons=comparisons), NAMES)


def known(*timings: Timing, comparisons: tuple[Comparison, ...] = ()) -> Known:
    return dataclasses.replace(HERE, timings=timings, comparisons=comparisons)


def choice(*timings: Timing, names: tuple[str, ...] = NAMES, **request: Any) -> Choice:
    wanted = Request(**{"shape": TOY, "threads": THREADS, **request})
    return rank(wanted, known(*timings), names)


def options(of: Choice) -> dict[str, Option]:
    return {option.backend: option for option in of.options}
