"""The portable pack: written, answered as from outside, judged; and what is wrong with it said."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fullattention import FullAttention
from fullattention.backends.precision import DTYPES
from fullattention.conformance.pack import CLASSES, check_pack, write_pack
from fullattention.records import Result

Answers = dict[str, dict[str, np.ndarray]]
"""Case name -> `out` and `weights`, as files hold them."""


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack") / "pack"
    assert write_pack(folder) == len(cases(folder))
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "pack"
    write_pack(folder, ("bfloat16",))
    return folder


@pytest.fixture(scope="module")
def right(pack: Path) -> Answers:
    return {case["name"]: attend(pack, case) for case in cases(pack)}


@pytest.fixture(scope="module")
def small_right(small: Path) -> Answers:
    return {case["name"]: attend(small, case) for case in cases(small)}


def cases(pack: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((pack / "index.json").read_text())["cases"]
    return found


def attend(pack: Path, case: dict[str, Any]) -> dict[str, np.ndarray]:
    """What numpy-matmul answers, from the pack's files alone."""
    half = case["dtype"] == "bfloat16"
    with np.load(pack / case["file"]) as arrays:
        q, k, v = (
            arrays[name].view(ml_dtypes.bfloat16) if half else arrays[name] for name in "qkv"
        )
        mask = arrays["mask"] if case["mask"] == "array" else None
    layer = FullAttention(
        mask_flag=case["mask"] != "none",
        scale=case["scale"] if case["scale"] is None else float(case["scale"]),
        output_attention=True,
        masked_rows=case["masked_rows"],
    ).eval()
    out, weights = layer(q, k, v, mask)
    assert weights is not None
    return {
        name: array.view(np.uint16) if half else array
        for name, array in (("out", out), ("weights", weights))
    }


def write_answers(folder: Path, answers: Answers) -> Path:
    folder.mkdir()
    for name, arrays in answers.items():
        np.savez(folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    return folder


def by_name(results: tuple[Result, ...]) -> dict[str, Result]:
    return {result.check: result for result in results}


def judged_alone(pack: Path, results: Path, *arguments: str) -> tuple[int, dict[str, str]]:
    """The verdicts of the pack's own judge.py, run as its README says."""
    done = subprocess.run(
        [sys.executable, "-I", pack / "judge.py", results, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr
    *lines, totals = done.stdout.splitlines()
    verdicts = dict(line.split(" ", 1) for line in lines)
    counts = Counter(verdicts.values())
    assert totals == ", ".join(f"{counts[x]} {x}" for x in ("passed", "failed", "not run"))
    return done.returncode, verdicts


def test_the_pack_covers_the_contract_in_every_dtype_and_stays_small(pack: Path) -> None:
    found = cases(pack)
    counts = Counter(case["dtype"] for case in found)
    assert set(counts) == set(DTYPES)
    asked = {case["requirement"] for case in found}
    assert asked >= {"C1", "C5", "S1", "S2", "S3", "S4", "M2", "M4", "M5", "M6", "M7", "N1", "N4"}
    assert {case["mask"] for case in found} == {"none", "causal", "array"}
    assert {case["masked_rows"] for case in found} == {"nan", "zero"}
    size = sum(path.stat().st_size for path in pack.rglob("*") if path.is_file())
    assert size < 24_000_000


def test_the_files_hold_what_the_readme_says(pack: Path) -> None:
    for case in cases(pack):
        B, L, S, H, E, D = case["shape"].values()
        storage = "uint16" if case["dtype"] == "bfloat16" else case["dtype"]
        shapes = {"q": (B, L, H, E), "k": (B, S, H, E), "v": (B, S, H, D)}
        truths = {"out": (B, L, H, D), "weights": (B, H, L, S)}
        with np.load(pack / case["file"], allow_pickle=False) as arrays:
            for name, shape in shapes.items():
                assert (arrays[name].dtype, arrays[name].shape) == (storage, shape)
            for name, shape in truths.items():
                for key in (name, *(f"{name}_bound_{kind}" for kind in CLASSES)):
                    assert (arrays[key].dtype, arrays[key].shape) == ("float64", shape)
            assert ("mask" in arrays) == (case["mask"] == "array")
            if "mask" in arrays:
                assert arrays["mask"].dtype == bool
                assert np.broadcast_shapes(arrays["mask"].shape, (B, H, L, S)) == (B, H, L, S)


def test_some_cases_allow_no_error_at_all(pack: Path) -> None:
    exact = [case for case in cases(pack) if "its own index" in case["text"]]
    assert len(exact) == 4 * len(DTYPES)
    for case in exact:
        with np.load(pack / case["file"]) as arrays:
            assert not any(arrays[f"out_bound_{kind}"].any() for kind in CLASSES)


def test_right_answers_pass_in_every_class(pack: Path, right: Answers, tmp_path: Path) -> None:
    results = write_answers(tmp_path / "results", right)
    for kind in CLASSES:
        verdict = check_pack(pack, results, precision_class=kind)
        assert verdict.precision_class == kind
        assert [result for result in verdict.results if result.status != "passed"] == []
        assert all(result.ratio is not None for result in verdict.results)
        assert verdict.ok
    status, alone = judged_alone(pack, results)
    assert status == 0
    assert set(alone) == {case["name"] for case in cases(pack)}
    assert set(alone.values()) == {"passed"}


def scaled(answer: dict[str, np.ndarray]) -> None:
    larger = 1.1 * answer["out"].view(ml_dtypes.bfloat16).astype(np.float32)
    answer["out"] = larger.astype(ml_dtypes.bfloat16).view(np.uint16)


def transposed(answer: dict[str, np.ndarray]) -> None:
    answer["out"] = answer["out"].swapaxes(1, 2)


def widened(answer: dict[str, np.ndarray]) -> None:
    answer["out"] = answer["out"].view(ml_dtypes.bfloat16).astype(np.float32)


def without_out(answer: dict[str, np.ndarray]) -> None:
    del answer["out"]


def with_nan(answer: dict[str, np.ndarray]) -> None:
    answer["out"][0, 0, 0, 0] = np.array(np.nan, ml_dtypes.bfloat16).view(np.uint16)


def with_wrong_weights(answer: dict[str, np.ndarray]) -> None:
    answer["weights"] = answer["weights"][..., ::-1]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (scaled, "elements wrong; first at b=0, l="),
        (transposed, "out has shape (2, 3, 5, 13), expected (2, 5, 3, 13)"),
        (widened, "out has dtype float32, expected uint16 for bfloat16"),
        (without_out, "holds no 'out'"),
        (with_nan, "got nan"),
        (with_wrong_weights, "weights: "),
    ],
)
def test_a_wrong_answer_fails_by_its_name_with_the_reason(
    spoil: Callable[[dict[str, np.ndarray]], None],
    says: str,
    small: Path,
    small_right: Answers,
    tmp_path: Path,
) -> None:
    wrong = "C1-bfloat16-05"
    answers = small_right | {wrong: dict(small_right[wrong])}
    answers[wrong]["out"] = answers[wrong]["out"].copy()
    spoil(answers[wrong])
    results = write_answers(tmp_path / "results", answers)
    verdict = check_pack(small, results)
    failed = [result for result in verdict.results if result.status == "failed"]
    assert [result.check for result in failed] == [wrong]
    assert says in failed[0].detail
    assert not verdict.ok
    status, alone = judged_alone(small, results)
    assert status == 1
    assert alone == {result.check: result.status for result in verdict.results}


def test_every_wrong_answer_of_a_kind_is_judged_alike_by_both(
    small: Path, small_right: Answers, tmp_path: Path
) -> None:
    """The mean of the values, everywhere: both judges agree case by case, in each class."""
    answers = {}
    for case in cases(small):
        with np.load(small / case["file"]) as arrays:
            values = arrays["v"].view(ml_dtypes.bfloat16).astype(np.float32)
        shape = small_right[case["name"]]["out"].shape
        mean = np.broadcast_to(values.mean(1, keepdims=True), shape)
        answers[case["name"]] = {"out": mean.astype(ml_dtypes.bfloat16).view(np.uint16)}
    results = write_answers(tmp_path / "results", answers)
    for kind in CLASSES:
        verdict = check_pack(small, results, precision_class=kind)
        found = Counter(result.status for result in verdict.results)
        assert found["failed"] > found["passed"]
        alone = judged_alone(small, results, kind)[1]
        assert alone == {result.check: result.status for result in verdict.results}


def test_every_class_is_described_where_implementers_look(pack: Path) -> None:
    told = {line.split()[0] for line in (pack / "README.txt").read_text().splitlines() if line}
    assert set(CLASSES) <= told
    assert "|".join(CLASSES) in (pack / "judge.py").read_text()


def test_answers_may_come_as_npy_files_or_as_one_npz(
    small: Path, small_right: Answers, tmp_path: Path
) -> None:
    folder = tmp_path / "npy"
    folder.mkdir()
    for name, answer in small_right.items():
        np.save(folder / f"{name}.npy", answer["out"])
    together = tmp_path / "all.npz"
    outs = {name: answer["out"] for name, answer in small_right.items()}
    weights = {f"{name}.weights": answer["weights"] for name, answer in small_right.items()}
    np.savez(together, **outs, **weights)  # type: ignore[arg-type]
    for results in (folder, together):
        assert check_pack(small, results).ok
        assert judged_alone(small, results)[0] == 0


def test_a_case_without_an_answer_is_not_run(
    small: Path, small_right: Answers, tmp_path: Path
) -> None:
    missing = "N4-bfloat16-03"
    answers = {name: answer for name, answer in small_right.items() if name != missing}
    results = write_answers(tmp_path / "results", answers)
    verdict = check_pack(small, results)
    assert by_name(verdict.results)[missing].status == "not run"
    assert Counter(result.status for result in verdict.results)["passed"] == len(answers)
    assert not verdict.ok
    status, alone = judged_alone(small, results)
    assert status == 1
    assert alone[missing] == "not run"


def test_dtypes_that_are_not_asked_for_do_not_count(
    pack: Path, small_right: Answers, tmp_path: Path
) -> None:
    results = write_answers(tmp_path / "results", small_right)
    assert check_pack(pack, results, dtypes=("bfloat16",)).ok
    assert not check_pack(pack, results).ok
    assert judged_alone(pack, results, "standard", "bfloat16")[0] == 0
    with pytest.raises(ValueError, match="dtype float8: the pack has float64"):
        check_pack(pack, results, dtypes=("float8",))


def test_results_that_answer_nothing_or_something_else_are_refused(
    small: Path, small_right: Answers, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match=r"none of the \d+ cases is answered"):
        check_pack(small, empty)
    with pytest.raises(ValueError, match="neither a folder nor an"):
        check_pack(small, tmp_path / "nowhere")
    answer = small_right["C1-bfloat16-01"]
    with pytest.raises(ValueError, match="the pack has no case C1-float99-01"):
        check_pack(small, write_answers(tmp_path / "other", {"C1-float99-01": answer}))
    twice = write_answers(tmp_path / "twice", {"C1-bfloat16-01": answer})
    np.save(twice / "C1-bfloat16-01.npy", answer["out"])
    with pytest.raises(ValueError, match="answered twice"):
        check_pack(small, twice)
    with pytest.raises(ValueError, match="class is 'perfect': one of standard"):
        check_pack(small, empty, precision_class="perfect")
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"no zip")
    with pytest.raises(ValueError, match="does not read"):
        check_pack(small, broken)


@pytest.mark.parametrize("content", [b"", b"no array", b"PK\x03\x04"])
def test_an_answer_that_does_not_read_fails_alone(
    content: bytes, small: Path, small_right: Answers, tmp_path: Path
) -> None:
    results = write_answers(tmp_path / "results", small_right)
    (results / "C1-bfloat16-05.npz").write_bytes(content)
    verdict = check_pack(small, results)
    (failed,) = (result for result in verdict.results if result.status != "passed")
    assert failed.check == "C1-bfloat16-05"
    assert "C1-bfloat16-05.npz does not read" in failed.detail
    assert judged_alone(small, results)[1]["C1-bfloat16-05"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("standard", "float8"), "dtype float8: the pack has bfloat16"),
        (("perfect",), "class perfect: one of standard, "),
    ],
)
def test_the_packs_own_judge_refuses_what_it_does_not_know(
    arguments: tuple[str, ...], says: str, small: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-I", str(small / "judge.py"), str(tmp_path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.startswith(says)
    assert len(done.stderr.splitlines()) == 1


def test_the_packs_own_judge_says_how_it_is_called(small: Path) -> None:
    command = [sys.executable, "-I", str(small / "judge.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "python judge.py RESULTS" in done.stderr


def test_a_wrong_number_where_no_error_is_allowed_is_no_misplaced_nan(
    small: Path, small_right: Answers, tmp_path: Path
) -> None:
    exact = next(case["name"] for case in cases(small) if "its own index" in case["text"])
    out = small_right[exact]["out"].copy()
    out.flat[0] = np.array(100, ml_dtypes.bfloat16).view(np.uint16)
    results = write_answers(tmp_path / "results", small_right | {exact: {"out": out}})
    found = by_name(check_pack(small, results).results)[exact]
    assert found.status == "failed"
    assert "infinite (no error is allowed there)" in found.detail


def test_pickles_are_not_opened(small: Path, small_right: Answers, tmp_path: Path) -> None:
    results = write_answers(tmp_path / "results", small_right)
    (results / "C1-bfloat16-05.npz").unlink()
    np.save(results / "C1-bfloat16-05.npy", np.array([{"any": "object"}]), allow_pickle=True)
    found = by_name(check_pack(small, results).results)["C1-bfloat16-05"]
    assert found.status == "failed"
    assert "allow_pickle" in found.detail


def change_case(pack: Path) -> None:
    path = pack / "cases" / "N1-bfloat16-05.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate_case(pack: Path) -> None:
    path = pack / "cases" / "N1-bfloat16-05.npz"
    path.write_bytes(path.read_bytes()[:-100])


def remove_case(pack: Path) -> None:
    (pack / "cases" / "N1-bfloat16-05.npz").unlink()


def change_judge(pack: Path) -> None:
    (pack / "judge.py").write_text("print('all passed')")


def truncate_index(pack: Path) -> None:
    path = pack / "index.json"
    path.write_text(path.read_text()[:-100])


def strip_index(pack: Path) -> None:
    (pack / "index.json").write_text("{}")


def age_index(pack: Path) -> None:
    path = pack / "index.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 0', 1))


def remove_index(pack: Path) -> None:
    (pack / "index.json").unlink()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (change_case, "damaged: .*N1-bfloat16-05.npz has another hash"),
        (truncate_case, "damaged: .*N1-bfloat16-05.npz has another hash"),
        (remove_case, "incomplete: .*N1-bfloat16-05.npz is missing"),
        (change_judge, "damaged: .*judge.py has another hash"),
        (truncate_index, "index.json is damaged: JSONDecodeError"),
        (strip_index, "index.json is damaged: KeyError: 'schema'"),
        (age_index, "has schema 0, contract 1, this version judges schema 1"),
        (remove_index, "is no pack"),
    ],
)
def test_a_damaged_pack_is_refused(
    damage: Callable[[Path], None], says: str, small: Path, small_right: Answers, tmp_path: Path
) -> None:
    damaged = shutil.copytree(small, tmp_path / "pack")
    damage(damaged)
    with pytest.raises(ValueError, match=says):
        check_pack(damaged, write_answers(tmp_path / "results", small_right))


def test_the_same_suite_writes_the_same_bytes(small: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    write_pack(again, ("bfloat16",))
    first, second = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (small, again)
    )
    assert first == second
    for path in sorted((again / "cases").iterdir()):
        with zipfile.ZipFile(path) as archive:
            assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_pack_gets_a_folder_of_its_own(small: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not empty"):
        write_pack(small)
    with pytest.raises(ValueError, match="dtypes are float8: of float64"):
        write_pack(tmp_path / "other", ("float8",))
    assert not (tmp_path / "other").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file"):
        write_pack(tmp_path / "file")
