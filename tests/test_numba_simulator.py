"""Numba's kernels meet the contract in its simulator, and faulty ones are found out there.

`nox -s simulator` tries all quick checks; here are the first ones of each requirement.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: nox installs it")

from tests.zoo.numba_faults import FAULTS

pytestmark = pytest.mark.timeout(600)  # a loaded machine simulates slowly


def simulated(*arguments: str) -> list[dict[str, Any]]:
    """What a process under the simulator reports: of each check it tries, for instance."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", ["numba-cuda", "numba-cuda-tiles", "numba-cuda-torch"])
def test_kernels_meet_every_requirement(name: str) -> None:
    results = simulated("tests.numba_simulated", name)
    assert {result["backend"] for result in results} == {name}
    wrong = [one for one in results if one["status"] not in ("passed", "unsupported")]
    assert not wrong
    passed = [one["check"].partition(":")[0] for one in results if one["status"] == "passed"]
    assert {"C5", "M4", "N4", "W1", "S3"} <= set(passed)
    assert ("G1" in passed) == (name == "numba-cuda-torch")


def test_faulty_kernels_are_found_out() -> None:
    """By wrong numbers, not by an error, in a check that the kernel without the fault passes."""
    results = simulated("tests.numba_simulated")
    failed = [one for one in results if one["status"] == "failed"]
    assert [one["backend"] for one in failed] == [f"numba-{fault}" for fault in FAULTS]
    assert all("elements wrong" in one["detail"] for one in failed)
    right = {one["check"] for one in results if one["backend"] == "numba-right"}
    assert right == {one["check"] for one in failed}


def test_a_block_runs_to_its_barriers_its_ends_and_its_errors_without_being_looked_at() -> None:
    (found,) = simulated("tests.simulated_blocks")
    zeros, first, *later = found["sums"]
    assert zeros == [0] * 5
    assert first == [0, 1, 2, 3, 4]
    assert later == [[0, 11, 12, 13, 14], [0, 51, 52, 53, 54]]
    assert "three" in found["raised"]
    assert "tid=[3, 0, 0]" in found["raised"]
    assert found["left"] == 0
    assert found["looks"] == 0
