"""A lock that any number of threads share, or one thread has to itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class SharedLock:
    """Shared within `with lock:`, held alone within `with lock.alone():`.

    Who wants it alone bars those who come later, so that it gets its turn however many share it.
    A thread that holds it in either way gets it again in either way, without waiting for itself.
    """

    def __init__(self) -> None:
        self._door = threading.Lock()
        """All come in through it; who wants the lock alone keeps it shut until it is done."""
        self._depths: dict[int, int] = {}
        """Threads inside, and how often each has come in."""
        self._left = threading.Event()
        self._alone: int | None = None
        """The thread that has the lock to itself."""

    def __enter__(self) -> None:
        thread = threading.get_ident()
        depth = self._depths.get(thread)
        if depth:
            self._depths[thread] = depth + 1
        else:
            with self._door:
                self._depths[thread] = 1

    def __exit__(self, *_: object) -> None:
        thread = threading.get_ident()
        depth = self._depths[thread]
        if depth > 1:
            self._depths[thread] = depth - 1
        else:
            self._leave(thread)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nobody else shares the lock, and let nobody else in."""
        thread = threading.get_ident()
        if self._alone == thread:
            yield
            return
        depth = self._depths.get(thread)
        if depth:  # the thread's own call around this one waits for it, and needs no share now
            self._leave(thread)
        try:
            with self._door:
                self._wait_until_empty()
                self._alone, self._depths[thread] = thread, 1
                try:
                    yield
                finally:
                    self._alone = None
                    del self._depths[thread]
        finally:
            if depth:
                with self._door:
                    self._depths[thread] = depth

    def _leave(self, thread: int) -> None:
        del self._depths[thread]
        if self._door.locked():  # perhaps by one who waits for this
            self._left.set()

    def _wait_until_empty(self) -> None:
        self._left.clear()
        while self._depths:  # looked at after clearing, so that none leaves unnoticed
            self._left.wait()
            self._left.clear()
