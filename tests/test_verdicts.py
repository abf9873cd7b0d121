"""A verdict rendered, recorded, and reached again."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fullattention.cli import main
from fullattention.conformance import check
from fullattention.conformance.contract import TEXT
from fullattention.conformance.ledger import requirements
from fullattention.conformance.verify import differences
from fullattention.records import Result, Status, Verdict, read_one
from fullattention.reports.badge import GREEN, badge
from fullattention.reports.blocks import as_markdown, as_text
from fullattention.reports.page import as_html
from fullattention.reports.verdicts import verdict_blocks
from tests.test_cli import BACKEND

FAILED = Result(
    check="M7: a <case> & more",
    requirement="M7",
    section="mask",
    dtype="float32",
    status="failed",
    detail="V: 3 of 4 elements wrong",
    ratio=123.0,
    output="printed by the candidate\n",
)
PASSED = dataclasses.replace(
    FAILED,
    check="N1: typical error",
    requirement="N1",
    section="numerics",
    status="passed",
    detail="",
    ratio=0.25,
    bits=21.25,
    warning="suspicious",
    output="",
)
EXPECTED = dataclasses.replace(
    FAILED,
    check="M6: x",
    requirement="M6",
    status="expected",
    detail="expected: known; observed: y",
)


def verdict(*results: Result, conformant: bool = False) -> Verdict:
    return Verdict(
        backend="mine",
        library="numpy",
        library_version="2.0",
        device="cpu",
        level="quick",
        contract=1,
        suite="0.1.0",
        conformant=conformant,
        requirements=requirements(results, "quick"),
        results=results,
        seconds=1.0,
    )


def test_the_text_holds_all_that_was_found() -> None:
    text = as_text(
        verdict_blocks(verdict(FAILED, PASSED, EXPECTED), TEXT, "fullattention check mine.py")
    )
    for part in (
        "mine (numpy 2.0, cpu): NOT CONFORMANT; 3 quick checks in 1.0 s",
        "M7 FAILED: nothing finite in a hidden position",
        "V: 3 of 4 elements wrong",
        "printed by the candidate",
        "fullattention check mine.py --only 'M7: a <case> & more'",
        "Effective bits: float32 21.2",
        "N1: typical error: suspicious",
        "known (1 check of M6)",
    ):
        assert part in text, part


def test_the_table_counts_each_status_and_shows_the_worst_ratio_of_failures_too() -> None:
    text = as_text(verdict_blocks(verdict(FAILED, PASSED, EXPECTED), TEXT, ""))
    (row,) = [line.split() for line in text.splitlines() if line.startswith("all ")]
    assert row == ["all", "1", "1", "0", "0", "1", "0", "123"]


def test_each_requirement_has_a_row_with_what_repeats_its_worst_check() -> None:
    better = dataclasses.replace(FAILED, check="M7: better", ratio=0.5, status="passed")
    one = verdict(FAILED, better, PASSED)
    blocks = verdict_blocks(one, TEXT, "fullattention check mine.py")
    text = as_text(blocks)
    (row,) = [line for line in text.splitlines() if line.startswith("M7  ")]
    assert row.split(maxsplit=4) == ["M7", "failed", "2", "123", "--only 'M7: a <case> & more'"]
    (row,) = [line for line in text.splitlines() if line.startswith("N1  ")]
    assert row.split(maxsplit=3)[:3] == ["N1", "passed", "1"]
    assert "Without a check at level quick: C1, C2" in text
    assert "| N1   | passed   |" in as_markdown(blocks)
    assert "<td>M7</td>" in as_html(blocks)
    alone = dataclasses.replace(one, only="M7")
    assert "Without a check" not in as_text(verdict_blocks(alone, TEXT, ""))


def headline(one: Verdict) -> str:
    return as_text(verdict_blocks(one, TEXT, "")).splitlines()[0]


def statuses(status: Status, *requirements: str) -> list[Result]:
    """A result of each requirement."""
    return [
        dataclasses.replace(PASSED, check=f"{one}: x", requirement=one, status=status)
        for one in requirements
    ]


def test_the_headline_counts_what_was_tried_alone() -> None:
    untried = (*statuses("unsupported", "G1", "G2"), *statuses("not run", "L2"))
    assert "): conformant; 1 quick check in " in headline(
        verdict(PASSED, *untried, conformant=True)
    )
    (row,) = [
        line
        for line in as_text(verdict_blocks(verdict(*untried), TEXT, "")).splitlines()
        if line.startswith("G1  ")
    ]
    assert row.split()[1:3] == ["unsupported", "0"]


def test_deviations_are_named_in_the_headline_and_the_badge() -> None:
    for ids, named in (
        (("N4",), "N4"),
        (("C1", "C4", "N4"), "C1, C4, N4"),
        (("C1", "C4", "M1", "M2", "N4"), "C1, C4, M1 and 2 more"),
    ):
        one = verdict(PASSED, *statuses("deviates", *ids), conformant=True)
        assert f"): conformant but for {named}; " in headline(one)
        assert f"conformant but for {named} (contract 1, quick)" in badge(one)


WHOLE = dataclasses.replace(
    verdict(PASSED, conformant=True), precision={"float64": {}, "float32": {}}, offered=991
)
PARTS: dict[str, dict[str, Any]] = {
    "only C1": {"only": "C1"},
    "only M4: shape=1,520,776,1...": {"only": "M4: shape=1,520,776,1,8,4"},
    "float32 only": {"dtypes": ("float32",)},
    "2 expected failures": {"results": (PASSED, *statuses("expected", "M6", "N4"))},
    "1 skipped": {
        "results": (PASSED, *[dataclasses.replace(EXPECTED, status="not run", detail="skipped: y")])
    },
    "only N1, float32 only": {"only": "N1", "dtypes": ("float32",)},
}
"""What a verdict leaves out, and how it does."""


@pytest.mark.parametrize("words", PARTS)
def test_a_verdict_of_a_part_says_so_and_its_badge_is_not_that_of_a_whole(words: str) -> None:
    part = dataclasses.replace(WHOLE, **PARTS[words])
    said = f"conformant in 1 of 991 checks ({words})"
    assert f"): {said}; " in headline(part)
    assert f"{said} (contract 1, quick)" in badge(part)
    assert GREEN in badge(WHOLE)
    assert GREEN not in badge(part)


def test_all_dtypes_by_name_are_the_whole() -> None:
    named = dataclasses.replace(WHOLE, dtypes=("float32", "float64"))
    assert "): conformant; 1 quick check in " in headline(named)


def test_what_is_out_of_date_is_repeated_by_what_can_be_run() -> None:
    stale = dataclasses.replace(FAILED, check="N1: declared deviation", requirement="N1", dtype="")
    unknown = dataclasses.replace(stale, check="Z9: declared deviation", requirement="Z9")
    text = as_text(verdict_blocks(verdict(PASSED, stale, unknown), TEXT, "check it"))
    commands = [line.strip() for line in text.splitlines() if line.startswith("  check it --only")]
    assert commands == ["check it --only N1:"]
    assert "declared deviation'" not in text


def test_markdown_and_page_escape_what_the_candidate_says() -> None:
    blocks = verdict_blocks(verdict(FAILED), TEXT, "fullattention check mine.py")
    assert "NOT CONFORMANT" in as_markdown(blocks)
    page = as_html(blocks)
    assert "a &lt;case&gt; &amp; more" in page
    assert "<case>" not in page
    parser = HTMLParser()
    parser.feed(page)
    assert "http" not in page


def test_the_page_shows_the_badge_and_lets_what_is_there_stand_out() -> None:
    one = verdict(FAILED)
    page = as_html(verdict_blocks(one, TEXT, ""), badge(one))
    assert page.index("<svg") < page.index("<h1>")
    (row,) = [line for line in page.splitlines() if line.startswith("<tr><td>all</td>")]
    assert '<td class="figure">1</td>' in row
    assert '<td class="figure nothing">0</td>' in row


@pytest.mark.parametrize("conformant", [True, False])
def test_the_badge_is_an_svg_that_says_the_outcome(conformant: bool) -> None:
    root = ElementTree.fromstring(badge(verdict(PASSED, conformant=conformant)))
    texts = [text for element in root.iter() if (text := (element.text or "").strip())]
    assert "FullAttention" in texts
    said = "conformant" if conformant else "not conformant"
    assert f"{said} (contract 1, quick)" in texts


def test_differences_name_each_check_and_version_that_changed() -> None:
    before = verdict(PASSED, FAILED)
    after = dataclasses.replace(
        verdict(PASSED, dataclasses.replace(FAILED, status="passed"), EXPECTED),
        library_version="3.0",
    )
    assert differences(before, before) == []
    assert differences(before, after) == [
        "numpy was 2.0, is 3.0",
        "M7: a <case> & more: was failed, is passed",
        "M6: x: was absent, is expected",
    ]


def test_differences_name_what_is_declared_otherwise() -> None:
    before = dataclasses.replace(
        verdict(PASSED),
        precision={"float32": {"u_acc": 0.5, "tile": 16}, "float64": {"u_acc": 0.25}},
        lacks={"mask": "later"},
        deviates={"N4": "leaks"},
    )
    after = dataclasses.replace(
        before,
        precision={"float32": {"u_acc": 1.0, "tile": 16}},
        lacks={"mask": "never"},
        deviates={},
    )
    assert differences(before, after) == [
        "precision of float32: u_acc: was 0.5, is 1.0",
        "float64: was declared, is not declared",
        "lacks mask: was later, is never",
        "deviates from N4: was leaks, is not declared",
    ]


@pytest.mark.parametrize(("now", "told"), [(0.26, False), (0.49, False), (0.6, True), (0.1, True)])
def test_differences_name_a_worst_error_that_is_another_beyond_a_factor(
    now: float, told: bool
) -> None:
    before, after = verdict(PASSED), verdict(dataclasses.replace(PASSED, ratio=now))
    line = f"N1: worst error/bound was 0.25, is {now:.3g}"
    assert differences(before, after) == ([line] if told else [])


def test_differences_between_tiny_errors_are_not_told() -> None:
    tiny, small = (verdict(dataclasses.replace(PASSED, ratio=ratio)) for ratio in (1e-6, 0.04))
    assert differences(tiny, small) == differences(small, tiny) == []


def test_a_recorded_verdict_is_verified_and_a_change_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, record = tmp_path / "mine.py", tmp_path / "verdict.json"
    path.write_text(BACKEND.replace("HIDDEN", "-np.inf"))
    assert main(["check", str(path), "--only", "M7", "--json", str(record)]) == 0
    assert read_one(record, Verdict).spec == str(path)
    assert main(["verify", str(record)]) == 0
    assert "all as recorded" in capsys.readouterr().out
    path.write_text(BACKEND.replace("HIDDEN", "-1e9"))
    assert main(["verify", str(record)]) == 1
    printed = capsys.readouterr().out
    assert "was passed, is failed" in printed
    assert printed.startswith("mine: was conformant, is NOT CONFORMANT\n")


def test_a_record_that_contradicts_itself_is_not_as_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, record = tmp_path / "mine.py", tmp_path / "verdict.json"
    path.write_text(BACKEND.replace("HIDDEN", "-1e9"))
    assert main(["check", str(path), "--only", "M7", "--json", str(record)]) == 1
    record.write_text(record.read_text().replace('"conformant": false', '"conformant": true'))
    capsys.readouterr()
    assert main(["verify", str(record)]) == 1
    says = "the record says conformant, and its results say NOT CONFORMANT"
    assert says in capsys.readouterr().out


def test_a_candidate_that_lies_elsewhere_now_is_named_by_an_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(BACKEND.replace("HIDDEN", "-np.inf"))
    assert main(["check", "mine.py", "--only", "M7", "--json", "verdict.json"]) == 0
    Path("moved").mkdir()
    Path("mine.py").rename("moved/mine.py")
    capsys.readouterr()
    assert main(["verify", "verdict.json"]) == 2
    said = capsys.readouterr().err
    assert "verdict.json is of 'mine.py' from the folder that `check` ran in" in said
    assert "--candidate" in said
    assert main(["verify", "verdict.json", "--candidate", "moved/mine.py"]) == 0


def test_each_line_that_a_candidate_printed_is_indented() -> None:
    one = verdict(dataclasses.replace(FAILED, output="first\nsecond\n"))
    assert "\n  first\n  second\n" in as_text(verdict_blocks(one, TEXT, ""))


def test_a_record_of_another_schema_or_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    record = dataclasses.asdict(verdict(PASSED))
    path.write_text(json.dumps(record | {"schema": 99}))
    with pytest.raises(ValueError, match="schema 99"):
        read_one(path, Verdict)
    path.write_text(json.dumps(record | {"conformant": "yes"}))
    with pytest.raises(ValueError, match="no Verdict record"):
        read_one(path, Verdict)


def test_every_record_that_a_run_writes_reads_back(tmp_path: Path) -> None:
    found = check("numpy-matmul", only="N1")
    path = tmp_path / "verdict.json"
    path.write_text(json.dumps(dataclasses.asdict(found), allow_nan=False))
    assert read_one(path, Verdict) == found
