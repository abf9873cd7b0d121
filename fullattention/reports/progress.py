"""A run as it goes: one line for each timing, as soon as it is made."""

from __future__ import annotations

import sys
from typing import TextIO

from fullattention.records import Comparison, Environment, Timing
from fullattention.reports.blocks import WIDTH
from fullattention.reports.report import environment_lines
from fullattention.reports.tables import title
from fullattention.reports.visible import visible
from fullattention.units import digits, seconds


class Progress:
    """Prints the environment, then the timings; each reason for not running only once."""

    def __init__(self, file: TextIO | None = None) -> None:
        self.file = file or sys.stdout
        self.count = 0
        self.done = 0
        self.told: set[tuple[str, str]] = set()

    def started(self, environment: Environment, count: int) -> None:
        """So many timings are to be made, on this machine."""
        self.count = count
        self._print("\n".join(environment_lines(environment)) + "\n")

    def measured(self, timing: Timing, over_baseline: Comparison | None) -> None:
        """One timing is done, or it is known why there is none."""
        self.done += 1
        if timing.median is None and (timing.backend, timing.reason) in self.told:
            return
        self.told.add((timing.backend, timing.reason))
        number = f"{self.done:{len(str(self.count))}}/{self.count}"
        outcome = _outcome(timing, over_baseline)
        line = f"{number}  {title(timing):26} {timing.backend:20} {outcome}"
        self._print(line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}...")

    def _print(self, text: str) -> None:
        print(visible(text), file=self.file, flush=True)


def _outcome(timing: Timing, over_baseline: Comparison | None) -> str:
    if timing.status != "timed":
        return f"{timing.status.upper()}: {timing.reason}"
    if over_baseline is None:
        return f"{seconds(timing.median):>8}"
    ratio = digits(over_baseline.ratio)
    return f"{seconds(timing.median):>8}  {ratio:>6} of {over_baseline.against}"
