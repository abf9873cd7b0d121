"""Figures as people read them: three digits and a unit, or a count and its noun."""

from __future__ import annotations

import math

PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"))

BINARY = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))

MISSING = "-"
"""Stands for a figure that is None or, as pandas writes it, NaN."""


def seconds(value: float | None) -> str:
    """A duration, such as "12.3 ms"."""
    return _scaled(value, "s")


def joules(value: float | None) -> str:
    """An energy, such as "12.3 mJ"."""
    return _scaled(value, "J")


def memory(size: float | None) -> str:
    """A number of bytes, such as "12.3 MiB"."""
    if size is None or math.isnan(size):
        return MISSING
    unit, name = next(((u, n) for u, n in BINARY if size >= u), BINARY[-1])
    return f"{digits(size / unit)} {name}"


def rate(speed: float, what: str) -> str:
    """So many things per second, such as "12.3 GB/s"."""
    return f"{digits(speed / 1e9)} G{what}/s"


def percent(share: float) -> str:
    """A share in whole percent."""
    return f"{share:.0%}"


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


def _scaled(value: float | None, unit: str) -> str:
    if value is None or math.isnan(value):
        return MISSING
    size, prefix = next((one for one in PREFIXES if value >= one[0]), PREFIXES[-1])
    return f"{digits(value / size)} {prefix}{unit}"
