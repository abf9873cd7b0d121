"""A worker's turn is over once its threads no longer spin."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from fullattention.bench.rest import GLANCE, PATIENCE, come_to_rest


class Process:
    """A process as Linux shows it, of which a thread spins until some moment."""

    def __init__(self, folder: Path, spins_until: float) -> None:
        self.folder = folder
        self.now = 0.0
        self.spins_until = spins_until
        self._show(threading.get_native_id(), "R")  # it looks, and so it runs
        self._show(1, "S")
        self.sleep(0.0)

    def _show(self, thread: int, state: str) -> None:
        (self.folder / str(thread)).mkdir(exist_ok=True)
        stat = f"{thread} (a name (R) b) {state} 1 2 3"
        (self.folder / str(thread) / "stat").write_text(stat)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._show(2, "R" if self.now < self.spins_until else "S")

    def rests(self) -> bool:
        return come_to_rest(self.folder, lambda: self.now, self.sleep)


def test_threads_that_spin_are_waited_for(tmp_path: Path) -> None:
    process = Process(tmp_path, spins_until=0.02)
    assert process.rests()
    assert 0.02 <= process.now <= 0.02 + 2 * GLANCE


def test_a_process_at_rest_costs_no_time(tmp_path: Path) -> None:
    process = Process(tmp_path, spins_until=0.0)
    assert process.rests()
    assert process.now == 0.0


def test_threads_that_never_rest_are_not_waited_for_without_end(tmp_path: Path) -> None:
    process = Process(tmp_path, spins_until=10.0)
    assert not process.rests()
    assert PATIENCE <= process.now <= PATIENCE + 2 * GLANCE


def test_a_thread_that_has_just_ended_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    assert come_to_rest(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
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
