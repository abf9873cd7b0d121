"""The choice of a backend: ranked by what was measured, with a reason for each that is not."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fullattention
from fullattention.backends import load
from fullattention.backends.interface import Sizes
from fullattention.choosing.choice import NothingMeasuredError, rank
from fullattention.choosing.hardware_key import hardware_key
from fullattention.choosing.known import known_here
from fullattention.choosing.request import Request
from fullattention.choosing.store import Store
from fullattention.cli import main
from fullattention.machine.hardware import usable_cores
from fullattention.records import Environment, Option, Timing
from fullattention.reports.blocks import as_text
from fullattention.reports.choices import choice_blocks
from tests.timings import (
    HERE,
    NAMES,
    NOT_RUN,
    THREADS,
    TOY,
    choice,
    compared,
    known,
    measured,
    options,
    ranked,
    timing,
)


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
    (tmp_path / "a store").mkdir()
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


def test_an_incomplete_time_is_not_chosen_by_and_hides_none_from_before() -> None:
    reason = "the run was ended during its contest"
    incomplete = measured("numpy-matmul", 1e-3, status="incomplete", reason=reason)
    assert choice(measured("numpy-matmul", 2e-3), incomplete).options[0].seconds == 2e-3
    found = options(choice(measured("numpy-reference", 2e-3), incomplete))["numpy-matmul"]
    assert (found.basis, found.seconds, found.reason) == ("unknown", None, reason)


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


def test_a_timing_expires_with_the_variables_that_were_set() -> None:
    def by(**variables: str) -> Option:
        environment = dataclasses.replace(HERE.here, threads=THREADS, variables=variables)
        timings = (measured("numpy-matmul", 1e-3, environment=environment),)
        return options(choice(*timings, measured("numpy-reference", 1.0)))["numpy-matmul"]

    set_here = dict(HERE.here.variables)
    assert by(**set_here, MKL_CBWR="COMPATIBLE").reason == (
        "expired: measured with MKL_CBWR COMPATIBLE, here is unset"
    )
    # Threads are matched by their number, and torch sets where it keeps what it compiles.
    harmless = {"OMP_NUM_THREADS": "7", "TORCHINDUCTOR_CACHE_DIR": "/tmp/somewhere"}
    assert by(**{**set_here, **harmless}).basis == "measured"


def test_what_was_not_run_says_why_with_the_date_and_not_that_it_expired() -> None:
    for version in ("", load("numpy-reference").version):
        found = choice(
            measured("numpy-matmul", 1e-3),
            measured(
                "numpy-reference", 1.0, **NOT_RUN, library_version=version, reason="it compiles"
            ),
        )
        option = options(found)["numpy-reference"]
        assert (option.basis, option.reason) == ("not run", f"it compiles (as of {TODAY})")


TODAY = HERE.here.time[:10]


def test_a_timing_counts_though_the_backend_was_left_out_later() -> None:
    left_out = measured("numpy-matmul", 1e-3, **NOT_RUN, reason="it compiles for minutes")
    assert options(choice(measured("numpy-matmul", 5e-3), left_out))["numpy-matmul"].seconds == 5e-3
    failing = {**NOT_RUN, "conformant": False}
    last = measured("numpy-matmul", 1e-3, **failing, reason="fails M5")
    found = choice(measured("numpy-matmul", 5e-3), last, left_out, measured("numpy-reference", 1.0))
    assert options(found)["numpy-matmul"].basis == "not conformant"


def test_what_was_not_even_loaded_for_a_shape_may_be_told_from_others() -> None:
    shapes = [Sizes(B, 8, 8, 2, 8, 8) for B in (1, 2, 4, 16, 32)]
    timings = [measured("numpy-matmul", 1e-4 * s.B, shape=s) for s in shapes]
    asked = shapes[0]._replace(B=8)
    missing = measured("numpy-matmul", 1.0, **NOT_RUN, shape=asked, library_version="")
    assert choice(*timings, missing, shape=asked).options[0].basis == "interpolated"
    large = measured("numpy-matmul", 1.0, **NOT_RUN, shape=asked, reason="too large")
    with pytest.raises(NothingMeasuredError, match="too large"):
        choice(*timings, large, shape=asked)


def test_the_nearest_number_of_threads_will_do_where_it_is_said_so() -> None:
    def by(threads: int, seconds: float) -> Timing:
        environment = dataclasses.replace(HERE.here, threads=threads)
        return measured("numpy-matmul", seconds, environment=environment)

    timings = (by(1, 1.0), by(2, 2.0), by(8, 8.0))
    for threads, nearest in ((1, 1), (3, 2), (6, 8), (64, 8)):
        found = choice(*timings, threads=threads, nearest_threads=True)
        assert found.options[0].seconds == nearest
        assert (found.threads, found.timed_threads) == (
            threads,
            None if threads == nearest else nearest,
        )
        said = f"with {threads} threads, told by timings with {nearest}: the nearest that there are"
        assert (said in as_text(choice_blocks(found)).replace("\n  ", " ")) == (threads != nearest)


def test_what_was_timed_for_a_call_is_known_without_loading_it() -> None:
    held = known(
        timing("numpy-matmul", library="numpy"),
        timing("torch-sdpa", library="torch"),
        timing("torch-bmm"),  # an old record
        timing("torch-einsum", library="torch", mode="weights"),
        timing("jax", **NOT_RUN),
    )
    wanted = Request(shape=TOY, threads=1, library="torch")
    assert held.timed_for(wanted) == ["torch-sdpa", "torch-bmm"]
    anything = Request(shape=TOY, threads=1)
    assert held.timed_for(anything) == ["numpy-matmul", "torch-sdpa", "torch-bmm"]


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
    assert "takes 1.95 KiB, the limit is 0.977 KiB" in options(found)["numpy-reference"].reason
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


def test_within_a_run_ratios_rank_and_not_medians_of_different_blocks() -> None:
    """A backend that was dropped early has its median from other moments than the best."""
    dropped = compared("numpy-reference", "slower", ratio=1.5)
    timings = [measured("numpy-matmul", 2.0), measured("numpy-reference", 1.5)]
    found = ranked(timings, dropped)
    assert found.backend == "numpy-matmul"
    other = options(found)["numpy-reference"]
    told = [other.seconds, other.low, other.high, other.ratio]
    assert told == pytest.approx([3.0, 3.0 * 0.99, 3.0 * 1.01, 1.5])
    assert not other.tied


def test_a_default_stays_where_nothing_measured_is_known_to_be_faster() -> None:
    timings = [measured("numpy-matmul", 1.0), measured("numpy-reference", 1.04)]
    for verdict, taken in (("not settled", "numpy-reference"), ("slower", "numpy-matmul")):
        found = compared("numpy-reference", verdict, ratio=1.04)
        assert ranked(timings, found, baseline="numpy-reference").backend == taken
        assert ranked(timings, found).backend == "numpy-matmul"


def test_ratios_to_the_best_count_and_not_those_to_the_baseline() -> None:
    baseline = compared("numpy-reference", "faster", against="torch-sdpa", ratio=0.5)
    best = compared("numpy-reference", "slower", ratio=1.5)
    timings = [measured("numpy-matmul", 2.0), measured("numpy-reference", 1.5)]
    environment = dataclasses.replace(HERE.here, threads=THREADS)
    timings.append(timing("torch-sdpa", median=9.0, environment=environment))
    for comparisons in ((baseline, best), (best, baseline)):
        assert options(ranked(timings, *comparisons))["numpy-reference"].seconds == 3.0


def test_between_runs_medians_rank_and_no_comparison_counts() -> None:
    found = compared("numpy-reference", "slower", ratio=1.5)
    later = dataclasses.replace(HERE.here, threads=THREADS, time="2999-01-01T00:00:00+00:00")
    timings = [measured("numpy-matmul", 2.0), measured("numpy-reference", 1.5)]
    timings.append(measured("numpy-reference", 1.99, environment=later))
    choice = ranked(timings, found)
    assert choice.backend == "numpy-reference"
    assert options(choice)["numpy-matmul"].tied, "by overlap: their verdict is of an earlier run"
    other_workload = dataclasses.replace(found, workload="another")
    assert ranked(timings[:2], other_workload).backend == "numpy-reference"


@pytest.mark.parametrize(
    ("verdict", "tied"), [("faster", False), ("tie", True), ("not settled", True)]
)
def test_a_comparison_tells_of_both_backends(verdict: str, tied: bool) -> None:
    """The best of the contest is not always the first by ratio."""
    timings = [measured("numpy-matmul", 1.0), measured("numpy-reference", 1.01)]
    found = ranked(timings, compared("numpy-reference", verdict, ratio=0.99))
    assert found.backend == "numpy-reference"
    assert options(found)["numpy-matmul"].tied == tied


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


def test_an_unmeasured_shape_is_interpolated_by_ratios_too() -> None:
    shapes = [Sizes(B, 8, 8, 2, 8, 8) for B in (1, 2, 4, 8, 16, 32)]
    timings = [measured("numpy-matmul", 2e-4 * s.B, shape=s, workload=f"b{s.B}") for s in shapes]
    timings += [
        measured("numpy-reference", 1e-4 * s.B, shape=s, workload=f"b{s.B}") for s in shapes
    ]
    found = [
        compared("numpy-reference", "slower", ratio=2.0, shape=s, workload=f"b{s.B}")
        for s in shapes
    ]
    choice = ranked(timings, *found, shape=shapes[0]._replace(B=6))
    assert choice.backend == "numpy-matmul"
    assert options(choice)["numpy-reference"].ratio == pytest.approx(2.0, rel=0.01)


def test_too_few_other_shapes_leave_a_backend_unknown() -> None:
    with pytest.raises(NothingMeasuredError, match="too few others were: 1"):
        choice(measured("numpy-matmul", 1e-3), shape=Sizes(9, 6, 6, 2, 8, 8))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"shape": (8, 6, 6)}, "six sizes"),
        ({"shape": (8, 6, 6, 2, 8, 0)}, "at least 1"),
        ({"shape": 8}, "shape is 8: six sizes"),
        ({"shape": (8.5, 6, 6, 2, 8, 8)}, "shape is .*: six sizes .* whole numbers"),
        ({"shape": "8,6,6,2,8,8"}, "shape is '8,6,6,2,8,8': six sizes"),
        ({"shape": TOY, "dtype": "int8"}, "dtype is 'int8'"),
        ({"shape": TOY, "dtype": np.int8}, "dtype is 'int8'"),
        ({"shape": TOY, "threads": 0}, "threads is 0"),
        ({"shape": TOY, "threads": 1.5}, "threads is 1.5: a whole number"),
        ({"shape": TOY, "mask": "diagonal"}, "mask is 'diagonal': one of none, causal, padding"),
        ({"shape": TOY, "mask": None}, "mask is None: one of"),
        ({"shape": TOY, "mode": "backward"}, "mode is 'backward': one of forward"),
        ({"shape": TOY, "max_memory": math.inf}, "max_memory is inf: a whole number"),
        ({"shape": TOY, "max_memory": math.nan}, "max_memory is nan: a whole number"),
        ({"shape": TOY, "max_memory": -1}, "max_memory is -1: at least 1 byte"),
        ({"shape": TOY, "backends": "torch-sdpa"}, "backends is 'torch-sdpa': a list of names"),
        ({"shape": (8, 6, 7, 2, 8, 8), "mask": "causal"}, "mask is 'causal'"),
        ({"shape": TOY, "backends": ["numpy-matmul", "nonsense"]}, "backend is 'nonsense': one of"),
    ],
)
def test_a_senseless_request_is_refused(argument: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fullattention.choose(**argument)


@pytest.mark.parametrize("dtype", [np.float32, np.dtype("float32"), "torch.float32"])
def test_a_dtype_may_be_that_of_a_library(tmp_path: Path, dtype: object) -> None:
    Store(tmp_path).add([measured("numpy-matmul", 1e-3, environment=all_cores())])
    assert fullattention.choose(TOY, dtype=dtype, store=Store(tmp_path)).dtype == "float32"


def all_cores() -> Environment:
    return dataclasses.replace(HERE.here, threads=usable_cores())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--max-memory", "inf"], "max-memory is inf: a finite number of GiB, one byte or more"),
        (["--max-memory", "nan"], "max-memory is nan"),
        (["--max-memory=-1"], "max-memory is -1"),
        (["--max-memory", "0"], "max-memory is 0"),
        (["--threads", "0"], "threads is '0': a whole number from 1 on, or `all`"),
    ],
)
def test_a_senseless_option_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["choose", "--workload", "toy", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_more_memory_than_a_float_holds_bytes_of_is_no_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["choose", "--workload", "toy", "--store", str(tmp_path), "--max-memory", "1e308"]
    assert main(command) == 2
    assert "nothing" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["choose", "--workload", "toy"], ["results", "list"]])
def test_a_store_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    for name, what in (("file", "that is a file"), ("nowhere", "there is no such folder")):
        assert main([*command, "--store", str(tmp_path / name)]) == 2
        assert f"store is {tmp_path / name}: {what}" in capsys.readouterr().err


def refusal(*timings: Timing, **request: Any) -> str:
    with pytest.raises(NothingMeasuredError) as refused:
        choice(*timings, **request)
    return str(refused.value)


def test_what_fits_into_no_memory_says_so_and_is_measured_with_the_same_limits() -> None:
    large = measured("numpy-matmul", 1e-3, peak_bytes=3 * 2**20)
    said = refusal(large, max_memory=2**19, deterministic=True)
    assert said.startswith("no backend that was measured fits into 512 KiB: forward")
    assert "numpy-matmul: it takes 3.00 MiB, the limit is 512 KiB" in said
    (advice,) = [line for line in said.splitlines() if "--measure" in line]
    options = shlex.split(advice)
    assert float(options[options.index("--max-memory") + 1]) * 2**30 == 2**19
    assert "--deterministic" in options


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"threads": 9999}, "threads is 9999, this process may use"),
        ({"mode": "host"}, "mode host is for other devices than the CPU"),
        ({"device": "abacus"}, "no backend can run it on device abacus"),
        ({"mode": "training"}, "no backend can run it on device cpu"),  # NumPy's alone are asked
    ],
)
def test_no_command_is_offered_that_would_be_refused(request_: dict[str, Any], why: str) -> None:
    said = refusal(**request_)
    assert f"It cannot be measured here: {why}" in said
    assert "--measure" not in said


def test_the_offered_command_leaves_out_what_cannot_run() -> None:
    asked = ("numpy-matmul", "cupy-matmul")
    said = refusal(names=asked, backends=asked)
    assert "--backend numpy-matmul" in said
    assert "--backend cupy-matmul" not in said
    assert "  not available here: cupy-matmul" in said.splitlines()


def test_what_is_kept_of_the_same_cpu_with_other_cores_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    other = dataclasses.replace(HERE.here, cores=HERE.here.cores + 1)
    store.add(
        measured("numpy-matmul", 1e-3, environment=environment)
        for environment in (other, dataclasses.replace(other, cpu="Another CPU"))
    )
    with pytest.raises(NothingMeasuredError) as refused:
        fullattention.choose(TOY, store=store)
    line = f"  where this CPU has, with other cores or GPU: {hardware_key(other)}"
    assert line in str(refused.value).splitlines()


def test_a_weak_choice_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullattention.reports.choices.BASELINE", "numpy-reference")
    alone = choice(measured("numpy-matmul", 1e-3))
    said = as_text(choice_blocks(alone))
    assert "numpy-matmul is the only one measured: others may be faster." in said
    assert "numpy-reference, which others are compared with, has no time here." in said
    both = choice(*(measured(name, 1e-3) for name in NAMES), names=NAMES)
    assert "only one" not in as_text(choice_blocks(both))
    assert "compared with" not in as_text(choice_blocks(both))
    one_thread = dataclasses.replace(both, threads=1)
    assert "on cpu with 1 thread\n" in as_text(choice_blocks(one_thread))


def test_what_is_not_there_takes_one_line() -> None:
    names = ("numpy-matmul", "math:pi", "nonsense")
    said = as_text(choice_blocks(choice(measured("numpy-matmul", 1e-3), names=names)))
    assert "unavailable here: math:pi, nonsense" in said


def test_no_time_is_told_of_sizes_beyond_the_measured_ones() -> None:
    """Four sizes of one axis alone told of attention 2048 long that it takes a microsecond."""
    timings = [
        measured("numpy-matmul", 1e-6 * B, shape=Sizes(B, 42, 42, 4, 4, 4))
        for B in (896, 448, 224, 112)
    ]
    near = choice(*timings, shape=Sizes(300, 42, 42, 4, 4, 4)).options[0]
    assert near.basis == "interpolated"
    said = refusal(*timings, shape=Sizes(1, 2048, 2048, 8, 64, 64))
    assert "lies beyond those that were: B * H is 8, the measured shapes have 448 to 3584" in said


def test_a_time_that_is_told_too_widely_is_none() -> None:
    """Times that follow nothing."""
    timings = [
        measured("numpy-matmul", seconds, shape=Sizes(B, 42, 42, 4, 4, 4))
        for B, seconds in ((896, 1e-6), (448, 1e-2), (224, 1e-6), (112, 1e-2))
    ]
    assert "tell its time only within a factor of" in refusal(
        *timings, shape=Sizes(300, 42, 42, 4, 4, 4)
    )


def test_a_store_by_its_path_alone_is_refused_with_what_is_wanted() -> None:
    with pytest.raises(ValueError, match=r"store is 'timings': a choosing.Store, such as"):
        fullattention.choose((8, 6, 6, 2, 8, 8), store="timings")  # type: ignore[arg-type]
