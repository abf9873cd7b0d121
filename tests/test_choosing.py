"""The choice of a backend: ranked by what was measured, with a reason for each that is not."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import fullattention
from fullattention.backends import load
from fullattention.backends.interface import Sizes
from fullattention.bench.workload_files import write_workloads
from fullattention.bench.workloads import Workload
from fullattention.choosing.choice import Known, NothingMeasuredError, Request, known_here, rank
from fullattention.choosing.regret import regrets
from fullattention.choosing.store import Store
from fullattention.cli import main
from fullattention.machine.hardware import usable_cores
from fullattention.records import Choice, Comparison, Option, Timing
from fullattention.reports.blocks import as_text
from fullattention.reports.choices import choice_blocks
from fullattention.reports.marked import with_marked
from tests.test_store import timing

TOY = Sizes(8, 6, 6, 2, 8, 8)
HERE = known_here(Store(Path("no-such-folder")))
NAMES = ("numpy-reference", "numpy-matmul")
THREADS = 2


def measured(backend: str, seconds: float, **fields: Any) -> Timing:
    """A timing that was taken here, with the library as it is now."""
    environment = dataclasses.replace(HERE.here, threads=THREADS)
    figures = {"lower_quartile": seconds * 0.99, "upper_quartile": seconds * 1.01}
    version = load(backend).version
    return timing(
        backend,
        **{
            "median": seconds,
            "library_version": version,
            "environment": environment,
            **figures,
            **fields,
        },
    )


def known(*timings: Timing, comparisons: tuple[Comparison, ...] = ()) -> Known:
    return dataclasses.replace(HERE, timings=timings, comparisons=comparisons)


def choice(*timings: Timing, names: tuple[str, ...] = NAMES, **request: Any) -> Choice:
    wanted = Request(**{"shape": TOY, "threads": THREADS, **request})
    return rank(wanted, known(*timings), names)


def options(of: Choice) -> dict[str, Option]:
    return {option.backend: option for option in of.options}


def test_the_fastest_measured_is_first_and_the_ratio_is_to_it() -> None:
    found = choice(measured("numpy-reference", 3e-3), measured("numpy-matmul", 1e-3))
    assert [option.backend for option in found.options] == ["numpy-matmul", "numpy-reference"]
    assert found.backend == "numpy-matmul"
    assert options(found)["numpy-reference"].ratio == pytest.approx(3.0)
    assert not options(found)["numpy-reference"].tied
    assert options(found)["numpy-reference"].basis == "measured"


def test_nothing_measured_is_refused_with_the_command_that_measures() -> None:
    with pytest.raises(NothingMeasuredError, match=r"choose --measure --shape 8,6,6,2,8,8"):
        choice()


@pytest.mark.parametrize(
    ("field", "value"),
    [("dtype", "float64"), ("mask", "causal"), ("mode", "weights"), ("device", "cuda")],
)
def test_a_timing_of_another_kind_of_call_tells_nothing(field: str, value: str) -> None:
    with pytest.raises(NothingMeasuredError):
        choice(measured("numpy-matmul", 1e-3, **{field: value}))


def test_the_advice_is_the_whole_command_and_names_the_store_that_was_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--shape", "8,6,6,2,8,8", "--dtype", "float64", "--mask", "padding"]
    asked += ["--mode", "weights", "--device", "cpu", "--threads", "1"]
    store = ["--store", str(tmp_path / "a store")]
    assert main(["choose", *asked, *store]) == 2
    said = capsys.readouterr().err.splitlines()
    assert f"  by what is kept in {tmp_path / 'a store'}" in said
    (advice,) = [line for line in said if line.startswith("This measures it: ")]
    command = shlex.split(advice.removeprefix("This measures it: "))
    assert command == ["fullattention", "choose", "--measure", *asked, *store]
    assert max(map(len, said)) < 250
    with pytest.raises(NothingMeasuredError) as usual:
        choice()
    assert "--store" in str(usual.value), "the one that the tests ask is not the user's"
    with pytest.raises(NothingMeasuredError) as own:
        rank(Request(shape=TOY, threads=1), known_here(Store()), ())
    assert "--store" not in str(own.value)


def test_a_disturbed_timing_ranks_only_where_there_is_no_other() -> None:
    disturbed = {"other_load": 9.0}
    quiet, loud = measured("numpy-matmul", 2e-3), measured("numpy-matmul", 9e-3, **disturbed)
    assert choice(quiet, loud).options[0].seconds == 2e-3, "an older one that was undisturbed"
    found = choice(quiet, measured("numpy-reference", 1e-3, **disturbed))
    assert found.backend == "numpy-matmul"
    other = options(found)["numpy-reference"]
    assert (other.basis, other.seconds) == ("unknown", None)
    assert "only while others disturbed it" in other.reason
    alone = choice(loud, measured("numpy-reference", 1e-3, throttlings=3))
    assert [(o.backend, o.reason) for o in alone.options] == [
        ("numpy-reference", "disturbed"),
        ("numpy-matmul", "disturbed"),
    ]
    assert "disturbed" in as_text(choice_blocks(alone))


def test_one_that_is_installed_and_broken_is_out_of_question() -> None:
    found = choice(measured("numpy-matmul", 2e-3), names=("math:pi", "numpy-matmul"))
    assert found.backend == "numpy-matmul"
    assert options(found)["math:pi"].basis == "unavailable"


def test_a_time_that_others_made_void_hides_none_from_before() -> None:
    void = measured("numpy-matmul", 1e-3, status="void", reason="others", other_load=9.0)
    assert choice(measured("numpy-matmul", 2e-3), void).options[0].seconds == 2e-3
    cheat = measured("numpy-matmul", 1e-9, status="void", reason="too fast")
    found = choice(measured("numpy-matmul", 2e-3), cheat, measured("numpy-reference", 3e-3))
    assert options(found)["numpy-matmul"].basis == "void"


def test_a_wrong_result_counts_however_disturbed_it_was() -> None:
    found = choice(
        measured("numpy-reference", 1e-3),
        measured("numpy-reference", 1e-3, status="wrong", reason="off", other_load=9.0),
        measured("numpy-matmul", 2e-3),
    )
    assert options(found)["numpy-reference"].basis == "wrong"


@pytest.mark.parametrize(
    ("threads", "status"), [("all", 0), (str(usable_cores()), 0), ("1,999", 2), ("few", 2)]
)
def test_a_choice_is_for_one_number_of_threads_or_all(
    tmp_path: Path, threads: str, status: int
) -> None:
    environment = dataclasses.replace(HERE.here, threads=usable_cores())
    Store(tmp_path).add([measured("numpy-matmul", 1e-3, environment=environment)])
    command = ["choose", "--workload", "toy", "--store", str(tmp_path), "--threads", threads]
    assert main(command) == status


def test_a_timing_with_other_threads_tells_nothing() -> None:
    with pytest.raises(NothingMeasuredError):
        choice(measured("numpy-matmul", 1e-3), threads=1)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"library_version": "0.0"}, "numpy 0.0"),
        ({"environment": dataclasses.replace(HERE.here, threads=2, suite="0.0")}, "fullattention"),
        ({"environment": dataclasses.replace(HERE.here, threads=2, gpu_driver="1")}, "driver 1"),
    ],
)
def test_a_timing_expires_with_what_it_was_measured_with(fields: dict[str, Any], what: str) -> None:
    found = choice(measured("numpy-reference", 1e-3), measured("numpy-matmul", 1e-6, **fields))
    option = options(found)["numpy-matmul"]
    assert option.basis == "unknown"
    assert option.reason.startswith("expired")
    assert what in option.reason


def test_the_newest_timing_counts() -> None:
    found = choice(measured("numpy-matmul", 1e-3), measured("numpy-matmul", 5e-3))
    assert options(found)["numpy-matmul"].seconds == 5e-3


def test_what_is_wrong_or_not_conformant_or_unavailable_is_named_and_not_ranked() -> None:
    found = choice(
        measured("numpy-reference", 1e-3, status="wrong", reason="error/bound 7"),
        measured("numpy-matmul", 1e-3),
        names=(*NAMES, "cupy-matmul"),
    )
    assert options(found)["numpy-reference"].basis == "wrong"
    assert options(found)["numpy-reference"].reason == "error/bound 7"
    assert options(found)["cupy-matmul"].basis == "unavailable"
    assert found.options[0].backend == "numpy-matmul"
    failing = choice(
        measured("numpy-reference", 1e-3, status="not run", conformant=False, reason="fails M5"),
        measured("numpy-matmul", 1e-3),
    )
    assert options(failing)["numpy-reference"].basis == "not conformant"


def test_what_lacks_a_capability_is_unsupported_with_its_reason() -> None:
    with pytest.raises(NothingMeasuredError, match="gradient: NumPy does not differentiate"):
        choice(measured("numpy-matmul", 1e-3, mode="training"), mode="training")
    with pytest.raises(NothingMeasuredError, match="takes arrays of numpy, not of torch"):
        choice(measured("numpy-matmul", 1e-3), library="torch")


def test_memory_over_the_limit_or_unmeasured_is_out() -> None:
    found = choice(
        measured("numpy-reference", 1e-3, peak_bytes=2_000),
        measured("numpy-matmul", 2e-3, peak_bytes=500),
        max_memory=1_000,
    )
    assert found.backend == "numpy-matmul"
    assert "takes 2000 bytes, the limit is 1000" in options(found)["numpy-reference"].reason
    untold = choice(
        measured("numpy-reference", 1e-3),
        measured("numpy-matmul", 2e-3, peak_bytes=500),
        max_memory=1_000,
    )
    assert "was not measured" in options(untold)["numpy-reference"].reason


def test_close_times_are_tied_by_quartiles_and_by_comparison() -> None:
    close = (measured("numpy-reference", 1.01e-3), measured("numpy-matmul", 1e-3))
    assert options(choice(*close))["numpy-reference"].tied
    verdicts = known(*close, comparisons=(compared("numpy-reference", "slower"),))
    found = rank(Request(shape=TOY, threads=THREADS), verdicts, NAMES)
    assert not options(found)["numpy-reference"].tied
    verdicts = known(*close, comparisons=(compared("numpy-reference", "not settled"),))
    assert options(rank(Request(shape=TOY, threads=THREADS), verdicts, NAMES))[
        "numpy-reference"
    ].tied


def compared(backend: str, verdict: Any) -> Comparison:
    return Comparison(
        backend=backend,
        against="numpy-matmul",
        workload="toy",
        shape=TOY,
        dtype="float32",
        mask="none",
        mode="forward",
        device="cpu",
        ratio=1.01,
        low=1.0,
        high=1.02,
        verdict=verdict,
        smallest_difference=0.02,
        blocks=9,
        processes=2,
        process_difference=0.01,
        environment=dataclasses.replace(HERE.here, threads=THREADS),
    )


def test_an_unmeasured_shape_is_interpolated_and_says_so() -> None:
    shapes = [Sizes(B, L, L, 2, E, E) for B, L, E in itertools.product((8, 64), (8, 96), (8, 64))]

    def seconds(backend: str, shape: Sizes) -> float:
        work = 1e-9 * shape.B * shape.L * shape.S * shape.E
        return work * (2.0 if backend == "numpy-reference" else 1.0)

    timings = [
        measured(name, seconds(name, shape), shape=shape) for name in NAMES for shape in shapes
    ]
    found = choice(*timings, shape=Sizes(16, 42, 42, 2, 16, 16))
    assert found.backend == "numpy-matmul"
    best = found.options[0]
    assert best.basis == "interpolated"
    assert best.model_error is not None
    assert best.reason == "told from 8 other shapes"


def test_too_few_other_shapes_leave_a_backend_unknown() -> None:
    with pytest.raises(NothingMeasuredError, match="too few others were: 1"):
        choice(measured("numpy-matmul", 1e-3), shape=Sizes(9, 6, 6, 2, 8, 8))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"shape": (8, 6, 6)}, "six sizes"),
        ({"shape": (8, 6, 6, 2, 8, 0)}, "at least 1"),
        ({"shape": TOY, "dtype": "int8"}, "dtype is 'int8'"),
        ({"shape": TOY, "threads": 0}, "threads is 0"),
        ({"shape": (8, 6, 7, 2, 8, 8), "mask": "causal"}, "mask is 'causal'"),
    ],
)
def test_a_senseless_request_is_refused(argument: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fullattention.choose(**argument)


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


def test_the_command_line_refuses_to_guess(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["choose", "--workload", "toy", "--store", str(tmp_path)]) == 2
    assert "nothing was measured that tells of" in capsys.readouterr().err


def test_results_are_listed_merged_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert main(["results", "list", "--store", first]) == 0
    assert "Nothing yet" in capsys.readouterr().out
    Store(Path(first)).add([measured("numpy-matmul", 1e-3)])
    assert main(["results", "merge", first, "--store", second]) == 0
    assert "1 new records" in capsys.readouterr().out
    assert main(["results", "list", "--store", second]) == 0
    assert HERE.key[:20] in capsys.readouterr().out
    table = tmp_path / "table.csv"
    assert main(["results", "export", str(table), "--store", second]) == 0
    assert "numpy-matmul" in table.read_text()
    assert main(["results", "export", str(tmp_path / "table.txt"), "--store", second]) == 2


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


def test_a_marked_part_of_a_document_is_replaced_and_no_other() -> None:
    document = "before\n<!-- begin regret -->\nold\n<!-- end regret -->\nafter\n"
    assert with_marked(document, "regret", "new\n") == (
        "before\n<!-- begin regret -->\n\nnew\n\n<!-- end regret -->\nafter\n"
    )
    with pytest.raises(ValueError, match="lacks <!-- begin other -->"):
        with_marked(document, "other", "new")


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
    main(["bench", "--backend", "numpy-matmul", *files, "--store", str(store.folder)])
    assert "records are kept" in capsys.readouterr().out
    # On a busy machine the figure may be void; it is kept all the same.
    (kept,) = store.timings(HERE.key).records
    assert (kept.backend, kept.workload, kept.mode) == ("numpy-matmul", "mine", "weights")
    assert tuple(kept.shape) == TOY
