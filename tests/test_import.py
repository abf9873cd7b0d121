"""Importing the package costs NumPy and nothing else; a choice imports what it may be for."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fullattention.backends import load
from fullattention.choosing.known import known_here
from fullattention.choosing.store import Store
from tests.timings import timing

PROBE = """
import json, sys
import numpy

before = {{name.partition(".")[0] for name in sys.modules}}
{statement}
after = {{name.partition(".")[0] for name in sys.modules}}
print(json.dumps(sorted(after - before - sys.stdlib_module_names)))
"""


def packages_loaded_by(statement: str) -> set[str]:
    """Return the packages that a new interpreter loads, NumPy and the standard library aside."""
    probe = [sys.executable, "-c", PROBE.format(statement=statement)]
    output = subprocess.run(probe, stdout=subprocess.PIPE, check=True).stdout
    return set(json.loads(output))


@pytest.mark.parametrize("module", ["fullattention", "fullattention.cli"])
def test_import_loads_no_other_package(module: str) -> None:
    assert packages_loaded_by(f"import {module}") == {"fullattention"}


def test_an_import_of_another_package_would_be_seen() -> None:
    assert packages_loaded_by("import fullattention, pytest") >= {"fullattention", "pytest"}


@pytest.mark.parametrize("name", ["torch-sdpa-math", "numba-cpu-torch"])
def test_a_backend_that_is_not_compiled_loads_no_compiler(name: str) -> None:
    load_it = f"from fullattention import load; load({name!r})"
    assert "torch" in packages_loaded_by(f"{load_it}; assert 'torch._dynamo' not in sys.modules")


AUTO = """
import pathlib, torch
from fullattention.choosing.known import known_here
from fullattention.choosing.store import Store
from fullattention.nn import FullAttention, deciding
deciding._known = lambda: known_here(Store(pathlib.Path({folder!r})))
x = torch.ones(8, 6, 2, 8)
FullAttention(False).eval()(x, x, x, None)
(backend,) = deciding._decisions.values()
assert backend.name == "torch-bmm", backend
"""


def test_auto_imports_no_library_but_those_it_may_run_on(tmp_path: Path) -> None:
    store = Store(tmp_path)
    here = dataclasses.replace(known_here(store).here, threads=1)
    left_out: dict[str, Any] = {"status": "not run", "conformant": None, "median": None}
    left_out["library_version"] = ""
    bmm, sdpa = load("torch-bmm"), load("torch-sdpa")
    slower = timing(sdpa.name, environment=here, library="torch", library_version=sdpa.version)
    store.add(
        [
            dataclasses.replace(slower, median=2e-3, lower_quartile=1.9e-3, upper_quartile=2.1e-3),
            timing(bmm.name, environment=here, library="torch", library_version=bmm.version),
            *(timing(name, environment=here, **left_out) for name in ("jax", "numba-cpu-torch")),
            *(
                timing(name, environment=here, library="numpy")
                for name in ("openvino", "numba-cpu")
            ),
        ]
    )
    loaded = packages_loaded_by(AUTO.format(folder=str(tmp_path)))
    assert loaded & {"torch", "jax", "numba", "openvino"} == {"torch"}
