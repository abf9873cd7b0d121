"""Tables, conclusions and files made from records."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fullattention.records import BASELINE, Ceilings, Comparison, Result, Timing, Verdict, write
from fullattention.reports.blocks import WIDTH, Block, Heading, Lines, Table, as_markdown, as_text
from fullattention.reports.comparable import common_environment
from fullattention.reports.folder import write_report
from fullattention.reports.progress import Progress
from fullattention.reports.report import environment_lines, report
from fullattention.reports.tables import fastest, mean_gain, ranked
from fullattention.units import digits, joules, memory, percent, rate, seconds
from tests.bench_fakes import ENVIRONMENT, verdict


def timing(backend: str, median: float | None, **fields: Any) -> Timing:
    """A right timing; without a median, none at all."""
    made: dict[str, Any] = {
        "backend": backend,
        "library_version": "1.0",
        "device": "cpu",
        "workload": "toy",
        "shape": (8, 6, 6, 2, 8, 8),
        "dtype": "float32",
        "mask": "none",
        "status": "not run",
        "verdict_level": "quick",
        "conformant": True,
        "environment": ENVIRONMENT,
    }
    if median is not None:
        made |= {
            "status": "timed",
            "error_over_bound": 0.5,
            "first_call": 10 * median,
            "median": median,
            "lower_quartile": median,
            "upper_quartile": median,
            "minimum": median,
            "blocks": 8,
            "calls_per_turn": 1,
            "peak_bytes": 3 * 2**20,
            "floor": "matmul",
            "share": 0.25,
            "seed": 1,
        }
    return Timing(**made | fields)


def compared(timings: Sequence[Timing], width: float = 0.01) -> list[Comparison]:
    """What a contest with these medians would say: each against the best and the baseline."""
    groups: dict[tuple[str, ...], dict[str, Timing]] = {}
    for one in timings:
        if one.status == "timed":
            key = (one.workload, one.mask, one.mode, one.device)
            groups.setdefault(key, {})[one.backend] = one
    comparisons = []
    for group in groups.values():
        best = min(group, key=lambda name, group=group: group[name].median)  # type: ignore[misc]
        for against in dict.fromkeys([best, *({BASELINE} & set(group))]):
            comparisons += [
                comparison(group[name], group[against], width) for name in group if name != against
            ]
    return comparisons


def comparison(one: Timing, other: Timing, width: float) -> Comparison:
    assert one.median is not None
    assert other.median is not None
    ratio = one.median / other.median
    low, high = ratio * (1 - width), ratio * (1 + width)
    near: Any = "tie" if width < 0.02 else "not settled"
    verdict: Any = "slower" if low > 1 else "faster" if high < 1 else near
    return Comparison(
        workload=one.workload,
        shape=one.shape,
        dtype=one.dtype,
        mask=one.mask,
        mode=one.mode,
        device=one.device,
        backend=one.backend,
        against=other.backend,
        ratio=ratio,
        low=low,
        high=high,
        verdict=verdict,
        smallest_difference=width,
        blocks=8,
        processes=2,
        process_difference=0.034,
        environment=one.environment,
    )


def table_of(*timings: Timing, width: float = 0.01) -> Any:
    return ranked(timings, compared(timings, width))


def missing(backend: str, reason: str = "not written yet", **fields: Any) -> Timing:
    """A timing that was not made."""
    return timing(backend, None, reason=reason, **fields)


def column(table: Any, name: str) -> dict[str, Any]:
    return dict(zip(table["backend"], table[name], strict=True))


# Units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.34, "12.3 s"),
        (1.0, "1.00 s"),
        (0.01234, "12.3 ms"),
        (1e-6, "1.00 us"),
        (123.4e-9, "123 ns"),
        (1e-10, "0.100 ns"),
        (math.nan, "-"),
        (None, "-"),
    ],
)
def test_durations_have_three_digits_and_a_unit(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_sizes_rates_and_shares_are_told_in_three_digits() -> None:
    assert memory(3.5 * 2**20) == "3.50 MiB"
    assert memory(2**34) == "16.0 GiB"
    assert memory(None) == memory(math.nan) == "-"
    assert rate(23.2e9, "FLOP") == "23.2 GFLOP/s"
    assert joules(0.25) == "250 mJ"
    assert joules(None) == joules(math.nan) == "-"
    assert percent(0.456) == "46%"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.5, "0.500"),
        (1234.5, "1234"),
        (123456.0, "1.23e+05"),
        (2e-5, "2e-05"),
        (None, "-"),
        (math.nan, "-"),
    ],
)
def test_figures_have_three_digits(value: float | None, text: str) -> None:
    assert digits(value) == text


# Comparing


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threads", 1),
        ("cpu", "Another CPU"),
        ("gpu", "Some GPU"),
        ("libraries", {"numpy": "2.0.0"}),
        ("blas", ("mkl 2024",)),
        ("variables", {"OMP_NUM_THREADS": "1"}),
    ],
)
def test_timings_of_differing_environments_are_not_ranked(field: str, value: object) -> None:
    change: dict[str, Any] = {field: value}
    other = dataclasses.replace(ENVIRONMENT, **change)
    timings = [timing("a", 1.0), timing("b", 2.0, environment=other)]
    with pytest.raises(ValueError, match=field) as raised:
        report(timings)
    assert str(value) in str(raised.value)


def test_when_and_under_which_load_timings_were_made_keeps_them_comparable() -> None:
    later = dataclasses.replace(ENVIRONMENT, time="2026-02-01T00:00:00+00:00", load=1.0)
    assert (
        common_environment([timing("a", 1.0), timing("b", 1.0, environment=later)]) == ENVIRONMENT
    )


def test_no_timings_give_no_report() -> None:
    with pytest.raises(ValueError, match="no timings"):
        report([])


# Ranking


def test_backends_are_ranked_by_their_ratios_and_compared_with_the_baseline() -> None:
    table = table_of(timing("slow", 4.0), timing("torch-sdpa", 2.0), timing("fast", 1.0))
    assert list(table["backend"]) == ["fast", "torch-sdpa", "slow"]
    assert list(table["rank"]) == [1, 2, 3]
    assert list(table["ratio"]) == [0.5, 1.0, 2.0]
    assert column(table, "low")["slow"] == pytest.approx(1.98)
    assert column(table, "high")["slow"] == pytest.approx(2.02)
    assert column(table, "verdict") == {"fast": "best", "torch-sdpa": "slower", "slow": "slower"}
    assert set(table["ratio_to"]) == {"torch-sdpa"}


def test_ratios_count_and_not_medians_of_different_blocks() -> None:
    """A backend that was dropped early has its median from other times than the best."""
    timings = [timing("best", 2.0), timing("dropped", 1.5)]
    found = comparison(timing("dropped", 3.0), timing("best", 2.0), 0.01)
    table = ranked(timings, [found])
    assert list(table["backend"]) == ["best", "dropped"]
    assert list(table["rank"]) == [1, 2]


def test_without_the_baseline_the_fastest_is_the_measure() -> None:
    table = table_of(timing("slow", 4.0), timing("fast", 1.0), missing("torch-sdpa"))
    assert column(table, "ratio")["slow"] == 4.0
    assert set(table["ratio_to"]) == {"fast"}


def test_what_is_tied_with_the_best_or_not_settled_shares_its_rank() -> None:
    timings = [timing("a", 1.0), timing("b", 1.005), timing("c", 1.2)]
    tied = table_of(*timings)
    assert column(tied, "rank") == {"a": 1, "b": 1, "c": 3}
    assert column(tied, "verdict")["b"] == "tie"
    unsettled = table_of(*timings, width=0.1)
    assert column(unsettled, "rank") == {"a": 1, "b": 1, "c": 3}
    assert column(unsettled, "verdict")["b"] == "not settled"
    assert column(unsettled, "smallest_difference")["b"] == 0.1


def test_the_slower_ones_share_a_rank_where_their_intervals_meet() -> None:
    table = table_of(
        timing("best", 1.0),
        timing("b", 2.0),  # up to 2.2
        timing("c", 2.3),  # from 2.07, up to 2.53
        timing("d", 2.6),  # from 2.34, which b does not reach: else a chain would have no end
        timing("e", 4.0),
        width=0.1,
    )
    assert column(table, "rank") == {"best": 1, "b": 2, "c": 2, "d": 4, "e": 5}


def test_what_is_wrong_void_or_was_not_run_has_no_rank_and_sets_no_measure() -> None:
    table = table_of(
        missing("none"),
        timing("cheat", 0.001, status="void", reason="faster than the machine"),
        timing("torch-sdpa", 0.1, status="wrong", reason="its error is large"),
        timing("right", 1.0),
    )
    assert list(table["backend"]) == ["right", "torch-sdpa", "cheat", "none"]
    assert list(table["rank"].isna()) == [False, True, True, True]
    assert list(table["ratio"].isna()) == [False, True, True, True]
    assert set(table["ratio_to"]) == {"right"}


def test_timings_that_no_contest_compared_are_not_ranked() -> None:
    table = ranked([timing("a", 1.0), timing("b", 2.0)], [])
    assert list(table["rank"].isna()) == [True, True]
    assert fastest(table).empty


def test_workloads_masks_modes_and_devices_are_ranked_apart() -> None:
    table = table_of(
        timing("a", 1.0),
        timing("a", 5.0, workload="other"),
        timing("a", 6.0, mask="causal"),
        timing("a", 7.0, mode="training"),
        timing("a", 9.0, device="cuda", mask="padding", mode="weights"),
    )
    assert list(table["rank"]) == [1] * 5
    assert list(table["title"]) == [
        "toy",
        "other",
        "toy, causal",
        "toy, training",
        "toy, padding, weights on cuda",
    ]


def test_of_a_repeated_timing_the_last_counts() -> None:
    table = table_of(timing("a", 1.0), timing("a", 3.0))
    assert list(table["median"]) == [3.0]


def test_the_fastest_of_each_workload_with_its_ties() -> None:
    timings = [
        timing("torch-sdpa", 2.0),
        timing("a", 1.0),
        timing("b", 1.001),
        timing("torch-sdpa", 1.0, workload="other"),
        missing("torch-sdpa", workload="third"),
    ]
    best = fastest(table_of(*timings))
    assert list(best["title"]) == ["toy", "other"]
    assert list(best["backend"]) == ["a", "torch-sdpa"]
    assert list(best["ties"]) == ["b", ""]
    assert list(best["unsettled"]) == ["", ""]
    assert list(fastest(table_of(*timings, width=0.1))["unsettled"]) == ["b", ""]


def test_the_mean_gain_is_geometric_and_over_the_baseline_only() -> None:
    timings = []
    for workload, median in (("one", 0.25), ("two", 1.0)):
        timings += [timing("a", median, workload=workload)]
        timings += [timing("torch-sdpa", 1.0, workload=workload)]
    timings += [timing("a", 0.001, workload="without the baseline")]
    timings += [timing("a", 0.002, workload="disturbed", other_load=3.5)]
    timings += [timing("torch-sdpa", 1.0, workload="disturbed")]
    gain, count = mean_gain(fastest(table_of(*timings)))
    assert gain == pytest.approx(0.5)
    assert count == 2
    gain, count = mean_gain(fastest(table_of(timing("a", 1.0))))
    assert math.isnan(gain)
    assert count == 0


@pytest.mark.parametrize(
    ("threads", "other_load", "disturbed"),
    [(4, 0.05, False), (4, 0.5, True), (2, 1.9, False), (2, 2.5, True), (4, None, False)],
)
def test_a_timing_is_disturbed_where_others_wanted_its_cores(
    threads: int, other_load: float | None, disturbed: bool
) -> None:
    here = dataclasses.replace(ENVIRONMENT, cores=4, threads=threads)
    table = table_of(timing("a", 1.0, other_load=other_load, environment=here))
    assert list(table["disturbed"]) == [disturbed]


def test_a_timing_is_disturbed_where_its_cores_were_held_back() -> None:
    timings = [timing("a", 1.0, throttlings=3), timing("b", 1.0, throttlings=0)]
    assert column(table_of(*timings), "disturbed") == {"a": True, "b": False}


@pytest.mark.parametrize(
    ("fields", "disturbed"),
    [
        ({"clock_drift": 0.09}, False),
        ({"clock_drift": 0.11}, True),
        ({"clock_drift": -0.11}, True),
        ({"gpu_others": 0}, False),
        ({"gpu_others": 1}, True),
    ],
)
def test_a_timing_is_disturbed_where_a_clock_changed_or_others_used_the_gpu(
    fields: dict[str, Any], disturbed: bool
) -> None:
    assert timing("a", 1.0, **fields).disturbed is disturbed


def test_one_that_keeps_more_cores_busy_than_its_threads_is_oversubscribed() -> None:
    loads = {"within": 2.05, "beyond": 2.2}
    table = table_of(*(timing(name, 1.0, own_load=load) for name, load in loads.items()))
    assert column(table, "oversubscribed") == {"within": False, "beyond": True}


# The report


def text_of(*timings: Timing, verdicts: tuple[Verdict, ...] = (), width: float = 0.01) -> str:
    return as_text(report(timings, compared(timings, width), verdicts))


def test_a_report_tells_environment_conclusion_and_every_workload() -> None:
    text = text_of(
        timing("torch-sdpa", 2.0),
        timing("a", 1.0),
        timing("a", 1.0, workload="half", dtype="float16", mask="causal"),
        verdicts=(verdict(),),
    )
    for line in ("Threads: 2", "Some CPU", "numpy 2.4.6", "openblas 0.3.31 Haswell"):
        assert line in text
    assert "The fastest takes 0.500 of torch-sdpa's time" in text
    assert "undisturbed ratios (1)" in text
    assert "B 8, L 6, S 6, H 2, E 8, D 8; float32; no mask" in text
    assert "float16; causal mask" in text
    assert "/ torch-sdpa" in text
    assert "/ best" in text
    assert "25% matmul" in text
    assert "3.00 MiB" in text


def test_a_tie_what_is_not_settled_and_a_disturbance_are_told() -> None:
    common = {"throttlings": 1}  # which disturbs all, whatever cores others used
    timings = [timing("a", 1.0, other_load=3.5, **common), timing("b", 1.001, other_load=0.0)]
    timings.append(timing("c", 2.0, other_load=0.0, **common))
    text = as_markdown(report(timings, compared(timings)))  # which wraps no cells
    assert "tie with b; disturbed" in text
    assert "cores that others used meanwhile: a 3.50." in text
    assert "not settled: b" in as_markdown(report(timings, compared(timings, 0.1)))


def test_what_disturbed_a_contest_is_told() -> None:
    common = {"clock_drift": 0.25, "gpu_others": 2}
    greedy, right = timing("greedy", 1.0, own_load=2.5, **common), timing("right", 2.0, **common)
    text = as_markdown(report([greedy, right], compared([greedy, right])))
    assert "what the same work takes a core changed by +25% meanwhile" in text
    assert "other processes that computed on the GPU: 2." in text
    assert "More cores kept busy than these were told to use: greedy 2.50." in text
    quiet = as_markdown(report([timing("a", 1.0)]))
    assert not any(word in quiet for word in ("same work", "on the GPU", "kept busy"))


def test_what_processes_differ_by_is_told_once_a_workload() -> None:
    timings = [timing(name, 1.0 + 0.5 * n) for n, name in enumerate(("torch-sdpa", "a", "b"))]
    text = as_markdown(report(timings, compared(timings)))
    assert text.count("Two processes of one backend differ by about 3.4% here") == 1
    assert column(table_of(*timings), "process_difference")["b"] == 0.034
    assert "Two processes" not in text_of(timing("alone", 1.0))


def test_what_a_gpu_tells_is_shown_where_it_told_it() -> None:
    timings = [
        timing("a", 1e-3, device_median=0.9e-3, graph_seconds=0.5e-3, joules=0.25),
        timing("b", 2e-3, device_median=1.9e-3),
        timing("bad", 1e-3, status="wrong", reason="its error is large", graph_seconds=0.125e-3),
        timing("c", 1e-3, workload="on the host"),
    ]
    text = as_markdown(report(timings, compared(timings)))
    lines = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in cells] for cells in lines]
    assert ["backend", "device", "as graph", "energy"] in rows, "nothing had a cold cache"
    assert ["a", "900 us", "500 us", "250 mJ"] in rows
    assert ["b", "1.90 ms", "-", "-"] in rows
    assert "125 us" not in text
    assert text.count("by the GPU itself") == 1
    assert "by the GPU itself" not in text_of(timing("a", 1.0))
    assert "3.00 us" in text_of(timing("a", 1.0, cold_seconds=3e-6))


def test_the_file_tells_each_verdict_and_the_least_difference_that_would_have_shown() -> None:
    timings = [timing("best", 1.0), timing("near", 1.005), timing("far", 2.0)]
    blocks = report(timings, compared(timings, 0.012))
    rows = {
        cells[2].strip(): [cell.strip() for cell in cells[6:8]]
        for line in as_markdown(blocks).splitlines()
        if len(cells := line.split("|")) == 13
    }
    assert rows["backend"] == ["verdict", "least"]
    assert rows["best"] == ["best", "-"]
    assert rows["near"] == ["tie", "1.20%"]
    assert rows["far"] == ["slower", "1.20%"]


def test_the_mode_is_told_in_words() -> None:
    assert "no mask; forward\n" in text_of(timing("a", 1.0))
    assert "causal mask; forward and backward" in text_of(
        timing("a", 1.0, mode="training", mask="causal")
    )


def test_the_ceilings_are_told() -> None:
    found = Ceilings(
        device="cpu",
        copy={"16384": 75e9, "67108864": 9e9},
        matmul=23e9,
        exp=0.9e9,
        environment=ENVIRONMENT,
    )
    text = as_markdown(report([timing("a", 1.0)], ceilings=[found]))
    assert "copy 9.00 GB/s from memory and 75.0 GB/s in cache" in text
    assert "matmul 23.0 GFLOP/s" in text


@pytest.mark.parametrize(
    ("cpu", "blas", "told"),
    [
        ("AMD EPYC", "torch's MKL 2024.2, AVX2", True),
        ("Intel(R) Xeon(R)", "torch's MKL 2024.2, AVX512", False),
        ("AMD EPYC", "libscipy_openblas 0.3 Zen", False),
    ],
)
def test_mkl_on_another_makers_cpu_is_told(cpu: str, blas: str, told: bool) -> None:
    here = dataclasses.replace(ENVIRONMENT, cpu=cpu, blas=(blas,))
    assert any("slower path" in line for line in environment_lines(here)) is told


def test_an_incomplete_timing_shows_its_time_and_no_rank() -> None:
    reason = "the run was ended during its contest"
    text = as_markdown(report([timing("cut", 0.125, status="incomplete", reason=reason)]))
    assert f"cut is INCOMPLETE: {reason}" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| incomplete")]
    assert [cell.strip() for cell in row.split("|")][2:5] == ["cut", "125 ms", "-"]
    assert "Nothing was timed." in text


def test_a_wrong_timing_shows_its_reason_and_no_time() -> None:
    text = text_of(timing("bad", 0.125, status="wrong", reason="its error is large"))
    assert "bad is WRONG: its error is large" in text
    assert "125 ms" not in text
    assert "Nothing was timed." in text


def test_a_reason_is_told_once_for_all_workloads_it_holds_for() -> None:
    text = text_of(
        timing("a", 1.0),
        timing("a", 1.0, workload="other"),
        missing("absent", "no such device"),
        missing("absent", "no such device", workload="other"),
        missing("slow", "it would take 9 s", workload="other"),
    )
    assert text.count("no such device") == 1
    cells = [line.split()[:2] for line in text.split("Not run")[1].splitlines()]
    assert ["absent", "all"] in cells
    assert ["slow", "other"] in cells


def test_a_verdict_that_is_not_conformant_stands_out() -> None:
    result = Result(check="C1: a", requirement="C1", section="core", dtype="f", status="failed")
    failed = dataclasses.replace(verdict(conformant=False), results=(result,))
    assert "NO " in text_of(timing("a", 1.0), verdicts=(failed,))
    assert "NO " not in text_of(timing("a", 1.0), verdicts=(verdict(),))


def test_a_busy_machine_is_told() -> None:
    busy = dataclasses.replace(ENVIRONMENT, cores=2, threads=2, load=1.2)
    assert any("busy" in line for line in environment_lines(busy))
    idle = dataclasses.replace(busy, load=0.7)
    assert not any("busy" in line for line in environment_lines(idle))


def test_the_text_fits_a_terminal() -> None:
    names = ["torch-sdpa-efficient", "torch-sdpa-flash", "numpy-reference"]
    timings = [
        timing(name, 0.001234 * (place + 1), workload="tslib/patchtst/weather/h16")
        for place, name in enumerate(names)
    ]
    text = text_of(*timings, missing("x", "because of " + "many reasons " * 20))
    assert max(map(len, text.splitlines())) <= WIDTH


# Blocks


BLOCKS: list[Block] = [
    Heading("Title", level=1),
    Lines(["one", "a|b <c>"]),
    Table(("name", "figure"), [["a|b", "1.0"], ["longer", "22.0"]], right=("figure",)),
]


def test_blocks_as_text() -> None:
    assert as_text(BLOCKS).splitlines() == [
        "Title",
        "=====",
        "",
        "one",
        "a|b <c>",
        "",
        "name      figure",
        "------  --------",
        "a|b          1.0",
        "longer      22.0",
    ]


def test_a_terminal_leaves_out_what_it_has_no_room_for() -> None:
    table = Table(("a", "b", "c"), [["1", "2", "3"]], right=("b", "c"), wide=("b",))
    assert as_text([table]).split() == ["a", "c", "---", "---", "1", "3"]
    assert "| 1   |   2 |   3 |" in as_markdown([table])


def test_blocks_as_markdown_with_nothing_that_breaks_a_table() -> None:
    lines = as_markdown(BLOCKS).splitlines()
    assert lines[0] == "# Title"
    assert lines[3] == r"- a\|b &lt;c>"
    assert lines[6].endswith("---:|")
    assert r"| a\|b" in lines[7]


# Files


def test_a_report_is_made_from_a_folder_of_records(tmp_path: Path) -> None:
    timings = [timing("torch-sdpa", 2.0), timing("a", 1.0), missing("absent")]
    write(tmp_path / "timings.jsonl", timings)
    write(tmp_path / "comparisons.jsonl", compared(timings))
    write(tmp_path / "verdicts.jsonl", [verdict()])
    text = write_report(tmp_path)
    blocks = report(timings, compared(timings), [verdict()])
    assert text == as_text(blocks)
    assert (tmp_path / "report.md").read_text() == as_markdown(blocks)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "report.csv").read_text())))
    assert [row["backend"] for row in rows] == ["a", "torch-sdpa", "absent"]
    assert rows[0]["rank"] == "1"
    assert rows[0]["ratio"] == "0.5"
    assert rows[0]["cpu"] == "Some CPU"
    assert rows[2]["median"] == ""


def test_a_folder_without_verdicts_can_be_reported(tmp_path: Path) -> None:
    write(tmp_path / "timings.jsonl", [timing("a", 1.0)])
    assert "Conformance" not in write_report(tmp_path)


def test_a_folder_without_timings_cannot(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_report(tmp_path)


def test_a_malformed_record_is_refused_by_its_line(tmp_path: Path) -> None:
    write(tmp_path / "timings.jsonl", [timing("a", 1.0)])
    with (tmp_path / "timings.jsonl").open("a") as file:
        file.write('{"backend": "b"}\n')
    with pytest.raises(ValueError, match="line 2"):
        write_report(tmp_path)


# Progress


def told(*timings: Timing) -> list[str]:
    over_baseline = {c.backend: c for c in compared(timings) if c.against == BASELINE}
    file = io.StringIO()
    progress = Progress(file)
    progress.started(ENVIRONMENT, len(timings))
    for one in timings:
        progress.measured(one, over_baseline.get(one.backend))
    return file.getvalue().split("\n\n", 1)[1].splitlines()


def test_progress_is_a_line_for_each_timing_with_its_ratio() -> None:
    first, baseline, third = told(timing("a", 1.0), timing("torch-sdpa", 2.0), timing("b", 3.0))
    assert first.split() == ["1/3", "toy", "a", "1.00", "s", "0.500", "of", "torch-sdpa"]
    assert baseline.split() == ["2/3", "toy", "torch-sdpa", "2.00", "s"]
    assert third.endswith("1.50 of torch-sdpa")


def test_progress_shouts_what_is_wrong_and_gives_it_no_time() -> None:
    (line,) = told(timing("bad", 1.0, status="wrong", reason="its error is large"))
    assert line.endswith("WRONG: its error is large")


def test_progress_tells_a_reason_once_and_keeps_counting() -> None:
    lines = told(
        missing("absent"),
        missing("absent", workload="other"),
        missing("absent", "another reason", workload="third"),
    )
    assert [line.split()[0] for line in lines] == ["1/3", "3/3"]


def test_progress_keeps_to_the_width_of_a_terminal() -> None:
    (line,) = told(missing("absent", "because " * 50))
    assert len(line) == WIDTH
    assert line.endswith("...")
