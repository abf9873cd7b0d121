"""How turns are taken, by a clock that the tests move."""

from __future__ import annotations

import gc

import pytest

from fullattention.bench.modes import Inputs, Results
from fullattention.bench.turns import CHUNK, SETTLING, TURN, Turns
from tests.bench_fakes import FakeClock

SETS = [Inputs(number, None, None, None) for number in range(3)]


class Calls:
    """A call that takes so long, and notes which inputs it was given."""

    def __init__(self, *seconds: float) -> None:
        self.clock = FakeClock()
        self.seconds = list(seconds)
        self.given: list[int] = []
        self.waits: list[int] = []

    def __call__(self, inputs: Inputs) -> Results:
        self.clock.now += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        self.given.append(inputs.q)
        return Results(len(self.given))

    def wait(self) -> None:
        self.waits.append(len(self.given))

    def turns(self, warm_up: float = 0.0) -> Turns:
        made = Turns(self, SETS, self.wait, self.clock)
        made.warm_up(warm_up)
        self.given.clear()
        self.waits.clear()
        return made


@pytest.mark.parametrize(
    ("seconds", "per_chunk", "chunks"),
    [(2.0**-14, 17, 19), (2.0**-8, 1, 5), (2.0**-5, 1, 1), (1.0, 1, 1)],
)
def test_chunks_and_turns_last_as_long_as_they_should(
    seconds: float, per_chunk: int, chunks: int
) -> None:
    turns = Calls(seconds).turns()
    assert (turns.per_chunk, turns.chunks) == (per_chunk, chunks)
    assert turns.calls == per_chunk * chunks
    assert per_chunk * seconds >= CHUNK
    assert chunks == 1 or abs(turns.calls * seconds - TURN) < per_chunk * seconds


def test_the_fastest_calls_of_the_warm_up_count() -> None:
    slow_start = [0.5] + [0.01] * 3 + [0.001953125]
    turns = Calls(*slow_start).turns(warm_up=1.0)
    assert turns.chunks == 10


def test_a_warm_up_goes_on_until_its_time_is_over() -> None:
    calls = Calls(0.25)
    calls.turns(warm_up=2.0)
    assert calls.clock.now == 2.0


def test_a_turn_begins_with_calls_that_are_not_timed() -> None:
    calls = Calls(2.0**-8)
    turns = calls.turns()
    assert turns.settling * 2.0**-8 >= SETTLING
    calls.seconds = [7.0] * turns.settling + [2.0**-8]
    assert turns.take(keep=0).seconds == 2.0**-8


def test_a_turn_of_one_long_call_makes_no_other() -> None:
    calls = Calls(2.0)
    turns = calls.turns()
    assert turns.take(keep=0).seconds == 2.0
    assert len(calls.given) == 1


def test_a_turn_is_the_median_of_its_chunks() -> None:
    calls = Calls(2.0**-8)
    turns = calls.turns()
    calls.seconds = [1.0, 3.0, 1.0, 9.0, 2.0, 1.5]  # one to settle, and five chunks of one call
    assert turns.take(keep=0).seconds == 2.0


def test_the_device_is_waited_for_once_a_chunk() -> None:
    calls = Calls(2.0**-11)
    turns = calls.turns()
    turns.take(keep=0)
    assert turns.per_chunk == 3
    assert calls.waits == [2, *range(5, 3 * turns.chunks + 3, 3)]


@pytest.mark.parametrize("keep", [0, 3, 13])
def test_kept_results_come_with_the_inputs_they_belong_to(keep: int) -> None:
    calls = Calls(2.0**-11)
    turns = calls.turns()
    timed = turns.take(keep)
    last = turns.settling + (keep % turns.chunks + 1) * turns.per_chunk
    assert timed.kept.out == last
    assert timed.inputs == calls.given[last - 1]


def test_every_set_of_inputs_is_used_in_turn() -> None:
    calls = Calls(2.0**-8)
    calls.turns().take(keep=0)
    assert all((b - a) % 3 == 1 for a, b in zip(calls.given, calls.given[1:], strict=False))


def test_calls_can_be_made_without_waiting_for_them() -> None:
    calls = Calls(2.0**-8)
    turns = calls.turns()
    assert turns.run(2).out == 2
    assert turns.run(2).out == 4
    assert not calls.waits
    assert len(set(calls.given[:3])) == 3, "the sets are used in turn"


def test_the_devices_own_clock_is_read_for_each_chunk() -> None:
    class Timer:
        def __init__(self) -> None:
            self.running = False

        def start(self) -> None:
            assert not self.running
            self.running = True

        def stop(self) -> float:
            self.running = False
            return 0.5

    calls = Calls(2.0**-11)
    turns = calls.turns()
    assert turns.take(keep=0).device_seconds is None
    turns.device_timer = Timer()
    assert turns.take(keep=0).device_seconds == 0.5 / turns.per_chunk


def test_garbage_is_collected_between_turns_alone() -> None:
    calls = Calls(2.0**-8)
    turns = calls.turns()
    collecting: list[bool] = []

    def call(inputs: Inputs) -> Results:
        collecting.append(gc.isenabled())
        return calls(inputs)

    turns.call = call
    turns.take(keep=0)
    assert not any(collecting)
    assert gc.isenabled()
