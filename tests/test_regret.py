"""What a choice costs where a shape was not measured, told and written into a document."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fullattention.backends.interface import Sizes
from fullattention.choosing.regret import regrets
from fullattention.choosing.store import Store
from fullattention.cli import main
from fullattention.reports.marked import with_marked
from tests.timings import HERE, NOT_RUN, THREADS, compared, known, measured


def test_regret_is_what_the_choice_from_other_shapes_takes_over_the_best() -> None:
    shapes = [Sizes(B, 8, 8, 2, 8, 8) for B in (1, 2, 4, 8, 16, 32)]
    timings = [
        *(measured("numpy-matmul", 1e-4 * s.B, shape=s, workload=f"b{s.B}") for s in shapes),
        *(measured("numpy-reference", 2e-4 * s.B, shape=s, workload=f"b{s.B}") for s in shapes),
    ]
    surprise = Sizes(3, 8, 8, 2, 8, 8)
    timings += [
        measured("numpy-matmul", 9e-4, shape=surprise, workload="surprise"),
        measured("numpy-reference", 3e-4, shape=surprise, workload="surprise"),
    ]
    found = {one.workload: one for one in regrets(known(*timings))}
    assert found["surprise"].chosen == "numpy-matmul"
    assert found["surprise"].best == "numpy-reference"
    assert found["surprise"].ratio == pytest.approx(3.0)
    assert found["b32"].ratio == 1.0


def test_regret_counts_what_the_choice_counts() -> None:
    """The truth is by ratios, and neither expired nor disturbed."""
    shapes = [Sizes(B, 8, 8, 2, 8, 8) for B in (1, 2, 4, 8, 16, 32)]
    timings = [
        *(measured("numpy-matmul", 2e-4 * s.B, shape=s, workload=f"b{s.B}") for s in shapes),
        *(measured("numpy-reference", 1e-4 * s.B, shape=s, workload=f"b{s.B}") for s in shapes),
    ]
    ratios = [
        compared("numpy-reference", "slower", ratio=2.0, shape=s, workload=f"b{s.B}")
        for s in shapes
    ]
    later = dataclasses.replace(HERE.here, threads=THREADS, time="2999-01-01T00:00:00+00:00")
    expired, disturbed, left_out = (
        {"shape": s, "workload": f"b{s.B}", "environment": later} for s in shapes[:3]
    )
    timings += [
        measured("numpy-reference", 1e-9, library_version="0.0", **expired),
        measured("numpy-reference", 1e-9, other_load=9.0, **disturbed),
        measured("numpy-matmul", 1.0, **NOT_RUN, **left_out),
    ]
    found = {one.workload: one for one in regrets(known(*timings, comparisons=tuple(ratios)))}
    assert found.keys() == {f"b{s.B}" for s in shapes}
    assert {(one.chosen, one.best, one.ratio) for one in found.values()} == {
        ("numpy-matmul", "numpy-matmul", 1.0)
    }


def test_the_regret_that_is_told_names_the_machine_as_it_was_and_judges_the_goals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    then = dataclasses.replace(HERE.here, threads=THREADS, blas=("torch's MKL 1999",))
    shapes = [Sizes(B, 8, 8, 2, 8, 8) for B in (1, 2, 4, 8, 16, 32)]
    store = Store(tmp_path)
    store.add(
        measured(name, seconds * s.B, shape=s, workload=f"b{s.B}", environment=then)
        for name, seconds in (("numpy-matmul", 1e-4), ("numpy-reference", 2e-4))
        for s in shapes
    )
    assert main(["results", "regret", "--store", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "torch's MKL 1999" in said
    assert "Goals: at most 1.03 in geometric mean, met; at most 1.25 at worst, met." in said
    surprise = Sizes(3, 8, 8, 2, 8, 8)
    store.add(
        measured(name, seconds, shape=surprise, workload="surprise", environment=then)
        for name, seconds in (("numpy-matmul", 9e-4), ("numpy-reference", 3e-4))
    )
    assert main(["results", "regret", "--store", str(tmp_path)]) == 0
    goals = "in geometric mean, missed; at most 1.25 at worst, missed."
    assert goals in capsys.readouterr().out.replace("\n  ", " ")


def test_a_marked_part_of_a_document_is_replaced_and_no_other() -> None:
    document = "before\n<!-- begin regret -->\nold\n<!-- end regret -->\nafter\n"
    assert with_marked(document, "regret", "new\n") == (
        "before\n<!-- begin regret -->\n\nnew\n\n<!-- end regret -->\nafter\n"
    )
    with pytest.raises(ValueError, match="lacks <!-- begin other -->"):
        with_marked(document, "other", "new")
