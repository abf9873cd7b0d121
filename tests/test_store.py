"""The store of what was measured: nothing is lost, and nothing half-written is believed."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import sys
from pathlib import Path

import pytest

from fullattention.choosing.hardware_key import hardware_key
from fullattention.choosing.store import Store
from fullattention.records import write
from tests.bench_fakes import ENVIRONMENT
from tests.timings import comparison, timing

KEY = hardware_key(ENVIRONMENT)
WRITERS, EACH = 4, 25


def test_what_is_added_is_held_under_its_hardware(tmp_path: Path) -> None:
    elsewhere = dataclasses.replace(ENVIRONMENT, cpu="Another CPU")
    here, there = timing("here"), timing("there", environment=elsewhere)
    store = Store(tmp_path)
    assert store.add([here, there]) == 2
    assert store.hardware() == sorted([KEY, hardware_key(elsewhere)])
    assert store.timings(KEY).records == [here]


@pytest.mark.skipif(sys.platform != "linux", reason="a user's data lie elsewhere, fixedly")
def test_the_store_that_is_asked_unless_another_is_named_is_not_the_users_in_a_test(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    assert Store().folder.is_relative_to(tmp_path_factory.getbasetemp())


def test_an_equal_record_is_kept_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.add([timing("a"), timing("a")]) == 1
    assert store.add([timing("a"), timing("b")]) == 1


def test_cores_and_gpu_are_other_hardware_and_versions_are_not() -> None:
    fewer = dataclasses.replace(ENVIRONMENT, cores=1)
    with_gpu = dataclasses.replace(ENVIRONMENT, gpu="Some GPU")
    newer = dataclasses.replace(ENVIRONMENT, suite="9.9.9", libraries={"numpy": "9"}, threads=1)
    assert len({KEY, hardware_key(fewer), hardware_key(with_gpu)}) == 3
    assert "-1-core-" in hardware_key(fewer)
    assert hardware_key(newer) == KEY


def test_a_cut_off_line_is_counted_and_costs_no_other(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add([timing("first")])
    path = tmp_path / KEY / "timings.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    store.add([timing("second")])
    held = store.timings(KEY)
    assert [one.backend for one in held.records] == ["first", "second"]
    (lost,) = held.lost
    assert lost.startswith(f"{path}, line 2: no Timing record")


def test_a_record_from_before_a_figure_was_taken_is_held_without_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add([timing("old")])
    path = tmp_path / KEY / "timings.jsonl"
    told = json.loads(path.read_text())
    for figure in ("graph_seconds", "cold_seconds", "joules"):
        del told[figure]
    path.write_text(json.dumps(told) + "\n")
    assert store.timings(KEY).records == [timing("old")]


def test_a_record_of_another_schema_is_counted_as_unreadable(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add([dataclasses.replace(timing("old"), schema=0), timing("new")])
    held = store.timings(KEY)
    assert [one.backend for one in held.records] == ["new"]
    (lost,) = held.lost
    assert lost.endswith("line 1: schema 0, this version reads 3")


def test_a_timing_that_does_not_tell_its_library_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add([timing("old")])
    path = tmp_path / KEY / "timings.jsonl"
    path.write_text(path.read_text().replace('"library": "", ', ""))
    assert '"library"' not in path.read_text()
    assert store.timings(KEY).records == [timing("old")]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"median": 0.0}, "median is 0.0: it must be above 0"),
        ({"median": -1.0}, "median is -1.0: it must be above 0"),
        ({"lower_quartile": -0.5}, "lower_quartile is -0.5"),
        ({"median": None}, "it is timed, and has no median"),
        ({"shape": (8, 0, 6, 2, 8, 8)}, "every size must be at least 1"),
        ({"environment": dataclasses.replace(ENVIRONMENT, threads=0)}, "threads is 0"),
    ],
)
def test_what_cannot_be_is_counted_as_unreadable(
    tmp_path: Path, fields: dict[str, object], says: str
) -> None:
    store = Store(tmp_path)
    store.add([timing("odd", **fields), timing("right")])
    held = store.timings(KEY)
    assert [one.backend for one in held.records] == ["right"]
    (lost,) = held.lost
    assert "line 1: no Timing record: " in lost
    assert says in lost


def test_a_time_that_is_no_number_and_a_ratio_of_nothing_are_unreadable_too(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    store.add([timing("odd"), comparison(ENVIRONMENT, ratio=0.0)])
    path = tmp_path / KEY / "timings.jsonl"
    path.write_text(path.read_text().replace('"median": 0.001', '"median": NaN'))
    assert not store.timings(KEY).records
    assert not store.comparisons(KEY).records
    assert len(store.timings(KEY).lost) == len(store.comparisons(KEY).lost) == 1
    assert "ratio is 0.0" in store.comparisons(KEY).lost[0]


def _write(folder: Path, writer: int) -> None:
    for number in range(EACH):
        Store(folder).add([timing(f"w{writer}-{number}")])


def test_concurrent_writers_lose_and_break_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(tmp_path, n)) for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    held = Store(tmp_path).timings(KEY)
    assert not held.lost
    assert {one.backend for one in held.records} == {
        f"w{writer}-{number}" for writer in range(WRITERS) for number in range(EACH)
    }


def test_a_run_and_another_store_are_merged_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write(run / "timings.jsonl", [timing("a"), timing("b")])
    first, second = Store(tmp_path / "first"), Store(tmp_path / "second")
    assert first.merge(run).new == 2
    assert second.merge(first.folder).new == 2
    assert second.merge(run).new == 0


def test_what_a_merge_cannot_read_is_told(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write(run / "timings.jsonl", [dataclasses.replace(timing("a"), schema=0), timing("b")])
    merged = Store(tmp_path / "store").merge(run)
    assert merged.new == 1
    (lost,) = merged.lost
    assert lost == f"{run / 'timings.jsonl'}, line 1: schema 0, this version reads 3"


def test_records_are_in_the_order_of_their_runs_however_late_they_were_merged(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    older = dataclasses.replace(ENVIRONMENT, time="2025-12-31T00:00:00+00:00")
    write(run / "timings.jsonl", [timing("b", environment=older), timing("a", environment=older)])
    write(run / "comparisons.jsonl", [comparison(older)])
    store = Store(tmp_path / "store")
    store.add([timing("c"), comparison(ENVIRONMENT)])
    store.merge(run)
    assert [one.backend for one in store.timings(KEY).records] == ["b", "a", "c"]
    times = [one.environment.time for one in store.comparisons(KEY).records]
    assert times == [older.time, ENVIRONMENT.time]


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no timings\.jsonl"):
        Store(tmp_path / "store").merge(tmp_path)
