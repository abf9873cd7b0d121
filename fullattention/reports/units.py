"""Figures as people read them: three digits and a unit."""

from __future__ import annotations

import math

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))

MISSING = "-"
"""Stands for a figure that is None or, as pandas writes it, NaN."""


def seconds(value: float | None) -> str:
    """A duration, such as "12.3 ms"."""
    if value is None or math.isnan(value):
        return MISSING
    size, unit = _unit(value)
    return f"{digits(value / size)} {unit}"


def seconds_range(low: float | None, high: float | None) -> str:
    """Two durations in one unit, such as "0.98 - 1.02 ms"."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return MISSING
    size, unit = _unit(high)
    return f"{digits(low / size)} - {digits(high / size)} {unit}"


def counted(count: int, noun: str) -> str:
    """A number of things, such as "1 check" or "2 checks"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def digits(value: float | None) -> str:
    """Three significant digits, in full between 0.001 and 10 000."""
    if value is None or math.isnan(value):
        return MISSING
    if not 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def _unit(value: float) -> tuple[float, str]:
    return next((unit for unit in UNITS if value >= unit[0]), UNITS[-1])
