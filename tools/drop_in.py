"""What the drop-in module costs and gains: `python -m tools.drop_in`.

Three tables. What "auto" adds to a call after the first of its kind, against the same layer that is
told its backend, and what calling Numba's kernels costs; the drop-in against torch's SDPA on the
default workloads; and the time of a small PatchTST, in inference and in training, after `replace`
over before. Both sides take turns in blocks, as backends do in `fullattention bench`.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fullattention.backends import UnavailableError, load
from fullattention.bench.inputs import SEED
from fullattention.bench.ratio import FINAL, REPORTED, SAME_PROCESS, Ratio, ratio_of
from fullattention.bench.turns import TURN
from fullattention.bench.workloads import CATALOGUE, Workload, select
from fullattention.machine.environment import environment
from fullattention.machine.hardware import usable_cores
from fullattention.nn import FullAttention, replace
from fullattention.nn.call import fields_of
from fullattention.nn.deciding import AUTO, decide
from fullattention.records import BASELINE, Speed
from fullattention.reports.blocks import Block, Lines, Table, as_markdown
from fullattention.reports.marked import require_marked, write_marked
from fullattention.reports.report import environment_lines
from fullattention.units import digits, seconds
from tests.patchtst import PatchTST

GOAL = 3e-6
"""Seconds that "auto" may add to a call."""

CALL_GOAL = 10e-6
"""Seconds that a call of `KERNELS` from torch may take beside what it computes."""

KERNELS = "numba-cpu-torch"

CALLED = "toy"
"""Workload of so little work that what is added to a call shows."""

CALLS = ("forward", "causal", "masked", "training")

SERIES, STEPS, HORIZON, VARIATES = 32, 336, 96, 7

SETTINGS: dict[str, Any] = {
    "steps": STEPS,
    "horizon": HORIZON,
    "d_model": 16,
    "n_heads": 4,
    "layers": 3,
}
"""PatchTST's own for ETTh1."""

WARM_UP = 3
"""Calls of a side before the first block."""

LEAST = 8
"""Blocks, whatever they take."""

Run = Callable[[], object]


@dataclass(frozen=True)
class Compared:
    """Two sides that took turns."""

    after: float
    """Seconds per call of the first, the median over the blocks."""
    before: float
    """Likewise of the second."""
    ratio: Ratio
    """Of the first's time over the second's."""


def compare(
    run: Run, against: Run, budget: float, clock: Callable[[], float] = time.perf_counter
) -> Compared:
    """Let two take turns in blocks of random order for so many seconds."""
    sides = {"run": run, "against": against}
    calls = {name: _calls_of_a_turn(side, clock) for name, side in sides.items()}
    order, end = random.Random(SEED), clock() + budget
    taken: dict[str, list[float]] = {name: [] for name in sides}
    while len(taken["run"]) < LEAST or clock() < end:
        for name in order.sample(list(sides), len(sides)):
            start = clock()
            for _ in range(calls[name]):
                sides[name]()
            taken[name].append((clock() - start) / calls[name])
    times, others = (np.array(taken[name])[:, None] for name in ("run", "against"))
    ratio = ratio_of(times, others, SAME_PROCESS)
    return Compared(statistics.median(taken["run"]), statistics.median(taken["against"]), ratio)


def _calls_of_a_turn(run: Run, clock: Callable[[], float]) -> int:
    taken = []
    for _ in range(WARM_UP):
        start = clock()
        run()
        taken.append(clock() - start)
    return max(1, round(TURN / min(taken)))


def _estimate(ratio: Ratio) -> tuple[float, float, float]:
    """The ratio, and its interval."""
    return ratio.ratio, *ratio.interval(REPORTED)


def _cells(found: Compared) -> list[str]:
    """The second side's time, the ratio to it with its interval, and the verdict."""
    ratio, low, high = map(digits, _estimate(found.ratio))
    return [seconds(found.before), ratio, f"{low} - {high}", found.ratio.verdict(FINAL)]


# What a call costs.


def decision(budget: float) -> list[Block]:
    """What "auto" adds to each of `CALLS`, and what a call of `KERNELS` costs, by one thread."""
    share = budget / (len(CALLS) + 1)
    with _one_thread():
        found = [(call, *_added(call, share)) for call in CALLS]
        kernels = _overhead(share)
    goal = (
        f'"auto" may add {GOAL * 1e6:g} us to a call after the first of its kind; here to '
        f"{CALLED}, by one thread: {_judged((added[1:] for *_, added in found), GOAL)}."
    )
    rows = []
    for call, backend, told, added in found:
        middle, low, high = (f"{time * 1e6:.2f}" for time in added)
        rows.append([call, backend, seconds(told), middle, f"{low} - {high}"])
    columns = ("call", "backend", "told", "added, us", "95 % interval, us")
    return [Lines([goal]), Table(columns, rows, right=columns[2:]), *kernels]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _added(call: str, budget: float) -> tuple[str, float, tuple[float, ...]]:
    """The backend of a call, its time when it is told, and what "auto" adds, with an interval."""
    training, mask_flag = call == "training", call in ("causal", "masked")
    B, L, S, H, E, D = CATALOGUE[CALLED].shape
    make = functools.partial(torch.randn, requires_grad=training)
    mask = torch.zeros((1, 1, L, S), dtype=torch.bool) if call == "masked" else None
    given = (make((B, L, H, E)), make((B, S, H, E)), make((B, S, H, D)), mask)

    def layer(backend: str) -> FullAttention:
        made = FullAttention(mask_flag, attention_dropout=0.0, backend=backend)
        return made.train(training)

    auto = layer(AUTO)
    chosen = decide(fields_of(auto, *given), tune=False).name
    told = layer(chosen)
    found = compare(functools.partial(auto, *given), functools.partial(told, *given), budget)
    added = tuple((ratio - 1) * found.before for ratio in _estimate(found.ratio))
    return chosen, found.before, added


def _judged(intervals: Iterable[tuple[float, ...]], goal: float) -> str:
    """Whether everything that lies in some intervals stays below a goal."""
    lows, highs = zip(*intervals, strict=True)
    if max(highs) < goal:
        return "met"
    return "missed" if max(lows) >= goal else "not settled"


def _overhead(budget: float) -> list[Block]:
    """What a call of `KERNELS` takes that has one score to compute, alone and through the layer."""
    try:
        backend = load(KERNELS)
    except UnavailableError as error:
        return [Lines([f"{KERNELS}: not run: {error.reason}"])]
    one = torch.ones(1, 1, 1, 1)
    attend = functools.partial(backend.attend, hidden=None, causal=False, scale=1.0)
    alone = functools.partial(attend, one, one, one, dropout=0.0, weights=False)
    layer = FullAttention(False, backend=backend).eval()
    found = compare(functools.partial(layer, one, one, one, None), alone, budget)
    goal = (
        f"A call of {KERNELS} from torch may take {CALL_GOAL * 1e6:g} us beside what it computes; "
        "here it computes one score, by one thread, without a gradient."
    )
    rows = [
        [what, f"{time * 1e6:.2f}", "met" if time < CALL_GOAL else "missed"]
        for what, time in (("the backend", found.before), ("the layer around it", found.after))
    ]
    columns = ("called", "median, us", "goal")
    return [Lines([goal]), Table(columns, rows, right=columns[1:2])]


# What a workload gains.


def workloads(budget: float, *, tune: bool) -> list[Block]:
    """The drop-in with "auto" over torch's SDPA in it, on each of the default workloads."""
    chosen = select()
    found = [_over_baseline(workload, budget / len(chosen), tune) for workload in chosen]
    rows = [
        [workload.title, backend, *_cells(compared)]
        for workload, (backend, compared) in zip(chosen, found, strict=True)
    ]
    columns = (
        *("workload", '"auto" takes', BASELINE, f"auto / {BASELINE}"),
        *("95 % interval", "verdict"),
    )
    verdicts = [(backend, compared.ratio.verdict(FINAL)) for backend, compared in found]
    return [Table(columns, rows, right=columns[2:5]), Lines([_workloads_judged(verdicts)])]


def _over_baseline(workload: Workload, budget: float, tune: bool) -> tuple[str, Compared]:
    """The backend that "auto" takes for a workload, and its time over the baseline's."""
    B, L, S, H, E, D = workload.shape
    make = functools.partial(torch.randn, dtype=getattr(torch, workload.dtype))
    given = (make((B, L, H, E)), make((B, S, H, E)), make((B, S, H, D)), None)
    auto, told = (
        FullAttention(workload.mask == "causal", backend=backend, tune=tune).eval()
        for backend in (AUTO, BASELINE)
    )
    backend = decide(fields_of(auto, *given), tune).name
    run, against = functools.partial(auto, *given), functools.partial(told, *given)
    return backend, compare(run, against, budget)


def _workloads_judged(verdicts: list[tuple[str, Speed]]) -> str:
    """Whether "auto" is slower nowhere, by the backend and the verdict of each workload."""
    slower = sum(verdict == "slower" for _, verdict in verdicts)
    others = [verdict for backend, verdict in verdicts if backend != BASELINE]
    return (
        f'"auto" may be slower than {BASELINE} on none of {len(verdicts)}; it is on {slower}: '
        f"{'missed' if slower else 'met'}. It takes another backend on {len(others)}, of which it "
        f"is faster on {others.count('faster')}."
    )


# What a model gains.


def model(budget: float, *, tune: bool) -> list[Block]:
    """A PatchTST's time after `replace` over before, in inference and in training."""
    torch.manual_seed(SEED)
    before = PatchTST(**SETTINGS)
    after = copy.deepcopy(before)
    replace(after, tune=tune)
    series = torch.randn(SERIES, STEPS + HORIZON, VARIATES)
    rows = []
    for name, running in (("inference", _inference), ("training step", _training)):
        run, against = running(after, series), running(before, series)
        chosen = ", ".join(backends_of(after, run))
        rows.append([name, chosen, *_cells(compare(run, against, budget / 2))])
    what = (
        f"PatchTST for ETTh1: {SERIES} series of {STEPS} steps and {VARIATES} variates, "
        f"{SETTINGS['layers']} layers, {SETTINGS['n_heads']} heads, d_model {SETTINGS['d_model']}."
    )
    columns = ("run", '"auto" takes', "before", "after / before", "95 % interval", "verdict")
    return [Lines([what]), Table(columns, rows, right=columns[2:5])]


def _inference(network: torch.nn.Module, series: torch.Tensor) -> Run:
    def run() -> None:
        network.eval()
        with torch.no_grad():
            network(series[:, :STEPS])

    return run


def _training(network: torch.nn.Module, series: torch.Tensor) -> Run:
    optimizer = torch.optim.Adam(network.parameters(), 1e-4)

    def run() -> None:
        network.train()
        loss = torch.nn.functional.mse_loss(network(series[:, :STEPS]), series[:, STEPS:])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run


def backends_of(network: torch.nn.Module, run: Run) -> list[str]:
    """The backends that the drop-ins of a model decide for in a run, each once."""
    found: dict[str, None] = {}

    def note(layer: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        queries, keys, values, attn_mask = (*given, *named.values())[:4]
        fields = fields_of(layer, queries, keys, values, attn_mask)
        found[decide(fields, layer.tune).name] = None

    layers = [layer for layer in network.modules() if isinstance(layer, FullAttention)]
    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]
    run()
    for hook in hooks:
        hook.remove()
    return list(found)


def main() -> None:
    """Measure, print the tables, and write them into a document if one is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each table (default: 60)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="default: all cores")
    parser.add_argument(
        "--tune",
        action="store_true",
        help="first measure what never was, a minute for each kind of call, for the user's store",
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="document with the markers")
    options = parser.parse_args()
    if not 0 < options.seconds < math.inf:
        parser.error(f"seconds is {options.seconds:g}: a finite number above 0")
    try:
        require_marked("--write", options.write, "decision", "workloads", "model")
    except ValueError as error:
        parser.error(str(error))
    torch.set_num_threads(options.threads)
    machine = Lines(environment_lines(environment(options.threads)))
    tables = {
        "decision": decision(options.seconds),
        "workloads": workloads(options.seconds, tune=options.tune),
        "model": model(options.seconds, tune=options.tune),
    }
    for name, blocks in tables.items():
        text = as_markdown([*blocks, machine])
        print(text)
        if options.write:
            write_marked(options.write, name, text)


if __name__ == "__main__":
    main()
