"""What calls have to do, and how fast a machine can: formulas, and rates of made-up machines."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fullattention.backends import UnsupportedError
from fullattention.backends.interface import Sizes
from fullattention.bench import ceilings
from fullattention.bench.ceilings import Rates, floors, impossible, measure, measure_apart
from fullattention.bench.modes import MODES, Inputs, applies, build_layer, hidden_keys, make_call
from fullattention.bench.work import Work, work
from fullattention.bench.workloads import CATALOGUE, Workload, parse_shape
from tests.bench_fakes import FakeClock, subject

CROSS = parse_shape("2,5,7,3,4,6")
SQUARE = Workload("square", Sizes(3, 8, 8, 2, 4, 4), "a test")


def test_the_work_of_a_call_is_two_products_each_array_once_and_all_exponentials() -> None:
    pairs = 2 * 3 * 5 * 7
    moved = 2 * 3 * (5 * 4 + 7 * 4 + 7 * 6 + 5 * 6) * 4
    assert work(CROSS) == Work(2 * pairs * (4 + 6), moved, pairs)
    assert work(CROSS.in_dtype("float16")).bytes == moved / 2


def test_returned_weights_are_written_too() -> None:
    assert work(MODES["weights"](CROSS)).bytes == work(CROSS).bytes + 2 * 3 * 5 * 7 * 4
    assert work(MODES["weights"](CROSS)).flop == work(CROSS).flop


def test_what_is_hidden_is_no_work() -> None:
    assert work(MODES["causal"](SQUARE)).exponentials == 3 * 2 * (8 * 9 // 2)
    hidden = hidden_keys(MODES["padding"](SQUARE))
    assert hidden is not None
    assert work(MODES["padding"](SQUARE)).exponentials == 2 * 8 * int((~hidden).sum())


def test_a_backward_pass_is_twice_the_work_of_a_forward_pass() -> None:
    forward, training = work(SQUARE), work(MODES["training"](SQUARE))
    assert training.flop == 3 * forward.flop
    assert training.bytes == 2 * forward.bytes
    assert training.exponentials == forward.exponentials


def test_the_floor_is_by_the_fastest_copy_of_such_a_size() -> None:
    rates = Rates(copy={"1000": 8e3, "4000": 4e3, "16000": 1e3}, matmul=1e4, exp=1e2)
    assert floors(Work(flop=10, bytes=6000, exponentials=5), rates) == {
        "copy": 6000 / 4e3,
        "matmul": 1e-3,
        "exp": 0.05,
    }
    assert floors(Work(10, 100, 5), rates)["copy"] == 100 / 8e3
    assert floors(Work(10, 10**6, 5), rates)["copy"] == 10**6 / 1e3


def test_exponentials_forbid_nothing() -> None:
    assert impossible({"copy": 3.0, "matmul": 6.0, "exp": 90.0}) == 6.0 / ceilings.MARGIN


def test_a_process_of_its_own_measures_the_ceilings_or_says_that_it_cannot() -> None:
    rates = measure_apart("cpu", 1)  # what every run calls
    assert rates is not None
    assert min(*rates.copy.values(), rates.matmul, rates.exp) > 1e6
    assert measure_apart("cuda:9", 1) is None


def test_rates_are_those_of_the_fastest_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()

    def taking(*seconds: float) -> ceilings.Operation:
        left = [1.0, *seconds]  # the first does not count

        def operation() -> None:
            clock.now += left.pop(0) if len(left) > 1 else left[0]

        return operation

    def half_a_second(size: int) -> ceilings.Operation:
        return taking(0.5)

    slow = ceilings.Kit(half_a_second, half_a_second, half_a_second, wait=lambda: None)
    fast = slow._replace(matmul=lambda side: taking(0.03125, 0.0625))
    monkeypatch.setattr(ceilings, "_kits", lambda device: iter([slow, fast]))
    monkeypatch.setattr(ceilings, "set_threads", lambda count: None)
    found = measure("cpu", 2, clock)
    assert found.matmul == 2 * ceilings.SIDE**3 / 0.03125
    assert found.exp == ceilings.EXPONENTIALS / 0.5
    assert found.copy == {str(size): 2 * size / 0.5 for size in ceilings.COPIED}


def test_modes_apply_where_they_are_defined_and_differ() -> None:
    assert applies("causal", SQUARE, "cpu")
    assert not applies("causal", CROSS, "cpu")
    assert not applies("host", SQUARE, "cpu")
    assert applies("host", SQUARE, "cuda")


def test_padding_hides_the_last_keys_and_never_all() -> None:
    hidden = hidden_keys(MODES["padding"](CATALOGUE["transformer/encoder"]))
    assert hidden is not None
    assert hidden.shape == (32, 1, 1, 96)
    assert not hidden[..., 0].any()
    assert (hidden[..., 1:] >= hidden[..., :-1]).all(), "what follows a hidden key is hidden"
    assert len(set(hidden.sum(-1).ravel())) > 3, "entries differ"


def test_layers_are_built_as_their_mode_needs_them() -> None:
    built: list[dict[str, object]] = []

    class Layer:
        def train(self, mode: bool = True) -> None:
            built[-1]["training"] = mode

        def eval(self) -> None: ...

        def __call__(self, *_: object) -> object: ...

    def build(**arguments: object) -> Layer:
        built.append(dict(arguments))
        return Layer()

    candidate = dataclasses.replace(subject(), build=build)
    for mode in ("forward", "weights", "causal", "padding", "training"):
        build_layer(candidate, MODES[mode](SQUARE))
    assert [one["mask_flag"] for one in built] == [False, False, True, True, False]
    assert [one["output_attention"] for one in built] == [False, True, False, False, False]
    assert [one["attention_dropout"] for one in built] == [0.0] * 4 + [0.1]
    assert [one["training"] for one in built] == [False] * 4 + [True]


def test_host_arrays_are_put_and_taken_within_the_call() -> None:
    log: list[str] = []

    def put(array: np.ndarray, device: str) -> np.ndarray:
        log.append("put")
        return array

    def take(array: np.ndarray) -> np.ndarray:
        log.append("take")
        return array

    arrays = dataclasses.replace(subject().arrays, put=put, take=take)
    call = make_call(dataclasses.replace(subject(), arrays=arrays), MODES["host"](SQUARE))
    x = np.ones((3, 8, 2, 4), np.float32)
    assert call(Inputs(x, x, x, None)).out.shape == (3, 8, 2, 4)
    assert log == ["put"] * 3 + ["take"]


def test_training_needs_gradients() -> None:
    with pytest.raises(UnsupportedError, match="gradient"):
        make_call(subject(), MODES["training"](SQUARE))
