"""The lock that threads share or one has to itself."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fullattention.backends.shared_lock import SharedLock

LONG = 60
"""Seconds after which a test fails that would otherwise wait for ever."""


def started(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def end(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()


def until_barred(lock: SharedLock) -> None:
    """Return when somebody who wants the lock alone keeps others out."""
    while not lock._door.locked():  # noqa: SLF001 - nothing else tells that a thread waits
        pass


def test_threads_share_it_at_the_same_time() -> None:
    lock, both = SharedLock(), threading.Barrier(2, timeout=LONG)

    def share() -> None:
        with lock:
            both.wait()

    other = started(share)
    share()
    end(other)


def test_who_has_it_alone_shares_it_with_nobody() -> None:
    lock = SharedLock()
    inside: list[str] = []
    seen: list[list[str]] = []

    def share() -> None:
        for _ in range(200):
            with lock:
                inside.append("shared")
                inside.remove("shared")

    def alone() -> None:
        for _ in range(200):
            with lock.alone():
                inside.append("alone")
                seen.append(list(inside))
                inside.remove("alone")

    end(*map(started, (share, share, alone, alone)))
    assert seen == [["alone"]] * 400


def test_who_wants_it_alone_comes_before_those_who_come_later() -> None:
    lock, trying = SharedLock(), threading.Event()
    order: list[str] = []

    def alone() -> None:
        with lock.alone():
            order.append("alone")

    def share() -> None:
        trying.set()
        with lock:
            order.append("later")

    with lock:
        first = started(alone)
        until_barred(lock)
        second = started(share)
        trying.wait(LONG)
    end(first, second)
    assert order == ["alone", "later"]


def test_a_thread_that_shares_it_gets_it_again_while_another_waits_to_be_alone() -> None:
    lock = SharedLock()
    order: list[str] = []

    def alone() -> None:
        with lock.alone():
            order.append("other")

    with lock:
        other = started(alone)
        until_barred(lock)
        with lock:
            order.append("shared")
        with lock.alone():  # after the other: two that each wait for the other's share never would
            order.append("alone")
    end(other)
    assert order == ["shared", "other", "alone"]


def test_a_thread_that_has_it_alone_gets_it_again() -> None:
    lock = SharedLock()
    with lock.alone(), lock, lock.alone(), lock:
        pass

    def alone() -> None:
        with lock.alone():
            pass

    end(started(alone))  # nothing is left held
