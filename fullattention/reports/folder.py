"""A folder of records, and the report in it."""

from __future__ import annotations

from pathlib import Path

from fullattention.records import Timing, Verdict, read
from fullattention.reports.blocks import as_markdown, as_text
from fullattention.reports.comparable import common_environment
from fullattention.reports.report import report
from fullattention.reports.tables import ranked


def write_report(folder: Path) -> str:
    """Write `report.md` and `report.csv` from the records in a folder; the report as text.

    Reads `timings.jsonl` and, where there is one, `verdicts.jsonl`.

    Raises:
        FileNotFoundError: the folder holds no timings.
        ValueError: a record is malformed, or the timings were made in differing environments.
    """
    timings = read(folder / "timings.jsonl", Timing)
    verdicts = folder / "verdicts.jsonl"
    blocks = report(timings, read(verdicts, Verdict) if verdicts.exists() else [])
    (folder / "report.md").write_text(as_markdown(blocks), encoding="utf-8")
    environment = common_environment(timings)
    table = ranked(timings).assign(
        cpu=environment.cpu, gpu=environment.gpu, threads=environment.threads
    )
    table.to_csv(folder / "report.csv", index=False)
    return as_text(blocks)
