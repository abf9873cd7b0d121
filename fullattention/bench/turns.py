"""Turns: short rounds of calls, each timed by itself, that backends take one after the other."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fullattention.bench.device import DeviceTimer
from fullattention.bench.modes import Call, Inputs, Results

Clock = Callable[[], float]
"""Seconds since some moment."""

CHUNK = 1e-3
"""Seconds between two looks at the clock, at least: so that looking, and waiting for a device,
cost next to nothing."""

TURN = 0.02
"""Seconds. Long enough that a neighbour's turn on the core is a small part of it, and short enough
that what disturbs lasts for a whole block."""

SETTLING = 1e-3
"""Seconds of untimed calls before each turn, at least one call: they fill the caches again."""

LONG = 1.0
"""Seconds; a call that takes so long has none before it: it fills the caches in a hundredth of
its time."""


@dataclass(frozen=True)
class Timed:
    """What one turn gives."""

    seconds: float
    """Per call: the median of the chunks."""
    device_seconds: float | None
    """The same by the device's own clock."""
    kept: Results
    """The results of one call of the turn."""
    inputs: int
    """Number of the set of inputs that the kept results come from."""


class Turns:
    """Calls in chunks of equal size; every chunk ends when the device is done.

    Args:
        call: what is timed.
        sets: inputs that the calls take in turn.
        wait: returns once the device is done.
        clock: in seconds.
        device_timer: the device's own clock, or None.
    """

    def __init__(
        self,
        call: Call,
        sets: Sequence[Inputs],
        wait: Callable[[], None],
        clock: Clock,
        device_timer: DeviceTimer | None = None,
    ) -> None:
        self.call = call
        self.sets = sets
        self.wait = wait
        self.clock = clock
        self.device_timer = device_timer
        self.made = 0
        self.per_chunk = 1
        self.chunks = 1
        self.settling = 1

    @property
    def calls(self) -> int:
        """Timed calls of a turn."""
        return self.per_chunk * self.chunks

    def warm_up(self, seconds: float) -> None:
        """Call for so long, and choose the size of a chunk and of a turn by the fastest calls."""
        end = self.clock() + seconds
        per_chunk, fastest = 1, math.inf
        while True:
            took, _ = self._chunk(per_chunk)
            fastest = min(fastest, took / per_chunk)
            if took < CHUNK:
                per_chunk *= 2
            elif self.clock() >= end:
                break
        self.per_chunk = max(1, math.ceil(CHUNK / fastest))
        self.chunks = max(1, round(TURN / (self.per_chunk * fastest)))
        self.settling = 0 if fastest >= LONG else max(1, round(SETTLING / fastest))

    def take(self, keep: int) -> Timed:
        """Take one turn, and keep the results of the last call of chunk `keep`."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._chunk(self.settling)
            seconds, device_seconds = [], []
            kept, number = Results(None), 0
            for chunk in range(self.chunks):
                if self.device_timer:
                    self.device_timer.start()
                took, results = self._chunk(self.per_chunk)
                seconds.append(took / self.per_chunk)
                if self.device_timer:
                    device_seconds.append(self.device_timer.stop() / self.per_chunk)
                if chunk == keep % self.chunks:
                    kept, number = results, (self.made - 1) % len(self.sets)
        finally:
            if collecting:
                gc.enable()
        median = statistics.median
        return Timed(
            median(seconds), median(device_seconds) if device_seconds else None, kept, number
        )

    def run(self, calls: int) -> Results:
        """Make some calls; the last one's results, which the device may not have finished yet."""
        call, sets, count = self.call, self.sets, len(self.sets)
        results = Results(None)
        first = self.made
        for number in range(first, first + calls):
            results = call(sets[number % count])
        self.made += calls
        return results

    def _chunk(self, calls: int) -> tuple[float, Results]:
        """Seconds of some calls, and what the last one gave."""
        start = self.clock()
        results = self.run(calls)
        self.wait()
        return self.clock() - start, results
