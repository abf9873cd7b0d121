"""What a store holds: as text, and as a table for other tools."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from fullattention.records import Timing
from fullattention.reports.blocks import Block, Heading, Lines, Table


def stored_blocks(folder: str, held: Mapping[str, tuple[Sequence[Timing], int]]) -> list[Block]:
    """The timings of each hardware in short, and how many lines of its file cannot be read."""
    blocks: list[Block] = [Heading("What was measured"), Lines([f"In {folder}"])]
    if not held:
        return [*blocks, Lines(["Nothing yet: `fullattention bench` measures."])]
    rows = [
        [
            key,
            str(len(timings)),
            str(len({timing.backend for timing in timings})),
            str(len({timing.workload for timing in timings})),
            max((timing.environment.time[:10] for timing in timings), default=""),
            str(lost),
        ]
        for key, (timings, lost) in held.items()
    ]
    columns = ("hardware", "timings", "backends", "workloads", "last", "unreadable")
    return [*blocks, Table(columns, rows, right=("timings", "backends", "workloads", "unreadable"))]


def write_table(path: Path, timings: Sequence[Timing]) -> None:
    """Write timings as CSV or Parquet, a row each, with the machine's fields as columns.

    Raises:
        ValueError: the file's name ends in neither; or Parquet's library is not installed.
    """
    table = pd.DataFrame([_row(timing) for timing in timings])
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        try:
            table.to_parquet(path, index=False)
        except ImportError as error:
            raise ValueError(f"file is {path}: Parquet needs `pip install pyarrow`") from error
    else:
        raise ValueError(f"file is {path}: its name must end in .csv or .parquet")


def _row(timing: Timing) -> dict[str, object]:
    """A timing's fields, its sizes and its machine's fields; what is no figure as text."""
    row = dataclasses.asdict(timing)
    sizes = zip("BLSHED", row.pop("shape"), strict=True)
    machine = row.pop("environment")
    for name in ("blas", "libraries", "variables"):
        machine[name] = json.dumps(machine[name])
    return {**row, **dict(sizes), **{f"machine.{name}": value for name, value in machine.items()}}
