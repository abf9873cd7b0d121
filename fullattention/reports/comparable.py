"""Which timings may be compared: those of one machine with one set of libraries and settings."""

from __future__ import annotations

from collections.abc import Sequence

from fullattention.records import Environment, Timing

KEY = (
    "suite",
    "python",
    "platform",
    "cpu",
    "cores",
    "gpu",
    "gpu_driver",
    "threads",
    "libraries",
    "blas",
    "variables",
)
"""Fields of an environment that a figure depends on; the rest only dates and describes it."""


def common_environment(timings: Sequence[Timing]) -> Environment:
    """The environment that all timings were made in; of several runs, the first one's.

    Raises:
        ValueError: there are no timings, or they differ in a field of `KEY`; the message names
            each such field and its values.
    """
    if not timings:
        raise ValueError("there are no timings to report")
    environments = [timing.environment for timing in timings]
    differing = {name: found for name in KEY if len(found := _values(environments, name)) > 1}
    if differing:
        details = "; ".join(f"{name}: {' or '.join(found)}" for name, found in differing.items())
        raise ValueError(f"timings of differing environments cannot be ranked ({details})")
    return environments[0]


def _values(environments: Sequence[Environment], name: str) -> list[str]:
    return list(dict.fromkeys(str(getattr(e, name)) for e in environments))
