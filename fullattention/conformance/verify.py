"""Compares a recorded verdict with one reached anew."""

from __future__ import annotations

from fullattention.conformance.ledger import Exceptions
from fullattention.records import Verdict

SKIPPED = "skipped: "


def differences(recorded: Verdict, anew: Verdict) -> list[str]:
    """What a second run found otherwise, a line each; versions that changed come first."""
    lines = [
        f"{name} was {before}, is {after}"
        for name, before, after in (
            ("suite", recorded.suite, anew.suite),
            ("contract", recorded.contract, anew.contract),
            (recorded.library, recorded.library_version, anew.library_version),
        )
        if before != after
    ]
    before = {result.check: result for result in recorded.results}
    after = {result.check: result for result in anew.results}
    for check in {**before, **after}:
        was = before[check].status if check in before else "absent"
        now = after[check].status if check in after else "absent"
        if was != now:
            lines.append(f"{check}: was {was}, is {now}")
    return lines


def exceptions_of(recorded: Verdict) -> Exceptions:
    """The expected failures and skips that a verdict was reached with."""
    return Exceptions(
        expected={one.check: one.detail for one in recorded.results if one.status == "expected"},
        skipped={
            one.check: one.detail.removeprefix(SKIPPED)
            for one in recorded.results
            if one.status == "not run" and one.detail.startswith(SKIPPED)
        },
    )
