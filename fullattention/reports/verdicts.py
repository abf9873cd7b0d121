"""A verdict as text: by section, what failed and how to repeat it, and by requirement."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fullattention.records import Result, Status, Verdict
from fullattention.reports.blocks import Block, Command, Heading, Lines, Table
from fullattention.reports.outcome import is_tried, outcome, tried
from fullattention.units import counted, digits

STATUSES: tuple[Status, ...] = (
    "passed",
    "failed",
    "unsupported",
    "deviates",
    "expected",
    "not run",
)


def verdict_blocks(verdict: Verdict, texts: Mapping[str, str], command: str) -> list[Block]:
    """The whole verdict.

    Args:
        verdict: what was found.
        texts: requirement -> what it asks, in words.
        command: what to type to run a single check again, without the check's id.
    """
    return [
        Heading(_title(verdict), level=1),
        *_diagnosis(verdict),
        _sections(verdict.results),
        *_bits(verdict.results),
        *_failures(verdict.results, texts, command),
        *_warnings(verdict.results),
        *_reasons(verdict.results, "deviates", "Declared deviations, observed"),
        *_reasons(verdict.results, "expected", "Failures that were expected"),
        *_reasons(verdict.results, "unsupported", "Unsupported"),
        *_reasons(verdict.results, "not run", "Not run"),
        *_requirements(verdict, command),
    ]


def _title(verdict: Verdict) -> str:
    words = outcome(verdict)
    library = f"{verdict.library} {verdict.library_version}".strip()
    return (
        f"{verdict.backend} ({library}, {verdict.device}): "
        f"{words if verdict.conformant or not verdict.judged else words.upper()}; "
        f"{counted(tried(verdict), f'{verdict.level} check')} "
        f"in {verdict.seconds:.1f} s"
    )


def _sections(results: Sequence[Result]) -> Table:
    sections = list(dict.fromkeys(result.section for result in results))
    rows = [
        _row(section, [result for result in results if result.section == section])
        for section in sections
    ]
    rows.append(_row("all", results))
    columns = ("section", *STATUSES, "worst error/bound")
    return Table(columns, rows, right=columns[1:])


def _row(name: str, results: Sequence[Result]) -> list[str]:
    counts = Counter(result.status for result in results)
    ratios = [result.ratio for result in results if result.ratio is not None]
    return [name, *(str(counts[status]) for status in STATUSES), digits(max(ratios, default=None))]


def _failures(results: Sequence[Result], texts: Mapping[str, str], command: str) -> list[Block]:
    blocks: list[Block] = []
    for requirement, failed in _by_requirement(results, "failed").items():
        first = failed[0]
        others = counted(len(failed) - 1, "more check")
        more = f"; {others} of {requirement} failed" if failed[1:] else ""
        blocks += [
            Heading(f"{requirement} FAILED: {texts.get(requirement, 'not in the contract')}"),
            Lines([f"{first.detail}{more}"]),
            *_printed(first),
            *_again(first, results, command),
        ]
    return blocks


def _again(failed: Result, results: Iterable[Result], command: str) -> list[Block]:
    """What repeats a check; where it is none, all checks of what it is about, if there are any."""
    if is_tried(failed):
        return [Command(f"{command} --only {shlex.quote(failed.check)}")]
    others = any(is_tried(one) and one.requirement == failed.requirement for one in results)
    return [Command(f"{command} --only {failed.requirement}:")] if others else []


def _diagnosis(verdict: Verdict) -> list[Block]:
    return [Heading("Diagnosis"), Lines(verdict.diagnosis)] if verdict.diagnosis else []


def _printed(result: Result) -> list[Block]:
    return [Lines(["It printed:"]), Command(result.output.strip())] if result.output else []


def _bits(results: Iterable[Result]) -> list[Block]:
    bits = [f"{r.dtype} {digits(r.bits)}" for r in results if r.bits is not None]
    return [Lines([f"Effective bits: {', '.join(bits)}"])] if bits else []


def _warnings(results: Iterable[Result]) -> list[Block]:
    by_warning: dict[str, list[Result]] = {}
    for result in results:
        if result.warning:
            by_warning.setdefault(result.warning, []).append(result)
    lines = [
        f"{concerned[0].check}: {warning}"
        + (f", and in {counted(len(concerned) - 1, 'more check')}" if concerned[1:] else "")
        for warning, concerned in by_warning.items()
    ]
    return [Heading("Warnings"), Lines(lines)] if lines else []


def _reasons(results: Iterable[Result], status: str, title: str) -> list[Block]:
    """Each reason once, with the requirements and the number of checks it concerns."""
    lines = []
    by_reason: dict[str, list[Result]] = {}
    for result in results:
        if result.status == status:
            by_reason.setdefault(_without_case(result.detail), []).append(result)
    for reason, concerned in by_reason.items():
        ids = ", ".join(dict.fromkeys(result.requirement for result in concerned))
        lines.append(f"{reason} ({counted(len(concerned), 'check')} of {ids})")
    return [Heading(title), Lines(lines)] if lines else []


def _without_case(detail: str) -> str:
    """The reason without what was observed in one case."""
    return detail.partition("; observed: ")[0].removeprefix("declared: ").removeprefix("expected: ")


def _requirements(verdict: Verdict, command: str) -> list[Block]:
    """Each requirement's status and worst error, with what repeats the check that made it."""
    asked = {result.requirement for result in verdict.results}
    shown = [one for one in verdict.requirements if one.requirement in asked]
    without = ", ".join(o.requirement for o in verdict.requirements if o.requirement not in asked)
    if not shown:
        return []
    rows = [
        (
            one.requirement,
            one.status,
            str(one.checks),
            digits(one.worst_ratio),
            f"--only {shlex.quote(one.worst_check)}" if one.worst_check else "-",
        )
        for one in shown
    ]
    columns = ("id", "status", "tried", "error/bound", "the worst again")
    blocks: list[Block] = [
        Heading("Requirements"),
        Lines(["The last column, appended to this, repeats the worst check or one that failed:"]),
        Command(command),
        Table(columns, rows, right=("tried", "error/bound")),
    ]
    if without and not verdict.only:
        blocks.append(Lines([f"Without a check at level {verdict.level}: {without}."]))
    return blocks


def _by_requirement(results: Iterable[Result], status: str) -> dict[str, list[Result]]:
    grouped: dict[str, list[Result]] = {}
    for result in results:
        if result.status == status:
            grouped.setdefault(result.requirement, []).append(result)
    return grouped
