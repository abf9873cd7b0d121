"""A folder of records, and the report in it."""

from __future__ import annotations

from pathlib import Path

from fullattention.records import (
    CEILINGS,
    COMPARISONS,
    TIMINGS,
    VERDICTS,
    Ceilings,
    Comparison,
    Record,
    Timing,
    Verdict,
    read,
)
from fullattention.reports.blocks import as_markdown, as_text
from fullattention.reports.comparable import common_environment
from fullattention.reports.report import report
from fullattention.reports.tables import ranked


def write_report(folder: Path) -> str:
    """Write `report.md` and `report.csv` from the records in a folder; the report as text.

    Reads `timings.jsonl` and, where they are, `comparisons.jsonl`, `verdicts.jsonl` and
    `ceilings.jsonl`.

    Raises:
        FileNotFoundError: the folder holds no timings.
        ValueError: a record is malformed, or the timings were made in differing environments.
    """
    timings = read(folder / TIMINGS, Timing)
    comparisons = _read(folder / COMPARISONS, Comparison)
    verdicts = _read(folder / VERDICTS, Verdict)
    ceilings = _read(folder / CEILINGS, Ceilings)
    blocks = report(timings, comparisons, verdicts, ceilings)
    (folder / "report.md").write_text(as_markdown(blocks), encoding="utf-8")
    environment = common_environment(timings)
    table = ranked(timings, comparisons).assign(
        cpu=environment.cpu, gpu=environment.gpu, threads=environment.threads
    )
    table.to_csv(folder / "report.csv", index=False)
    return as_text(blocks)


def _read(path: Path, kind: type[Record]) -> list[Record]:
    return read(path, kind) if path.exists() else []
