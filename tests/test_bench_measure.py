"""What becomes of a workload: by workers that the tests play."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fullattention.bench.ceilings import Rates
from fullattention.bench.conditions import by_chance
from fullattention.bench.entry import Candidate
from fullattention.bench.gpu_figures import GpuFigures
from fullattention.bench.inputs import DRAWN, SEED, InputPool
from fullattention.bench.measure import THOROUGH, Effort, Measured, measure
from fullattention.bench.modes import make_call
from fullattention.bench.server import Ready, Turn
from fullattention.bench.spot_check import sample
from fullattention.bench.worker import OutError, RefusedError
from fullattention.bench.workloads import parse_shape
from fullattention.conformance.subject import declaration_of
from fullattention.records import Comparison, Result, Timing
from tests.bench_fakes import ENVIRONMENT, FakeClock, subject, verdict

SMALL = parse_shape("2,5,7,3,4,6")

EFFORT = Effort(contest=1.0, warm_up=0.0)

RATES = Rates(copy={"16384": 1e9, "67108864": 1e9}, matmul=1e9, exp=1e9)


class PlayedWorker:
    """Answers as a right candidate of a known speed, but for what it is told to do instead."""

    def __init__(
        self, pool: InputPool, seconds: float, seed: int = 1, **instead: Callable[[], Any]
    ) -> None:
        self.pool = pool
        self.seconds = seconds
        self.instead = instead
        self.random = np.random.default_rng(seed)
        self.clock = FakeClock()
        self.asked: list[str] = []
        self.limit: float | None = None
        """Seconds that one call may take, as it was told."""
        self.device_seconds: float | None = None
        self.figures = GpuFigures()
        self.cores = 1.0
        """That it keeps busy."""
        self.factor = 1.0
        """That its outputs are multiplied with."""

    def ask(self, name: str, *arguments: Any, seconds: float) -> Any:
        self.asked.append(name)
        if name in self.instead and (answer := self.instead[name]()) is not None:
            return answer
        if name == "prepare":
            *_, self.limit = arguments
            first_call = 0.5 if self.limit is None else None
            return Ready(first_call=first_call, calls_per_turn=4, peak_bytes=1000)
        if name == "gpu_figures":
            assert arguments == (EFFORT.longest_call,)
            return self.figures
        return self.turn(*arguments) if name == "turn" else ()

    def turn(self, look: int) -> Turn:
        found, number = None, 1
        if look != DRAWN:
            call = make_call(subject(), self.pool.workload)
            results = call(self.pool.sets(self.pool.renewed(look))[number])
            results = results._replace(out=self.factor * results.out)
            found = sample(self.pool.workload, results, look)
        self.clock.now += 0.02
        noise = float(np.exp(0.001 * self.random.standard_normal()))
        return Turn(
            self.seconds * noise,
            device_seconds=self.device_seconds,
            wall=0.02,
            own=0.02 * self.cores,
            others=(0.07, -0.01)[self.asked.count("turn") % 2],  # 0.03, as coarse ticks tell it
            sample=found,
            inputs=number,
        )


def played(pool: InputPool, seconds: float) -> list[PlayedWorker]:
    """The processes of one candidate."""
    return [PlayedWorker(pool, seconds, seed) for seed in range(4)]


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose clock does not change."""
    monkeypatch.setattr("fullattention.bench.conditions.pace", lambda: 1.0)


@pytest.fixture
def pool(tmp_path: Path) -> InputPool:
    made = InputPool(tmp_path / "inputs", SMALL)
    made.write(SEED)
    return made


def nothing(timings: Sequence[Timing]) -> None:
    raise AssertionError("nothing interrupts it")


def run(
    pool: InputPool,
    rates: Rates | None = None,
    salvage: Callable[[Sequence[Timing]], None] = nothing,
    **workers: PlayedWorker | list[PlayedWorker],
) -> Measured:
    """A contest between candidates of a process or several each, all by one clock."""
    clock = FakeClock()
    candidates = [
        Candidate(
            dataclasses.replace(declaration_of(subject()), name=name.replace("_", "-")),
            processes if isinstance(processes, list) else [processes],
            verdict(),
        )
        for name, processes in workers.items()
    ]
    for worker in (worker for candidate in candidates for worker in candidate.workers):
        assert isinstance(worker, PlayedWorker)
        worker.clock = clock
    return measure(
        pool,
        candidates,
        environment=ENVIRONMENT,
        effort=EFFORT,
        rates=rates,
        salvage=salvage,
        clock=clock,
    )


def raising(error: BaseException, after: int = 0) -> Callable[[], Any]:
    count = 0

    def answer() -> None:
        nonlocal count
        count += 1
        if count > after:
            raise error

    return answer


def by_pair(measured: Measured) -> dict[tuple[str, str], Comparison]:
    return {(one.backend, one.against): one for one in measured.comparisons}


def test_a_timing_tells_its_turns_and_what_was_called(pool: InputPool) -> None:
    timing = run(pool, a=PlayedWorker(pool, 0.004)).timings["a"]
    assert timing.status == "timed"
    assert timing.median == pytest.approx(0.004, rel=0.01)
    figures = (timing.minimum, timing.lower_quartile, timing.median, timing.upper_quartile)
    assert sorted(figure for figure in figures if figure) == list(figures)
    assert (timing.blocks, timing.calls_per_turn) == (8, 4)
    assert timing.other_load == pytest.approx((0.24 - by_chance(8, ENVIRONMENT.cores)) / 0.16)
    assert (timing.peak_bytes, timing.seed) == (1000, SEED)
    assert (timing.own_load, timing.clock_drift, timing.gpu_others) == (1.0, 0.0, None)
    assert timing.shape == (2, 5, 7, 3, 4, 6)
    assert (timing.workload, timing.dtype, timing.mask) == (SMALL.name, "float32", "none")
    assert (timing.mode, timing.verdict_level, timing.conformant) == ("forward", "quick", True)
    assert timing.error_over_bound is not None
    assert 0 < timing.error_over_bound <= 1
    assert (timing.floor, timing.share, timing.device_median) == (None, None, None)


def test_a_timing_is_of_the_turns_of_all_processes(pool: InputPool) -> None:
    processes = [PlayedWorker(pool, seconds) for seconds in (0.004, 0.005)]
    measured = run(pool, a=processes)
    timing = measured.timings["a"]
    assert (timing.processes, timing.blocks) == (2, 8)
    assert [worker.asked.count("turn") for worker in processes] == [8, 8]
    assert len(measured.turns["a"]) == 16
    assert timing.minimum == pytest.approx(0.004, rel=0.01)
    assert timing.median == pytest.approx(0.0045, rel=0.02)


def test_the_peak_is_that_of_the_first_process(pool: InputPool) -> None:
    readies = [Ready(first_call=None, calls_per_turn=4 + n, peak_bytes=n) for n in (1, 2)]
    processes = [PlayedWorker(pool, 0.004, prepare=lambda one=one: one) for one in readies]  # type: ignore[misc]
    timing = run(pool, a=processes).timings["a"]
    assert (timing.calls_per_turn, timing.peak_bytes) == (5, 1)


def test_the_first_call_is_that_of_a_process_that_made_none_before(pool: InputPool) -> None:
    """The first process was judged, and tries how long a call takes."""
    processes = [PlayedWorker(pool, 0.004) for _ in range(3)]
    assert run(pool, a=processes).timings["a"].first_call == 0.5
    assert run(pool, a=PlayedWorker(pool, 0.004)).timings["a"].first_call is None


def test_a_wrong_output_of_any_process_is_found(pool: InputPool) -> None:
    processes = [PlayedWorker(pool, 0.001) for _ in range(3)]
    processes[2].factor = 1.001
    assert run(pool, a=processes).timings["a"].status == "wrong"
    assert processes[2].asked.count("turn") == 1


def test_inputs_that_any_process_changed_make_a_timing_wrong(pool: InputPool) -> None:
    processes = [PlayedWorker(pool, 0.001) for _ in range(2)]
    processes[1].instead["changed_inputs"] = lambda: ("keys",)
    assert run(pool, a=processes).timings["a"].reason == "it changed its keys"


@pytest.mark.parametrize(("when", "after"), [("prepare", 0), ("turn", 0), ("turn", 3)])
def test_one_process_that_ends_takes_its_backend_out_and_the_inputs_are_let_go(
    pool: InputPool, when: str, after: int
) -> None:
    processes = [PlayedWorker(pool, 0.001) for _ in range(2)]
    processes[1].instead[when] = raising(OutError("because"), after)
    measured = run(pool, odd=processes, right=[PlayedWorker(pool, 0.002) for _ in range(2)])
    assert measured.timings["odd"].reason == "because"
    assert measured.timings["right"].status == "timed"
    assert measured.broken == {"odd": "because"}
    assert [worker.asked[-1] for worker in processes] == ["release"] * 2


def test_processes_that_differ_name_no_winner_and_that_is_told(pool: InputPool) -> None:
    fast, slow = ([PlayedWorker(pool, s) for s in (0.0010, 0.0012)] for _ in range(2))
    slow[0].seconds = 0.0011
    (comparison,) = run(pool, a=fast, b=slow).comparisons
    assert comparison.verdict == "not settled"
    assert comparison.processes == 2
    assert comparison.process_difference == pytest.approx(0.12, abs=0.04)


def test_few_backends_have_more_processes_each_so_that_their_differences_are_known() -> None:
    usual, thorough = Effort(), THOROUGH
    assert [usual.processes_of_each(n) for n in (1, 2, 3, 4, 6, 13)] == [2, 4, 3, 3, 2, 2]
    assert [thorough.processes_of_each(n) for n in (1, 2, 3, 13)] == [3, 4, 3, 3]


def test_throttling_during_the_contest_is_told(
    pool: InputPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([5, 7])
    monkeypatch.setattr("fullattention.machine.hardware.throttlings", lambda: next(counts))
    assert run(pool, a=PlayedWorker(pool, 0.004)).timings["a"].throttlings == 2


def test_one_that_uses_far_more_cores_than_it_was_told_to_is_void(pool: InputPool) -> None:
    greedy, right = PlayedWorker(pool, 0.001), PlayedWorker(pool, 0.002)
    greedy.cores = ENVIRONMENT.threads + 1
    measured = run(pool, greedy=greedy, right=right)
    timing = measured.timings["greedy"]
    assert timing.status == "void"
    assert timing.median == pytest.approx(0.001, rel=0.01)
    assert timing.reason == "it kept 3.0 cores busy, and was told to use 2"
    assert measured.timings["right"].status == "timed"
    assert not measured.comparisons


def test_the_devices_own_time_is_told_beside_the_time_that_is_waited(pool: InputPool) -> None:
    worker = PlayedWorker(pool, 0.004)
    worker.device_seconds = 0.003
    timing = run(pool, a=worker).timings["a"]
    assert timing.device_median == 0.003
    assert timing.median == pytest.approx(0.004, rel=0.01)


def test_a_gpus_figures_are_those_of_the_first_process_after_the_turns(pool: InputPool) -> None:
    processes = played(pool, 0.004)
    for number, process in enumerate(processes, 1):
        process.figures = GpuFigures(graph_seconds=number, cold_seconds=2.0, joules=3.0)
    timing = run(pool, a=processes).timings["a"]
    assert (timing.graph_seconds, timing.cold_seconds, timing.joules) == (1, 2.0, 3.0)
    assert [process.asked.count("gpu_figures") for process in processes] == [1, 0, 0, 0]
    asked = processes[0].asked
    after = {"gpu_figures", "changed_inputs", "release"}
    assert after.issuperset(asked[asked.index("gpu_figures") :])


@pytest.mark.parametrize("error", [OutError("hung"), RefusedError("out of memory")])
def test_figures_that_could_not_be_taken_cost_no_time_that_was(
    pool: InputPool, error: Exception
) -> None:
    worker = PlayedWorker(pool, 0.004, gpu_figures=raising(error))
    measured = run(pool, a=worker)
    timing = measured.timings["a"]
    assert (timing.status, timing.reason) == ("timed", f"no figures of the GPU: {error}")
    assert timing.median == pytest.approx(0.004, rel=0.01)
    assert (timing.graph_seconds, timing.cold_seconds, timing.joules) == (None, None, None)
    assert not measured.broken
    assert worker.asked[-1] == "release"


def test_what_is_wrong_has_no_figures_of_a_gpu(pool: InputPool) -> None:
    worker = PlayedWorker(pool, 0.004, changed_inputs=lambda: ("keys",))
    run(pool, a=worker)
    assert "gpu_figures" not in worker.asked


def test_each_is_compared_with_the_best_and_with_the_baseline(pool: InputPool) -> None:
    measured = run(
        pool,
        fast=played(pool, 0.001),
        torch_sdpa=played(pool, 0.002),
        slow=played(pool, 0.008),
    )
    pairs = by_pair(measured)
    assert set(pairs) == {
        ("torch-sdpa", "fast"),
        ("slow", "fast"),
        ("fast", "torch-sdpa"),
        ("slow", "torch-sdpa"),
    }
    assert pairs["slow", "fast"].ratio == pytest.approx(8, rel=0.01)
    assert pairs["slow", "fast"].verdict == "slower"
    assert pairs["fast", "torch-sdpa"].verdict == "faster"
    one = pairs["torch-sdpa", "fast"]
    assert one.low < one.ratio < one.high
    assert measured.over_baseline("fast") == pairs["fast", "torch-sdpa"]
    assert measured.over_baseline("torch-sdpa") is None


def test_where_the_baseline_is_best_it_is_the_only_measure(pool: InputPool) -> None:
    measured = run(pool, torch_sdpa=PlayedWorker(pool, 0.001), b=PlayedWorker(pool, 0.002))
    assert set(by_pair(measured)) == {("b", "torch-sdpa")}


def test_the_turns_are_handed_on(pool: InputPool) -> None:
    measured = run(pool, a=played(pool, 0.001), b=played(pool, 0.01))
    assert len(measured.turns["a"]) == 8 * 4
    assert len(measured.turns["b"]) == 4 * 4
    assert np.median(measured.turns["b"]) == measured.timings["b"].median


def test_a_small_error_in_a_timed_call_makes_it_wrong_and_takes_it_out(pool: InputPool) -> None:
    wrong = PlayedWorker(pool, 0.001)
    wrong.factor = 1.001
    measured = run(pool, wrong=wrong, right=PlayedWorker(pool, 0.002))
    timing = measured.timings["wrong"]
    assert timing.status == "wrong"
    assert timing.error_over_bound is not None
    assert timing.error_over_bound > 1
    assert "times its bound" in timing.reason
    assert wrong.asked.count("turn") == 1
    assert measured.timings["right"].status == "timed"
    assert not measured.comparisons
    assert not measured.broken


def test_nan_makes_a_timing_wrong_and_leaves_no_number_that_json_lacks(pool: InputPool) -> None:
    wrong = PlayedWorker(pool, 0.001)
    wrong.factor = np.nan
    timing = run(pool, wrong=wrong).timings["wrong"]
    assert (timing.status, timing.error_over_bound) == ("wrong", None)
    assert "NaN" in timing.reason


def test_an_error_in_a_later_turn_is_found_too(pool: InputPool) -> None:
    worker = PlayedWorker(pool, 0.001)

    def spoil() -> None:
        worker.factor = 1.0 if worker.asked.count("turn") < 3 else 1.01

    worker.instead["turn"] = spoil
    assert run(pool, late=worker).timings["late"].status == "wrong"


def test_writing_into_the_inputs_makes_a_timing_wrong(pool: InputPool) -> None:
    worker = PlayedWorker(pool, 0.001, changed_inputs=lambda: ("keys",))
    measured = run(pool, writes=worker, right=PlayedWorker(pool, 0.002))
    timing = measured.timings["writes"]
    assert (timing.status, timing.reason) == ("wrong", "it changed its keys")
    assert not measured.comparisons


def test_what_is_not_conformant_is_not_called(pool: InputPool) -> None:
    failed = [
        Result(check=name, requirement="C1", section="core", dtype="float32", status="failed")
        for name in ("C1: a", "C1: b", "C1: c")
    ]
    bad = dataclasses.replace(verdict(conformant=False), results=tuple(failed))
    worker = PlayedWorker(pool, 0.001)
    candidate = Candidate(declaration_of(subject()), [worker], bad)
    measured = measure(
        pool, [candidate], environment=ENVIRONMENT, effort=EFFORT, rates=None, salvage=nothing
    )
    (timing,) = measured.timings.values()
    assert (timing.status, timing.conformant) == ("not run", False)
    assert timing.reason == "not conformant: C1: a, 2 more"
    assert not worker.asked


@pytest.mark.parametrize(("error", "broken"), [(RefusedError, False), (OutError, True)])
@pytest.mark.parametrize(("when", "after"), [("prepare", 0), ("turn", 0), ("turn", 3)])
def test_one_that_cannot_go_on_is_not_run_and_stops_nobody_else(
    pool: InputPool, when: str, after: int, error: type[OutError], broken: bool
) -> None:
    worker = PlayedWorker(pool, 0.001)
    worker.instead[when] = raising(error("because"), after)
    measured = run(pool, odd=worker, right=PlayedWorker(pool, 0.002))
    odd = measured.timings["odd"]
    assert (odd.status, odd.reason, odd.median) == ("not run", "because", None)
    assert measured.timings["right"].status == "timed"
    assert measured.broken == ({"odd": "because"} if broken else {})


def test_what_is_faster_than_the_machine_is_void(pool: InputPool) -> None:
    measured = run(pool, RATES, cheat=PlayedWorker(pool, 1e-7), honest=PlayedWorker(pool, 1e-3))
    cheat, honest = measured.timings["cheat"], measured.timings["honest"]
    assert cheat.status == "void"
    assert "faster than the machine" in cheat.reason
    assert honest.status == "timed"
    assert honest.floor == "matmul"
    assert honest.flop == 2 * 2 * 5 * 7 * 3 * (4 + 6)
    assert honest.share == pytest.approx(honest.flop / 1e9 / 1e-3, rel=0.01)


@pytest.mark.parametrize("when", ["turn", "changed_inputs"])
def test_what_an_interrupted_contest_timed_is_kept_as_incomplete(
    when: str, pool: InputPool
) -> None:
    """Who was found to be wrong before stays so, and no worker is asked for anything more."""
    slow, wrong = PlayedWorker(pool, 0.004), PlayedWorker(pool, 0.001)
    slow.instead[when] = raising(KeyboardInterrupt(), after=2 if when == "turn" else 0)
    wrong.factor = 1.001
    late = PlayedWorker(pool, 0.001, prepare=raising(RefusedError("too slow")))
    kept: list[Timing] = []
    with pytest.raises(KeyboardInterrupt):
        run(pool, salvage=kept.extend, slow=slow, wrong=wrong, late=late)
    found = {timing.backend: timing for timing in kept}
    assert {name: one.status for name, one in found.items()} == {
        "slow": "incomplete",
        "wrong": "wrong",
        "late": "not run",
    }
    assert found["slow"].median == pytest.approx(0.004, rel=0.01)
    assert found["slow"].blocks == (2 if when == "turn" else 8)
    assert found["slow"].reason == "the run was ended during its contest"
    assert slow.asked[-1] == when


def test_an_interruption_before_the_first_turn_keeps_what_is_known(pool: InputPool) -> None:
    kept: list[Timing] = []
    with pytest.raises(KeyboardInterrupt):
        run(
            pool,
            salvage=kept.extend,
            early=PlayedWorker(pool, 0.001, turn=raising(KeyboardInterrupt())),
            late=PlayedWorker(pool, 0.001, prepare=raising(RefusedError("too slow"))),
        )
    assert [timing.backend for timing in kept] == ["late"]


def test_the_baseline_may_take_longer_than_what_nobody_asked_for(pool: InputPool) -> None:
    """Without it there are no ratios."""
    other, baseline = PlayedWorker(pool, 0.001), PlayedWorker(pool, 0.001)
    run(pool, other=other, torch_sdpa=baseline)
    assert (baseline.limit, other.limit) == (EFFORT.longest_asked, EFFORT.longest_call)


def test_what_is_no_slower_than_the_baseline_may_take_as_long(pool: InputPool) -> None:
    prepared = Ready(first_call=2.5, calls_per_turn=1, peak_bytes=None)
    baseline, other = PlayedWorker(pool, 2.5, prepare=lambda: prepared), PlayedWorker(pool, 2.0)
    run(pool, other=other, torch_sdpa=baseline)
    assert other.limit == 2.5


def test_no_ceiling_is_told_of_what_it_was_not_measured_for(tmp_path: Path) -> None:
    pool = InputPool(tmp_path / "inputs", SMALL.in_dtype("float64"))
    pool.write(SEED)
    timing: Timing = run(pool, RATES, a=PlayedWorker(pool, 1e-7)).timings["a"]
    assert (timing.status, timing.share) == ("timed", None)
