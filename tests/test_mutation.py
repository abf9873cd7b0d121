"""Mutants are what they are said to be, and the gate fails where it must."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation import __main__ as command
from tests.mutation.acts import act
from tests.mutation.gate import (
    Outcome,
    complaints,
    module_of,
    read_equivalent,
    tables,
)
from tests.mutation.judging import against_mutant, all_mutants, conviction, source_of, subjects
from tests.mutation.mutants import Mutant, mutants
from tests.mutation.operators import OPERATORS
from tests.mutation.workers import outcomes

MATMUL = "backends.numpy_matmul"


def alive() -> None:
    """Nobody is waiting."""


def changes(source: str, kind: str) -> set[str]:
    """The one changed line of each mutant of a kind."""
    before = ast.unparse(ast.parse(source)).splitlines()
    return {
        line.strip()
        for mutant in mutants("m", source)
        if mutant.kind == kind
        for line in mutant.source.splitlines()
        if line not in before
    }


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        ("comparison", "x = a < b", {"x = a <= b", "x = a >= b"}),
        ("comparison", "x = a is None", {"x = a is not None"}),
        ("arithmetic", "x = b - c", {"x = b + c", "x = c - b"}),
        ("arithmetic", "x = -b", {"x = b"}),
        ("arithmetic", "x *= y", {"x /= y"}),
        ("logic", "x = p and r", {"x = p or r", "x = p", "x = r"}),
        ("logic", "x = not p", {"x = p"}),
        (
            "condition",
            "x = b if p else c",
            {f"x = b if {t} else c" for t in ("not p", True, False)},
        ),
        ("constant", "x = 1.0", {"x = 2.0", "x = 0.0"}),
        ("constant", "x = True", {"x = False"}),
        ("axis", "x = f(-1)", {"x = f(-2)", "x = f(0)"}),
        ("keyword", "x = f(p, axis=0)", {"x = f(p)"}),
        ("argument", "x = f(p, r)", {"x = f(r, p)", "x = f(p)"}),
        ("argument", "x = (p, r)", {"x = (r, p)"}),
        ("default", "def f(p=True): pass", {"def f(p=None):"}),
        (
            "subscripts",
            "e('ab,cd->ad')",
            {f"e('{t}')" for t in ("ba,cd->ad", "ab,dc->ad", "ab,cd->da")},
        ),
        ("word", "x = np.float64", {"x = np.float32"}),
        ("method", "x = y.any()", {"x = y.all()"}),
        ("call", "x = y().triu(1)", {"x = y()"}),
        ("call", "x = np.triu(y)", {"x = y"}),
        ("name", "x = queries", {"x = keys"}),
        ("deletion", "x += 1", {"pass"}),
    ],
)
def test_an_operator_makes_its_mistakes_and_no_other(
    kind: str, source: str, expected: set[str]
) -> None:
    assert changes(source, kind) == expected


def test_every_operator_finds_something_in_the_package() -> None:
    assert {mutant.kind for mutant in all_mutants()} == set(OPERATORS)


def test_documentation_messages_and_annotations_stay() -> None:
    source = '''
"""Text."""
def f(x: int = None) -> int:
    """Text."""
    raise ValueError(f"{x - 1}", 3)
'''
    assert {mutant.kind for mutant in mutants("m", source)} == {"default", "deletion"}


def test_mutants_compile_and_differ_and_their_ids_are_unique() -> None:
    found = list(mutants(MATMUL, source_of(MATMUL)))
    assert len({mutant.id for mutant in found}) == len(found)
    assert len({mutant.source for mutant in found}) == len(found)
    for mutant in found:
        compile(mutant.source, mutant.id, "exec")


def test_ids_do_not_depend_on_the_lines_above() -> None:
    source = "def f(x):\n    return x + 1\n"
    moved = "'''Text.'''\nimport os\n\n\n" + source
    assert [m.id for m in mutants("m", source)] == [m.id for m in mutants("m", moved)]


def named(part: str, module: str = MATMUL) -> Mutant:
    """The mutant whose id ends so."""
    (found,) = [one for one in mutants(module, source_of(module)) if one.id.endswith(part)]
    return found


@pytest.mark.parametrize(
    ("part", "module"),
    [
        ("-> a.min(-1, keepdims=True)", MATMUL),
        ("np.copyto(a, -np.inf, where=hidden) -> pass", MATMUL),
        ("if scale: -> if True:", "layer"),
        ("if not self.mask_flag: -> if False:", "layer"),
    ],
)
def test_the_suite_kills_typical_mutants(part: str, module: str) -> None:
    assert against_mutant(named(part, module), alive)


@pytest.mark.parametrize("module", [MATMUL, "backends.numpy_arrays", "layer"])
def test_the_code_as_it_is_survives(module: str) -> None:
    original = Mutant("the original", module, "", source_of(module))
    assert [conviction(subject, "quick", alive) for subject in subjects(original)] == [
        "" for _ in subjects(original)
    ]


def test_a_mutant_that_does_not_load_is_killed() -> None:
    assert "does not load" in against_mutant(Mutant("m", MATMUL, "", "1 / 0"), alive)


# What hangs or crashes.


def test_a_hang_and_a_crash_are_outcomes_and_the_rest_goes_on() -> None:
    acts = ("well", "hangs", "crashes", "is slow")
    found = list(outcomes([(act, what) for what in acts], processes=1, patience=3.0))
    assert found == [
        "well",
        "hung: no sign of life for 3 s",
        "took the process down",
        "is slow",
    ]


def test_an_error_of_the_judge_is_no_conviction() -> None:
    with pytest.raises(LookupError, match="the judge's own"):
        list(outcomes([(act, "fails")], processes=1))


# The gate.

KILLED = Outcome("mutant", "logic", "layer.f: a -> b", "C1: wrong")
SURVIVOR = Outcome("mutant", "logic", "layer.f: c -> d", "")
CLEARED = Outcome("valid", "order", "tile-7", "")


def test_nothing_to_complain_of() -> None:
    assert list(complaints([KILLED, CLEARED], {})) == []
    assert list(complaints([SURVIVOR], {SURVIVOR.id: "only faster"})) == []


@pytest.mark.parametrize(
    ("outcome", "equivalent", "words"),
    [
        (SURVIVOR, {}, "survives"),
        (KILLED, {KILLED.id: "only faster"}, "and killed"),
        (KILLED, {"layer.f: gone -> away": "only faster"}, "no such mutant"),
        (Outcome("valid", "order", "tile-7", "C5: wrong"), {}, "valid, and convicted"),
        (Outcome("planted", "mask", "no-mask", ""), {}, "planted, and survives"),
    ],
)
def test_the_gate_complains(outcome: Outcome, equivalent: dict[str, str], words: str) -> None:
    (complaint,) = complaints([outcome], equivalent)
    assert words in complaint
    assert outcome.id in complaint or "gone -> away" in complaint


@pytest.mark.parametrize(
    ("outcome", "equivalent", "status"),
    [
        (KILLED, {}, 0),
        (SURVIVOR, {}, 1),
        (SURVIVOR, {SURVIVOR.id: "only faster"}, 0),
        (KILLED, {KILLED.id: "only faster"}, 1),
        (Outcome("valid", "order", "tile-7", "C5: wrong"), {}, 1),
    ],
)
def test_the_command_exits_so(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    outcome: Outcome,
    equivalent: dict[str, str],
    status: int,
) -> None:
    document = tmp_path / "mutation.md"
    document.write_text("<!-- begin mutation -->\n<!-- end mutation -->\n")
    monkeypatch.setattr(command, "DOCUMENT", document)
    monkeypatch.setattr(command, "jobs", list)
    monkeypatch.setattr(command, "judged", lambda chosen: [outcome])
    monkeypatch.setattr(command, "read_equivalent", lambda: equivalent)
    assert command.main(["--write"]) == status
    assert command.main([]) == status  # the document is what was just written
    document.write_text("<!-- begin mutation -->\n| old |\n<!-- end mutation -->\n")
    assert command.main([]) == 1


def test_the_tables_count(tmp_path: Path) -> None:
    block = tables([KILLED, SURVIVOR, CLEARED], {})
    assert "| logic | 2 | 1 | 1 | 0 |" in block
    assert "| layer | 2 | 1 | 1 | 0 |" in block
    assert "Valid variants: 1, convicted: 0." in block
    assert "| logic | 2 | 1 | 0 | 1 |" in tables([KILLED, SURVIVOR], {SURVIVOR.id: "only faster"})


def test_the_list_of_equivalents_names_mutants_that_exist() -> None:
    assert set(read_equivalent()) <= {mutant.id for mutant in all_mutants()}


@pytest.mark.parametrize(
    "text",
    ['[[equivalent]]\nmutants = ["m"]', '[[equivalent]]\nreason = ""\nmutants = ["m"]'],
)
def test_an_equivalent_needs_a_reason(tmp_path: Path, text: str) -> None:
    path = tmp_path / "equivalent.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match="reason"):
        read_equivalent(path)


def test_a_mutants_module_is_read_off_its_id() -> None:
    assert {module_of(mutant.id) for mutant in all_mutants()} == {
        mutant.module for mutant in all_mutants()
    }
