"""The options of the conformance checks and benchmarks under pytest.

Load it by name, `pytest -p fullattention.pytest_plugin --pyargs fullattention.conformance
--backend X`; it registers nothing by itself.
"""

from __future__ import annotations

import pytest

from fullattention.backends.precision import DTYPES
from fullattention.bench.options import add_options
from fullattention.conformance.catalogue import LEVELS


def pytest_addoption(parser: pytest.Parser) -> None:
    """Define the options that checks and benchmarks share, and those of each."""
    group = parser.getgroup("fullattention")
    group.addoption(
        "--backend",
        action="append",
        default=[],
        metavar="NAME",
        help="name, module:object or path.py[:object], again for more; `all`: every known one",
    )
    group.addoption("--device", default="cpu", help="where backends run (default: cpu)")
    group.addoption(
        "--dtype",
        action="append",
        default=[],
        choices=DTYPES,
        help="again for more (default: all that a backend or workload has)",
    )
    group.addoption(
        "--level",
        default="standard",
        choices=LEVELS,
        help="how many conformance checks (default: standard)",
    )
    add_options(parser)
