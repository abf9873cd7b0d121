"""The tool that measures what the drop-in costs and gains: turns, figures, and its tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fullattention.nn import FullAttention, deciding
from fullattention.nn.call import fields_of
from fullattention.reports.blocks import as_markdown
from tests.bench_fakes import FakeClock
from tools import drop_in


def taking(clock: FakeClock, seconds: float) -> Callable[[], None]:
    def run() -> None:
        clock.now += seconds

    return run


def test_two_sides_are_compared_by_the_blocks_in_which_both_took_turns() -> None:
    clock = FakeClock()
    found = drop_in.compare(taking(clock, 2.2e-3), taking(clock, 2e-3), 1.0, clock)
    assert found.before == pytest.approx(2e-3)
    assert found.ratio.ratio == pytest.approx(1.1)
    assert found.ratio.blocks == pytest.approx(1.0 / (10 * 2e-3 + 9 * 2.2e-3), abs=1)


def test_a_long_call_is_a_turn_and_few_seconds_still_make_blocks() -> None:
    clock = FakeClock()
    found = drop_in.compare(taking(clock, 3.0), taking(clock, 2.0), 0.0, clock)
    assert found.ratio.blocks == drop_in.LEAST
    assert clock.now == pytest.approx((drop_in.WARM_UP + drop_in.LEAST) * 5.0)


def test_what_auto_adds_is_the_ratios_part_above_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(run: drop_in.Run, against: drop_in.Run, budget: float) -> drop_in.Compared:
        clock = FakeClock()
        run(), against()
        return whole(taking(clock, 12e-6), taking(clock, 10e-6), 0.1, clock)

    whole = drop_in.compare
    monkeypatch.setattr(drop_in, "compare", compare)
    lines = as_markdown(drop_in.decision(1.0)).splitlines()
    (row,) = [line for line in lines if line.startswith("| causal")]
    assert [cell.strip() for cell in row.split("|")[3:-1]] == ["10.0 us", "2.00", "2.00 - 2.00"]


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
