"""The tool that measures what the drop-in costs and gains: turns, figures, and its tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fullattention.backends import Backend, load
from fullattention.backends.interface import Sizes
from fullattention.bench.workloads import Workload, select
from fullattention.nn import FullAttention, deciding
from fullattention.nn.call import fields_of
from fullattention.reports.blocks import Block, as_markdown
from tests.bench_fakes import FakeClock
from tools import drop_in


def taking(clock: FakeClock, seconds: float) -> Callable[[], None]:
    def run() -> None:
        clock.now += seconds

    return run


def test_two_sides_are_compared_by_the_blocks_in_which_both_took_turns() -> None:
    clock = FakeClock()
    found = drop_in.compare(taking(clock, 2.2e-3), taking(clock, 2e-3), 1.0, clock)
    assert found.after == pytest.approx(2.2e-3)
    assert found.before == pytest.approx(2e-3)
    assert found.ratio.ratio == pytest.approx(1.1)
    assert found.ratio.blocks == pytest.approx(1.0 / (10 * 2e-3 + 9 * 2.2e-3), abs=1)


def test_a_long_call_is_a_turn_and_few_seconds_still_make_blocks() -> None:
    clock = FakeClock()
    found = drop_in.compare(taking(clock, 3.0), taking(clock, 2.0), 0.0, clock)
    assert found.ratio.blocks == drop_in.LEAST
    assert clock.now == pytest.approx((drop_in.WARM_UP + drop_in.LEAST) * 5.0)


def taking_turns(monkeypatch: pytest.MonkeyPatch, *times: tuple[float, float]) -> None:
    """Let the sides that are compared take these times, the last ones for good."""
    waiting, whole = list(times), drop_in.compare

    def compare(run: drop_in.Run, against: drop_in.Run, budget: float) -> drop_in.Compared:
        clock = FakeClock()
        run(), against()
        after, before = waiting.pop(0) if waiting[1:] else waiting[0]
        return whole(taking(clock, after), taking(clock, before), 0.1, clock)

    monkeypatch.setattr(drop_in, "compare", compare)


def cells(blocks: list[Block], first: str) -> list[str]:
    """The cells after the first of the row that begins with it."""
    lines = as_markdown(blocks).splitlines()
    (row,) = [line for line in lines if line.startswith(f"| {first} ")]
    return [cell.strip() for cell in row.split("|")[2:-1]]


@pytest.mark.parametrize(("auto", "added", "goal"), [(12, "2.00", "met"), (14, "4.00", "missed")])
def test_what_auto_adds_is_the_ratios_part_above_one_and_is_judged(
    monkeypatch: pytest.MonkeyPatch, auto: int, added: str, goal: str
) -> None:
    monkeypatch.setattr(drop_in, "KERNELS", "torch-bmm")
    taking_turns(monkeypatch, (auto * 1e-6, 10e-6))
    blocks = drop_in.decision(1.0)
    assert cells(blocks, "causal")[1:] == ["10.0 us", added, f"{added} - {added}"]
    assert f"by one thread: {goal}." in as_markdown(blocks)


def test_a_goal_within_an_interval_is_not_settled() -> None:
    below, across, above = (1.0, 2.0), (2.5, 3.5), (4.0, 5.0)
    judged = drop_in._judged  # noqa: SLF001 - the rule itself
    assert judged([below, below], 3.0) == "met"
    assert judged([below, across], 3.0) == "not settled"
    assert judged([above, across], 3.0) == "missed"


def test_calls_of_the_kernels_are_timed_alone_and_through_the_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drop_in, "KERNELS", "torch-bmm")
    taking_turns(monkeypatch, *[(1e-6, 1e-6)] * len(drop_in.CALLS), (12e-6, 8e-6))
    blocks = drop_in.decision(1.0)
    assert cells(blocks, "the backend") == ["8.00", "met"]
    assert cells(blocks, "the layer around it") == ["12.00", "missed"]


def test_kernels_that_do_not_run_here_are_told_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drop_in, "KERNELS", "torch-sdpa-cudnn")
    taking_turns(monkeypatch, (1e-6, 1e-6))
    assert "torch-sdpa-cudnn: not run: " in as_markdown(drop_in.decision(1.0))


SMALL = [
    Workload("first", Sizes(2, 3, 3, 2, 4, 4), "made up"),
    Workload("second", Sizes(2, 3, 3, 2, 4, 4), "made up", mask="causal"),
]


@pytest.mark.parametrize(
    ("second", "ratio", "verdict", "slower", "faster"),
    [
        (9.6e-6, "1.20", "slower", "on 1: missed", "on 1."),
        (7.2e-6, "0.900", "faster", "on 0: met", "on 2."),
    ],
)
def test_workloads_are_judged_by_those_where_auto_is_slower(
    monkeypatch: pytest.MonkeyPatch,
    second: float,
    ratio: str,
    verdict: str,
    slower: str,
    faster: str,
) -> None:
    asked: list[bool] = []

    def decide(fields: object, tune: bool) -> Backend:
        asked.append(tune)
        return load("torch-einsum")

    monkeypatch.setattr(drop_in, "select", lambda: SMALL)
    monkeypatch.setattr(drop_in, "decide", decide)
    monkeypatch.setattr(deciding, "_measure", lambda call: "")
    taking_turns(monkeypatch, (4e-6, 8e-6), (second, 8e-6))
    blocks = drop_in.workloads(1.0, tune=True)
    assert asked == [True, True]
    first = ["torch-einsum", "8.00 us", "0.500", "0.500 - 0.500", "faster"]
    assert cells(blocks, "first") == first
    assert cells(blocks, "second/causal")[2:] == [ratio, f"{ratio} - {ratio}", verdict]
    text = as_markdown(blocks)
    assert f'"auto" may be slower than torch-sdpa on none of 2; it is {slower}.' in text
    assert f"It takes another backend on 2, of which it is faster {faster}" in text


def test_the_default_workloads_need_no_mask_array() -> None:
    assert {workload.mask for workload in select()} == {"none", "causal"}


def test_the_backends_of_a_model_are_those_that_its_drop_ins_decide_for() -> None:
    deciding.forget()
    network = torch.nn.ModuleList([FullAttention(False), torch.nn.Linear(2, 2)]).eval()
    x = torch.randn(1, 3, 2, 4)
    found = drop_in.backends_of(network, lambda: network[0](x, x, values=x, attn_mask=None))
    assert found == [deciding.decide(fields_of(network[0], x, x, x, None), False).name]
    assert not network[0]._forward_pre_hooks  # noqa: SLF001 - no public way


def test_a_model_is_timed_in_inference_and_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drop_in, "SERIES", 1)
    monkeypatch.setattr(drop_in, "LEAST", 4)
    text = as_markdown(drop_in.model(0.0, tune=False))
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| inf")]
    rows += [line.split("|") for line in text.splitlines() if line.startswith("| training")]
    assert len(rows) == 2
    assert all(float(row[4]) > 0 for row in rows)
