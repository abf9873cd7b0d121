"""Benchmarks that take as few turns as they can, and measure no ceilings.

`python -m tests.little_effort ARGUMENTS` is the command line with such benchmarks.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from unittest import mock

from fullattention.cli import main
from tests.bench_fakes import BRIEF


@contextlib.contextmanager
def little_effort() -> Iterator[None]:
    """Meanwhile the benchmarks of this process are such ones."""
    effort = mock.patch("fullattention.bench.session.Effort", return_value=BRIEF)
    with effort, mock.patch("fullattention.bench.session.measure_apart", return_value=None):
        yield


if __name__ == "__main__":
    with little_effort():
        sys.exit(main())
