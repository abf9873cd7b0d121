"""A worker's turn is over once its threads no longer spin."""

from __future__ import annotations

import threading

from fullattention.bench.rest import GLANCE, PATIENCE, come_to_rest


class Process:
    """A process of which threads spin until some moment; its clock goes on by sleeping alone."""

    def __init__(self, spins_until: float, cores: float = 1.0) -> None:
        self.now = 0.0
        self.cpu = 0.0
        self.spins_until = spins_until
        self.cores = cores

    def sleep(self, seconds: float) -> None:
        self.cpu += self.cores * max(0.0, min(seconds, self.spins_until - self.now))
        self.now += seconds

    def rests(self) -> bool:
        return come_to_rest(lambda: self.now, lambda: self.cpu, self.sleep)


def test_threads_that_spin_are_waited_for() -> None:
    process = Process(spins_until=0.02)
    assert process.rests()
    assert 0.02 <= process.now <= 0.02 + 2 * GLANCE


def test_a_process_at_rest_costs_one_glance() -> None:
    process = Process(spins_until=0.0)
    assert process.rests()
    assert process.now == GLANCE


def test_threads_that_never_rest_are_not_waited_for_without_end() -> None:
    process = Process(spins_until=10.0, cores=0.5)
    assert not process.rests()
    assert PATIENCE <= process.now <= PATIENCE + 2 * GLANCE


def test_a_thread_of_this_process_counts() -> None:
    end = threading.Event()

    def spin() -> None:
        while not end.is_set():
            pass

    spinning = threading.Thread(target=spin)
    spinning.start()
    try:
        assert not come_to_rest()
    finally:
        end.set()
        spinning.join()
    assert come_to_rest()
