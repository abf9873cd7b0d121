"""Importing the package costs NumPy and nothing else."""

import json
import subprocess
import sys

import pytest

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
