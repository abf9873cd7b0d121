"""Choosing from the command line: `choose`, `results`, and what `bench` keeps for them."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fullattention
from fullattention.bench.options import Options
from fullattention.bench.workload_files import write_workloads
from fullattention.bench.workloads import Workload
from fullattention.choosing.store import Store
from fullattention.cli import main
from fullattention.machine.hardware import usable_cores
from fullattention.records import TIMINGS, write
from tests.little_effort import little_effort
from tests.timings import HERE, NOT_RUN, TOY, measured


def test_the_command_line_answers_from_a_store_as_text_and_as_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = dataclasses.replace(HERE.here, threads=usable_cores())
    Store(tmp_path).add(
        measured(name, seconds, environment=environment)
        for name, seconds in (("numpy-matmul", 1e-3), ("numpy-reference", 5e-3))
    )
    command = ["choose", "--workload", "toy", "--store", str(tmp_path)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("numpy-matmul for forward, mask none")
    assert "5.00 ms" in printed
    assert "Why not the others" in printed
    assert main([*command, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["options"][0]["backend"] == "numpy-matmul"


def test_a_choice_may_be_limited_to_some_backends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = dataclasses.replace(HERE.here, threads=usable_cores())
    store = Store(tmp_path)
    store.add([measured("numpy-matmul", 1e-3, environment=environment)])
    store.add([measured("numpy-reference", 5e-3, environment=environment)])
    found = fullattention.choose(TOY, backends=["numpy-reference"], store=store)
    assert [option.backend for option in found.options] == ["numpy-reference"]
    command = ["choose", "--workload", "toy", "--store", str(tmp_path)]
    assert main([*command, "--backend", "numpy-reference", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [option["backend"] for option in record["options"]] == ["numpy-reference"]
    assert main([*command, "--backend", "openvino"]) == 2
    advice = [line for line in capsys.readouterr().err.splitlines() if "--measure" in line]
    assert "--backend openvino" in advice[0]


def test_measuring_is_limited_to_the_same_backends_and_leaves_stdout_to_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = dataclasses.replace(HERE.here, threads=usable_cores())
    asked: list[Any] = []

    def bench(options: Options, *, out: Path, listener: Any, report: object) -> int:
        asked.append((options.backends, [one.name for one in options.workloads]))
        listener.started(environment, 1)
        print("what a report says")
        out.mkdir()
        write(out / TIMINGS, [measured("numpy-matmul", 1e-3, environment=environment)])
        return 0

    monkeypatch.setattr("fullattention.bench.run.run", bench)
    command = ["choose", "--workload", "toy", "--store", str(tmp_path), "--measure"]
    command += ["--backend", "numpy-matmul", "--backend", "numpy-reference"]
    assert main([*command, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["options"][0]["backend"] == "numpy-matmul"
    assert "what a report says" in said.err
    assert "Threads: " in said.err, "the listener's"
    assert main(command) == 0
    assert "what a report says" in capsys.readouterr().out
    assert asked == [(("numpy-matmul", "numpy-reference"), ["toy"])] * 2


def test_an_unknown_backend_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fullattention.bench.run.run", None)  # to call it would raise
    command = ["choose", "--workload", "toy", "--store", str(tmp_path), "--measure"]
    assert main([*command, "--backend", "nonsense"]) == 2
    assert "backend is 'nonsense': one of numpy-reference" in capsys.readouterr().err


def test_the_command_line_refuses_to_guess(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["choose", "--workload", "toy", "--store", str(tmp_path)]) == 2
    assert "nothing was measured that tells of" in capsys.readouterr().err


def test_results_are_listed_merged_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    Path(first).mkdir()
    assert main(["results", "list", "--store", first]) == 0
    assert "Nothing yet" in capsys.readouterr().out
    Store(Path(first)).add([measured("numpy-matmul", 1e-3)])
    assert main(["results", "merge", first, "--store", second]) == 0
    assert "1 new record\n" in capsys.readouterr().out
    assert main(["results", "list", "--store", second]) == 0
    assert HERE.key[:20] in capsys.readouterr().out
    table = tmp_path / "table.csv"
    assert main(["results", "export", str(table), "--store", second]) == 0
    assert "numpy-matmul" in table.read_text()
    assert main(["results", "export", str(tmp_path / "table.txt"), "--store", second]) == 2


def test_a_merge_says_what_it_could_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = dataclasses.replace(measured("numpy-matmul", 1e-3), schema=1)
    Store(tmp_path / "old").add([other])
    assert main(["results", "merge", str(tmp_path / "old"), "--store", str(tmp_path / "new")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("0 new records")
    assert "1 line lost; the first is " in second
    assert "line 1: schema 1, this version reads 3" in second


def test_timings_survive_an_export_to_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    one, other = measured("numpy-matmul", 1e-3), measured("numpy-reference", 1.0, **NOT_RUN)
    Store(tmp_path).add([one, other])
    path = tmp_path / "table.parquet"
    assert main(["results", "export", str(path), "--store", str(tmp_path)]) == 0
    table = pd.read_parquet(path)
    assert list(table["backend"]) == ["numpy-matmul", "numpy-reference"]
    assert table["median"][0] == 1e-3
    assert list(table["median"].isna()) == [False, True]
    assert tuple(table.loc[0, list("BLSHED")]) == TOY
    assert list(table["machine.cpu"]) == [HERE.here.cpu] * 2
    assert json.loads(table["machine.libraries"][0]) == HERE.here.libraries


def test_without_parquets_library_an_export_says_which_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Store(tmp_path).add([measured("numpy-matmul", 1e-3)])
    for name in ("pyarrow", "fastparquet"):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "table.parquet"
    assert main(["results", "export", str(path), "--store", str(tmp_path)]) == 2
    assert "Parquet needs `pip install pyarrow`" in capsys.readouterr().err
    assert not path.exists()


def test_two_workloads_of_one_name_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, B in enumerate((8, 16)):
        one = Workload("mine", TOY._replace(B=B), "a test")
        write_workloads(tmp_path / f"{number}.json", [one])
    files = [f"--workloads={tmp_path / name}" for name in ("0.json", "1.json")]
    assert main(["bench", *files, "--no-store", "--out", str(tmp_path / "out")]) == 2
    assert "two different workloads are called 'mine'" in capsys.readouterr().err


def test_bench_keeps_what_it_measures_for_choose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_workloads(tmp_path / "workloads.json", [Workload("mine", TOY, "a test", mode="weights")])
    store = Store(tmp_path / "store")
    files = ["--workloads", str(tmp_path / "workloads.json"), "--out", str(tmp_path / "out")]
    with little_effort():
        main(["bench", "--backend", "numpy-matmul", *files, "--store", str(store.folder)])
    assert "kept for `fullattention choose`" in capsys.readouterr().out
    # On a busy machine the figure may be void; it is kept all the same.
    (kept,) = store.timings(HERE.key).records
    assert (kept.backend, kept.workload, kept.mode) == ("numpy-matmul", "mine", "weights")
    assert tuple(kept.shape) == TOY


def test_bench_keeps_nothing_of_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that holds another run's timings is refused before anything is measured."""
    monkeypatch.setattr("fullattention.bench.run.run", None)  # to call it would raise
    monkeypatch.setattr("fullattention.bench.options.usable_cores", lambda: 2)
    old = tmp_path / "out" / "threads-1"
    old.mkdir(parents=True)
    write(old / TIMINGS, [measured("numpy-reference", 1e-3)])
    store = Store(tmp_path / "store")
    command = ["bench", "--workload", "toy", "--store", str(store.folder)]
    for options in (["--out", str(old)], ["--out", str(old.parent), "--threads", "2,1"]):
        assert main([*command, *options]) == 2
        said = capsys.readouterr()
        assert f"out is {old}: it holds the timings of another run" in said.err
        assert "kept" not in said.out
    assert store.hardware() == []
