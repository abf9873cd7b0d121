"""Runs a function on many items in processes that it may hang or take down."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

PATIENCE = 60.0
"""Seconds without a sign of life after which a process counts as hung."""

STARTING = 300.0
"""Seconds that a process may take to start: it imports the package and torch."""

Work = Callable[[Any, Callable[[], None]], str]
"""Takes an item and what it calls to show that it is alive; must be importable."""

THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Each process has one core to itself."""


class Worker:
    """One process that takes items one by one, started anew after each that it does not survive."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._start()

    def __call__(self, work: Work, item: Any) -> str:
        """What the work gives, or that it hung or took the process down."""
        try:
            self.connection.send((work, item))
            while self.connection.poll(self.patience):
                answer: str | Exception | None = self.connection.recv()
                if isinstance(answer, Exception):  # the judge's own, not that of what it judges
                    raise answer
                if answer is not None:
                    return answer
            ending = f"hung: no sign of life for {self.patience:g} s"
        except (EOFError, OSError):
            ending = "took the process down"
        self.stop()
        self._start()
        return ending

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork inherits threads that are not there
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        if not self.connection.poll(STARTING):
            raise TimeoutError(f"no process started within {STARTING:g} s")
        self.connection.recv()


def outcomes(
    jobs: Iterable[tuple[Work, Any]], *, processes: int = 2, patience: float = PATIENCE
) -> Iterator[str]:
    """What each job gives, in their order."""
    os.environ.update(THREADS)
    workers = [Worker(patience) for _ in range(processes)]
    free: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def one(job: tuple[Work, Any]) -> str:
        worker = free.get()
        try:
            return worker(*job)
        finally:
            free.put(worker)

    try:
        with ThreadPoolExecutor(processes) as pool:
            yield from pool.map(one, jobs)
    finally:
        for worker in workers:
            worker.stop()


def _serve(connection: Connection) -> None:
    """The process: answer each job, with None as a sign of life before and in between."""
    with contextlib.suppress(EOFError, BrokenPipeError):  # whoever asks may be gone
        connection.send(None)
        while True:
            work, item = connection.recv()
            try:
                answer: str | Exception = work(item, lambda: connection.send(None))
            except BrokenPipeError:
                raise
            except Exception as error:  # noqa: BLE001 - it is raised where the work was asked for
                answer = error
            connection.send(answer)
