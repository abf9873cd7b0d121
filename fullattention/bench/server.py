"""The work in a candidate's process: to judge it, prepare workloads, and take turns."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fullattention.bench.device import device_timer, peak_bytes
from fullattention.bench.gpu_figures import GpuFigures, gpu_figures
from fullattention.bench.inputs import DRAWN, InputPool
from fullattention.bench.limits import require_memory, require_time
from fullattention.bench.modes import Results, make_call
from fullattention.bench.rest import come_to_rest
from fullattention.bench.spot_check import Sample, sample
from fullattention.bench.turns import Turns
from fullattention.bench.workloads import Workload
from fullattention.conformance.subject import Subject
from fullattention.conformance.suite import judge_subject
from fullattention.machine import hardware
from fullattention.machine.threads import set_threads
from fullattention.records import Verdict

IMMUTABLE = ("jax",)
"""Libraries whose arrays cannot be written to."""


@dataclass(frozen=True)
class Ready:
    """A candidate is warm and can take turns."""

    first_call: float | None
    """Seconds; None where calls on parts of the workload came before."""
    calls_per_turn: int
    peak_bytes: int | None
    """None where it cannot be measured, or another process measures it."""


@dataclass(frozen=True)
class Turn:
    """What one turn gave, and who else was busy meanwhile."""

    seconds: float
    """Per call."""
    device_seconds: float | None
    wall: float
    """Seconds of the whole turn."""
    own: float
    """CPU seconds that this process used meanwhile, and..."""
    others: float
    """... that others did. The system counts by 10 ms or so, and a turn is not much longer: this
    may be below 0, and only the sum over many turns tells."""
    sample: Sample | None
    """Of one call's results, where a look was asked for."""
    inputs: int
    """Number of the set of inputs that the sample comes from."""


@dataclass
class _Prepared:
    """A workload that a worker can take turns at."""

    pool: InputPool
    numbers: np.ndarray
    placed: Any
    """The numbers as the candidate's own library has them; None where they stay on the host."""
    turns: Turns
    look: int = DRAWN
    """The look for which the numbers were last renewed."""


class Server:
    """The worker's side: what the parent may ask for, by name."""

    def __init__(self, subject: Subject, threads: int) -> None:
        self.subject = subject
        self.random = random.Random()
        self.prepared: _Prepared | None = None
        set_threads(threads)

    def judge(self, dtype: str) -> Verdict:
        """The verdict on the candidate in a dtype."""
        return judge_subject(self.subject, level="quick", dtypes=(dtype,))

    def require_room(self, workload: Workload) -> None:
        """Refuse what would not fit into the memory that is free.

        Raises:
            TooLargeError: it would not.
        """
        require_memory(self.subject, workload, hardware.memory_free())

    def prepare(self, pool: InputPool, warm_up: float, longest_call: float | None) -> Ready:
        """Load a workload, time the first call, and warm up.

        Args:
            pool: the workload and its inputs.
            warm_up: seconds.
            longest_call: seconds; None: another process has found that no call takes too long, and
                how much memory one takes, and the first call here is the first one of this
                workload.

        Raises:
            TooLargeError, UnsupportedError: the candidate cannot take part.
        """
        self.release()
        subject, workload = self.subject, pool.workload
        self.require_room(workload)
        numbers = pool.private()
        on_host = pool.sets(numbers)
        if longest_call is not None:
            require_time(subject, workload, on_host[0], longest_call, time.perf_counter)
        placed = self._placed(numbers, workload)
        sets = on_host if placed is None else pool.sets(placed, subject.arrays.strided)
        call = make_call(subject, workload)
        once = functools.partial(self._seconds, lambda: call(sets[0]))
        seconds = once()
        timer = device_timer(subject.library, subject.device)
        turns = Turns(call, sets, self._wait, time.perf_counter, timer)
        turns.warm_up(warm_up)
        self.prepared = _Prepared(pool, numbers, placed, turns)
        if longest_call is None:
            return Ready(seconds, turns.calls, None)
        return Ready(None, turns.calls, peak_bytes(subject.library, subject.device, once))

    def turn(self, look: int) -> Turn:
        """Take one turn, and with a look bring a sample of one call's results.

        Args:
            look: its number, for which inputs change before the turn; 0: none.
        """
        turns = self._at_work.turns
        if look != DRAWN:
            self._renew(look)
        start, own = time.perf_counter(), time.process_time()
        others = hardware.others_cpu_seconds()
        timed = turns.take(self.random.randrange(turns.chunks))
        wall, own = time.perf_counter() - start, time.process_time() - own
        others = hardware.others_cpu_seconds() - others
        come_to_rest()
        return Turn(
            seconds=timed.seconds,
            device_seconds=timed.device_seconds,
            wall=wall,
            own=own,
            others=others,
            sample=self._sample(timed.kept, look) if look != DRAWN else None,
            inputs=timed.inputs,
        )

    def gpu_figures(self, longest_call: float) -> GpuFigures:
        """What the GPU tells beside the times, if there is one."""
        subject, prepared = self.subject, self._at_work
        mode = prepared.pool.workload.mode
        return gpu_figures(subject.library, subject.device, mode, prepared.turns, longest_call)

    def changed_inputs(self) -> tuple[str, ...]:
        """Names of the arguments that the candidate wrote into since it was prepared."""
        prepared = self._at_work
        if prepared.placed is None or self._shares_memory:
            given = prepared.numbers
        else:
            given = self.subject.arrays.take(prepared.placed)
        names = ("queries", "keys", "values", "gradient of V")
        told = prepared.pool.renewed(prepared.look)
        pairs = zip(prepared.pool.sets(told), prepared.pool.sets(given), strict=True)
        changed = {
            name: None
            for before, after in pairs
            for name, left, right in zip(names, before, after, strict=True)
            if left is not None and not np.array_equal(left, right)
        }
        return tuple(changed)

    def _renew(self, look: int) -> None:
        """Give the inputs the numbers of a look, and take back those of the look before."""
        prepared, arrays, device = self._at_work, self.subject.arrays, self.subject.device
        numbers = prepared.pool.renewed(look)
        spans = [*prepared.pool.spans(prepared.look), *prepared.pool.spans(look)]
        prepared.look = look
        for span in spans:
            prepared.numbers[span] = numbers[span]
        if prepared.placed is None or self._shares_memory:
            return
        if self.subject.library in IMMUTABLE:
            prepared.placed = arrays.put(prepared.numbers, device)
            prepared.turns.sets = prepared.pool.sets(prepared.placed, arrays.strided)
        else:
            for span in spans:
                prepared.placed[span] = arrays.put(numbers[span], device)
        self._wait()

    def release(self) -> None:
        """Let go of the present workload's arrays."""
        self.prepared = None

    @property
    def _at_work(self) -> _Prepared:
        assert self.prepared is not None, "the parent asks for `prepare` first"
        return self.prepared

    @property
    def _shares_memory(self) -> bool:
        return self.subject.device == "cpu" and self.subject.arrays.wrap is not None

    def _placed(self, numbers: np.ndarray, workload: Workload) -> Any:
        """The numbers as the candidate's own library has them; None where they stay on the host."""
        arrays = self.subject.arrays
        if workload.mode == "host":
            return None
        if arrays.wrap is not None and self.subject.device == "cpu":
            return arrays.wrap(numbers)
        return arrays.put(numbers, self.subject.device)

    def _seconds(self, call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        self.subject.arrays.synchronize(self.subject.device)

    def _sample(self, results: Results, look: int) -> Sample:
        workload = self._at_work.pool.workload
        take = np.asarray if workload.mode == "host" else self.subject.arrays.take
        return sample(workload, Results(*(x if x is None else take(x) for x in results)), look)
