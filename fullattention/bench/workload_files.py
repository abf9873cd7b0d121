"""Workloads of one's own, in a file: a JSON array with an object for each."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from fullattention.bench.workloads import Workload


def write_workloads(path: Path | str, workloads: Iterable[Workload]) -> None:
    """Write workloads so that `bench --workloads FILE` reads them."""
    entries = [dataclasses.asdict(workload) for workload in workloads]
    Path(path).write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


def read_workloads(path: Path) -> list[Workload]:
    """The workloads of a file.

    Raises:
        ValueError: the file holds no such array, or an empty one; the message names the first entry
            that is wrong.
    """
    import msgspec

    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[Workload])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: no array of workloads: {error}") from error
    if not found:
        raise ValueError(f"{path}: it holds no workload")
    for workload in found:
        if min(workload.shape) < 1:
            raise ValueError(f"{path}: {workload.name}: every size must be at least 1")
    return found
