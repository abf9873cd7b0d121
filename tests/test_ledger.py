"""The ledger: nothing is left over, and exceptions are exact."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fullattention import load
from fullattention.backends.interface import Backend
from fullattention.backends.precision import DTYPES, standard
from fullattention.conformance import check, contract
from fullattention.conformance.catalogue import catalogue
from fullattention.conformance.ledger import (
    EXECUTED,
    Exceptions,
    is_conformant,
    read_exceptions,
    requirements,
    unobserved,
)
from fullattention.conformance.subject import declaration_of, from_backend, load_subject
from fullattention.records import Result, Status


def result(status: Status, requirement: str = "M5", ratio: float | None = None) -> Result:
    return Result(
        check=f"{requirement}: {status}",
        requirement=requirement,
        section="mask",
        dtype="float32",
        status=status,
        detail=f"why {status}",
        ratio=ratio,
    )


def test_every_requirement_of_the_contract_has_a_status() -> None:
    verdict = check("numpy-matmul", level="quick")
    assert [one.requirement for one in verdict.requirements] == list(contract.TEXT)
    statuses = {one.requirement: one for one in verdict.requirements}
    assert statuses["M5"].status == "passed"
    assert statuses["G1"].status == "unsupported"
    assert "differentiate" in statuses["G1"].reason
    assert statuses["L1"].status == "not run"
    assert "quick" in statuses["L1"].reason
    assert statuses["N1"].worst_ratio is not None
    assert statuses["N1"].worst_check.startswith("N1: ")


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (("passed", "failed", "deviates"), "failed"),
        (("passed", "deviates", "unsupported"), "deviates"),
        (("passed", "expected"), "expected"),
        (("unsupported", "passed", "not run"), "passed"),
        (("not run", "unsupported"), "unsupported"),
    ],
)
def test_a_requirement_is_as_good_as_its_worst_result(
    statuses: tuple[Status, ...], expected: Status
) -> None:
    (one,) = [
        found
        for found in requirements([result(status) for status in statuses], "quick")
        if found.requirement == "M5"
    ]
    assert one.status == expected
    assert one.reason == f"why {expected}"
    assert one.checks == sum(status in EXECUTED for status in statuses)


@pytest.mark.parametrize(
    ("statuses", "told"),
    [
        (("passed", "unsupported"), True),
        (("passed", "deviates"), False),
        (("passed", "not run"), False),  # it might have been observed there
        (("unsupported",), False),
    ],
)
def test_a_deviation_is_missed_where_all_that_might_show_it_was_tried(
    statuses: tuple[Status, ...], told: bool
) -> None:
    backend = dataclasses.replace(load("numpy-matmul"), deviates={"M5": "why"})
    declaration = declaration_of(from_backend(backend))
    found = unobserved(declaration, [result(status) for status in statuses])
    assert bool(found) == told


def test_nothing_compared_is_not_conformant() -> None:
    assert not is_conformant([])
    assert not is_conformant([result("unsupported"), result("not run"), result("passed")])
    assert is_conformant([result("passed", ratio=0.5), result("unsupported")])
    assert not is_conformant([result("passed", ratio=0.5), result("failed")])


def test_the_worst_check_of_a_requirement_that_failed_is_one_that_failed() -> None:
    passed = result("passed", ratio=0.9)
    for failed in (result("failed"), result("failed", ratio=0.0), result("failed", ratio=7.0)):
        found = {one.requirement: one for one in requirements([passed, failed], "quick")}["M5"]
        assert (found.worst_check, found.worst_ratio) == (failed.check, failed.ratio)
    stale = dataclasses.replace(result("failed"), dtype="", check="M5: declared deviation")
    found = {one.requirement: one for one in requirements([passed, stale], "quick")}["M5"]
    assert (found.worst_check, found.checks) == (passed.check, 1)


def test_deviations_alone_are_no_conformance() -> None:
    deviating = result("deviates", ratio=9.0)
    assert not is_conformant([deviating])
    assert is_conformant([deviating, result("passed", ratio=0.5)])
    assert is_conformant([deviating], some=True)


def of_one_dtype(**fields: Any) -> Backend:
    """A right backend that has a quarter of the checks: a ledger is the same for each dtype."""
    precision = {"float32": standard("float32")}
    return dataclasses.replace(load("numpy-matmul"), precision=precision, **fields)


CHECK = "C1: contiguous shape=2,5,7,3,11,13 dtype=float32"


def test_an_expected_failure_counts_as_expected_and_an_unused_one_fails() -> None:
    unused = check(
        of_one_dtype(), level="standard", exceptions=Exceptions(expected={CHECK: "why not"})
    )
    (stale,) = [one for one in unused.results if one.status == "failed"]
    assert stale.check == CHECK
    assert "expected to fail, and did not: why not" in stale.detail
    assert not unused.conformant


def test_a_skipped_check_is_not_run_and_an_unknown_one_fails() -> None:
    verdict = check(
        of_one_dtype(),
        level="standard",
        exceptions=Exceptions(skipped={CHECK: "slow", "C1: no such check": "typo"}),
    )
    (skipped,) = [one for one in verdict.results if one.check == CHECK]
    assert skipped.status == "not run"
    assert "slow" in skipped.detail
    (stale,) = [one for one in verdict.results if one.status == "failed"]
    assert stale.check == "C1: no such check"


@pytest.mark.parametrize("reason", ["42", "true", "[1]"])
def test_a_reason_is_words(reason: str, tmp_path: Path) -> None:
    path = tmp_path / "xfails.toml"
    path.write_text(f'[[xfail]]\ncheck = "{CHECK}"\nreason = {reason}\n')
    with pytest.raises(
        ValueError, match=r"\[\[xfail\]\] number 1 has the reason .*: say it in words"
    ):
        read_exceptions(path)


def test_exceptions_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "xfails.toml"
    path.write_text(
        f'[[xfail]]\ncheck = "{CHECK}"\nreason = "known"\n\n'
        '[[skip]]\ncheck = "C2: x"\nreason = "slow"\n'
    )
    assert read_exceptions(path) == Exceptions(expected={CHECK: "known"}, skipped={"C2: x": "slow"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[xfail]]\ncheck = 'C1'\n", "must have a `check` and a `reason`"),
        ("[[xfail]]\ncheck = 'C1'\nreason = 'r'\nmore = 1\n", "nothing else"),
        ("[[skipped]]\ncheck = 'C1'\nreason = 'r'\n", "unknown table 'skipped'"),
        ("[[xfail]]\ncheck = 'C1'\nreason = 'r'\n" * 2, "repeats 'C1'"),
        ("not toml", "xfails.toml"),
        ("xfail = ['C1']\n", "must be a list of tables"),
        ("[[xfail]]\ncheck = 'Z9: x'\nreason = 'r'\n", "no such requirement"),
    ],
)
def test_a_malformed_file_of_exceptions_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "xfails.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=says):
        read_exceptions(path)


def test_ids_of_checks_are_unique() -> None:
    ids = [one.id for one in catalogue(DTYPES, "full")]
    assert len(ids) == len(set(ids))


def test_an_exception_for_a_check_of_another_level_waits_for_it() -> None:
    (full,) = [one.id for one in catalogue(("float32",), "full") if one.requirement == "L2"]
    verdict = check(
        of_one_dtype(), level="standard", exceptions=Exceptions(skipped={full: "too large here"})
    )
    assert verdict.conformant


def test_a_deviation_from_what_the_contract_has_not_is_a_failure() -> None:
    verdict = check(of_one_dtype(deviates={"Z9": "why"}), level="standard")
    assert [one.requirement for one in verdict.results if one.status == "failed"] == ["Z9"]


def test_one_check_that_passes_is_enough_where_it_alone_was_asked_for() -> None:
    some = check("numpy-matmul", only="C9", dtypes=("float32",))
    assert some.conformant
    assert some.offered == len(catalogue(load_subject("numpy-matmul").dtypes, "full"))
    assert not check("numpy-matmul", only="G1").conformant
