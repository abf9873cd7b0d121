"""The drop-in module in torch models: the same results, whatever runs them."""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from fullattention.backends import InvalidInputError, UnavailableError, UnsupportedError, load
from fullattention.backends.interface import needs
from fullattention.backends.precision import Precision
from fullattention.backends.registry import BUILT_IN
from fullattention.bench.workload_files import read_workloads, write_workloads
from fullattention.choosing.known import Known, known_here
from fullattention.choosing.store import Store
from fullattention.conformance.bound import attention_bound
from fullattention.conformance.suite import check
from fullattention.machine.hardware import usable_cores
from fullattention.nn import FullAttention, capture, deciding, replace
from fullattention.nn.call import call_of
from fullattention.records import Timing
from tests import near_layers
from tests.available import each, found
from tests.patchtst import PatchTST, ScaledByTauAttention, TopKeysAttention
from tests.timings import timing
from tests.zoo.layers import UpstreamLayer, triangular_causal_mask

HERE = known_here(Store(Path("no-such-folder")))
SHAPE = (4, 12, 12, 3, 8, 8)

without_numba = pytest.mark.skipif(
    found("numba-cpu-torch") is None, reason="numba-cpu-torch does not run here"
)


def measured(backend: str, seconds: float, **fields: Any) -> Timing:
    figures = {"lower_quartile": seconds, "upper_quartile": seconds, "median": seconds}
    environment = dataclasses.replace(HERE.here, threads=torch.get_num_threads())
    version = load(backend).version
    known = {"library_version": version, "environment": environment, "shape": SHAPE}
    return timing(backend, **{**figures, **known, **fields})


@pytest.fixture
def knows(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Sets what was measured here; nothing to begin with, whatever the user's store holds."""

    def set_known(*timings: Timing) -> None:
        deciding.forget()
        known: Known = dataclasses.replace(HERE, timings=timings)
        monkeypatch.setattr(deciding, "_known", _Fixed(known))

    set_known()
    yield set_known
    monkeypatch.undo()
    deciding.forget()


class _Fixed:
    """A function of nothing that can be told to forget, as the cached one can."""

    def __init__(self, known: Known) -> None:
        self.known = known

    def __call__(self) -> Known:
        return self.known

    def cache_clear(self) -> None:
        """There is nothing to forget."""


def inputs(*, gradient: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    B, L, S, H, E, D = SHAPE
    random = torch.Generator().manual_seed(3)
    q, k, v = (
        torch.randn(shape, generator=random).requires_grad_(gradient)
        for shape in ((B, L, H, E), (B, S, H, E), (B, S, H, D))
    )
    return q, k, v


def chosen(layer: FullAttention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str:
    return deciding.decide(call_of(layer, q, k, v, None), layer.tune).name


class EinsumDropIn(FullAttention):
    """The drop-in on a backend that deviates nowhere."""

    def __init__(self, *settings: Any, **named: Any) -> None:
        super().__init__(*settings, **named, backend="torch-einsum")


def test_the_drop_in_is_conformant_as_a_class() -> None:
    verdict = check(EinsumDropIn, level="quick", dtypes=("float32",))
    assert verdict.conformant, [one for one in verdict.results if one.status == "failed"]


def test_auto_never_stops_to_compile(knows: Any) -> None:
    compiling = next((name for name in COMPILING if _is_here(name)), None)
    if compiling is None:
        pytest.skip("torch.compile has no compiler here")
    knows(measured("torch-sdpa", 2e-3), measured(compiling, 1e-3))
    layer = FullAttention(False).eval()
    assert chosen(layer, *inputs()) == "torch-sdpa"
    assert "it stops to compile" in layer.explain(*inputs())


COMPILING = ("torch-compile", "torch-flex")


def _is_here(name: str) -> bool:
    try:
        return load(name).compiles
    except UnavailableError:
        return False


def test_it_has_no_state_and_shows_its_settings(knows: Any) -> None:
    layer = FullAttention(False, scale=0.5, output_attention=True)
    assert not layer.state_dict()
    assert "scale=0.5" in repr(layer)
    assert "backend='auto'" in repr(layer)


def test_eval_of_the_model_switches_its_dropout_off(knows: Any) -> None:
    model = torch.nn.Sequential(FullAttention(False, attention_dropout=0.5))
    q, k, v = inputs()
    first, second = (model.eval()[0](q, k, v, None)[0] for _ in range(2))
    assert torch.equal(first, second)
    first, second = (model.train()[0](q, k, v, None)[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_copies_and_pickles_attend_alike(knows: Any) -> None:
    q, k, v = inputs()
    layer = FullAttention(False).eval()
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(q, k, v, None)[0], layer(q, k, v, None)[0])


TENSORS = (
    *(name for name in BUILT_IN if name.startswith("torch-") or name.endswith("-torch")),
    *("triton", "xformers", "flash-attn"),
)
"""The backends that take tensors."""


@pytest.mark.parametrize("name", each(TENSORS))
def test_copies_and_pickles_attend_alike_on_each_backend(name: str) -> None:
    if found(name) is None:
        pytest.skip(f"{name} does not run here")
    q, k, v = inputs()
    layer = FullAttention(False, backend=name).eval()
    for called in (False, True):
        saved = io.BytesIO()
        torch.save(layer, saved)
        saved.seek(0)
        for twin in (copy.deepcopy(layer), torch.load(saved, weights_only=False)):
            assert twin.backend is layer.backend
            assert torch.equal(twin(q, k, v, None)[0], layer(q, k, v, None)[0]), called


def test_a_backend_that_was_not_loaded_is_pickled_by_its_fields() -> None:
    own = dataclasses.replace(load("torch-einsum"), name="own")
    layer = pickle.loads(pickle.dumps(FullAttention(False, backend=own).eval()))
    assert layer.backend is not own
    assert layer(*inputs(), None)[0].shape == SHAPE[:2] + SHAPE[3:5]


@pytest.mark.parametrize("backend", ["auto", "torch-einsum", "torch-sdpa-math"])
def test_autocast_takes_several_dtypes_as_the_replaced_layer_does(knows: Any, backend: str) -> None:
    q, k, v = inputs(gradient=True)
    upstream = UpstreamLayer(False).eval()
    layer = FullAttention(False, backend=backend).eval()
    gradients = []
    for one in (layer, upstream):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, _ = one(q, k.bfloat16(), v, None)
        assert out.dtype == torch.bfloat16
        gradients.append((out, *torch.autograd.grad(out.float().sum(), (q, k, v))))
    for got, want in zip(*gradients, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)


def test_explain_takes_several_dtypes_in_autocast(knows: Any) -> None:
    q, k, v = inputs()
    layer = FullAttention(False).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "forward, mask none, bfloat16 on cpu" in layer.explain(q, k.bfloat16(), v)


@pytest.mark.parametrize("backend", ["auto", "torch-einsum"])
def test_several_dtypes_are_refused_where_autocast_casts_nothing(knows: Any, backend: str) -> None:
    q, k, v = inputs()
    layer = FullAttention(False, backend=backend).eval()
    with pytest.raises(InvalidInputError, match="keys has dtype bfloat16 and queries float32"):
        layer(q, k.bfloat16(), v, None)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(InvalidInputError, match="keys has dtype float64 and queries float32"),
    ):
        layer(q, k.double(), v, None)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.bool])
@pytest.mark.parametrize("backend", ["auto", "torch-einsum"])
def test_numbers_that_are_no_real_floats_get_the_layers_own_error(
    knows: Any, backend: str, dtype: torch.dtype
) -> None:
    q, k, v = (array.to(dtype) for array in inputs())
    layer = FullAttention(False, backend=backend).eval()
    with pytest.raises(InvalidInputError, match=r"queries has dtype \w+: .* \[C8\]"):
        layer(q, k, v, None)


def test_odd_records_stop_no_model_and_explain_tells_of_them(knows: Any) -> None:
    knows(measured("torch-sdpa", "fast", shape=("many",)))  # type: ignore[arg-type]
    layer = FullAttention(False).eval()
    assert layer(*inputs(), None)[0].shape == SHAPE[:2] + SHAPE[3:5]
    said = layer.explain(*inputs())
    assert said.startswith("torch-sdpa, by default: what was measured makes no sense: ")


def test_the_fastest_measured_runs(knows: Any) -> None:
    knows(measured("torch-sdpa", 2e-3), measured("torch-einsum", 1e-3))
    layer = FullAttention(False).eval()
    assert chosen(layer, *inputs()) == "torch-einsum"
    knows(measured("torch-sdpa", 1e-3), measured("torch-einsum", 2e-3))
    assert chosen(layer, *inputs()) == "torch-sdpa"


def test_the_default_is_left_only_for_a_time_that_compares_with_its_own(knows: Any) -> None:
    layer, fast = FullAttention(False).eval(), measured("torch-einsum", 1e-3)
    knows(fast)
    assert chosen(layer, *inputs()) == "torch-sdpa"
    assert "torch-sdpa: not measured here" in layer.explain(*inputs())
    later = dataclasses.replace(fast.environment, time="2999-01-01T00:00:00+00:00")
    knows(fast, measured("torch-sdpa", 2e-3, environment=later))
    assert chosen(layer, *inputs()) == "torch-sdpa", "of another run"
    knows(fast, measured("torch-sdpa", 2e-3, other_load=9.0))
    assert chosen(layer, *inputs()) == "torch-einsum", "disturbed alike"
    weights = FullAttention(False, output_attention=True).eval()
    knows(measured("torch-bmm", 1e-3, mode="weights"))
    assert chosen(weights, *inputs()) == "torch-einsum", "the default of such calls"
    knows(
        measured("torch-sdpa", 1e-3, status="wrong", reason="off"),
        measured("torch-einsum", 2e-3, environment=later),
    )
    assert chosen(layer, *inputs()) == "torch-einsum", "a wrong one is no default to keep to"


def test_timings_with_the_nearest_number_of_threads_tell_too(knows: Any) -> None:
    threads = torch.get_num_threads() + 3
    other = dataclasses.replace(HERE.here, threads=threads)
    knows(
        measured("torch-sdpa", 2e-3, environment=other),
        measured("torch-einsum", 1e-3, environment=other),
    )
    layer = FullAttention(False).eval()
    assert chosen(layer, *inputs()) == "torch-einsum"
    assert f"told by timings with {threads}: the nearest" in layer.explain(*inputs())


def test_tuning_measures_with_torchs_own_threads_as_far_as_there_are_cores(
    knows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_calls: list[Any] = []
    monkeypatch.setattr(deciding, "_measure", measured_calls.append)
    threads = torch.get_num_threads() + 3
    knows(measured("torch-sdpa", 2e-3, environment=dataclasses.replace(HERE.here, threads=threads)))
    FullAttention(False, tune=True).eval()(*inputs(), None)
    (call,) = measured_calls
    monkeypatch.setattr(torch, "get_num_threads", lambda: 999)
    arguments = deciding._request(call).arguments  # noqa: SLF001 - what the command is told
    assert arguments[arguments.index("--threads") + 1] == str(usable_cores())


def test_a_backend_that_lacks_what_the_call_needs_is_not_chosen(knows: Any) -> None:
    knows(
        *(measured("torch-sdpa", 1e-3, mode=mode) for mode in ("weights", "forward")),
        *(measured("torch-einsum", 9e-3, mode=mode) for mode in ("weights", "forward")),
    )
    assert chosen(FullAttention(False).eval(), *inputs()) == "torch-sdpa"
    assert chosen(FullAttention(False, output_attention=True).eval(), *inputs()) == "torch-einsum"


def test_a_backend_of_other_arrays_is_not_chosen(knows: Any) -> None:
    knows(measured("numpy-matmul", 1e-9), measured("torch-sdpa", 1e-3))
    assert chosen(FullAttention(False).eval(), *inputs()) == "torch-sdpa"


CHOOSING = """
import sys, torch
from fullattention.nn import FullAttention, deciding
torch.set_num_threads(int(sys.argv[1]))
layer, x = FullAttention(False).eval(), torch.ones(4, 12, 3, 8)
print(layer.explain(x, x, x).splitlines()[0])
layer(x, x, x, None)
print(*(backend.name for backend in deciding._decisions.values()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a user's data lie elsewhere, fixedly")
def test_what_the_users_store_holds_is_what_runs(tmp_path: Path) -> None:
    kept = [measured("torch-bmm", 1e-3), measured("torch-sdpa", 2e-3)]
    Store(tmp_path / "fullattention" / "results").add(kept)
    done = subprocess.run(
        [sys.executable, "-c", CHOOSING, str(torch.get_num_threads())],
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["torch-bmm for forward, mask none", "torch-bmm"], done


def test_where_nothing_was_measured_sdpa_runs_or_einsum_where_it_cannot(knows: Any) -> None:
    assert chosen(FullAttention(False), *inputs()) == "torch-sdpa"
    assert chosen(FullAttention(False, output_attention=True), *inputs()) == "torch-einsum"


def test_a_call_is_decided_once(knows: Any) -> None:
    layer = FullAttention(False).eval()
    first = deciding.decide(call_of(layer, *inputs(), None), tune=False)
    knows_nothing_more = deciding.decide(call_of(layer, *inputs(), None), tune=False)
    assert first is knows_nothing_more
    call = call_of(layer, *inputs(), None)
    key = (call, torch.get_num_threads(), False)
    assert key in deciding._decisions  # noqa: SLF001 - a lookup is what the test is about


@pytest.mark.parametrize(
    ("settings", "mask", "gradient", "expected"),
    [
        ((False,), None, False, ("none", "forward", ("float32",))),
        ((True,), None, False, ("causal", "forward", ("float32", "causal"))),
        ((True,), True, False, ("padding", "forward", ("float32", "mask"))),
        ((False,), True, False, ("none", "forward", ("float32",))),
        ((False,), None, True, ("none", "training", ("float32", "dropout", "gradient"))),
    ],
)
def test_a_call_is_told_apart_by_mask_and_mode(
    settings: tuple[bool], mask: Any, gradient: bool, expected: tuple[Any, ...]
) -> None:
    layer = FullAttention(*settings).train(gradient)
    call = call_of(layer, *inputs(gradient=gradient), mask)
    assert (call.mask, call.mode, needs(call.dtype, call.mask, call.uses)) == expected
    assert tuple(call.shape) == SHAPE


def test_explain_says_what_would_run_and_why_not_the_others(knows: Any) -> None:
    knows(measured("torch-sdpa", 2e-3), measured("torch-einsum", 1e-3))
    text = FullAttention(False).eval().explain(*inputs())
    assert text.startswith("torch-einsum for forward, mask none")
    assert re.search(r"^torch-sdpa .* 2\.00 +- +measured", text, re.MULTILINE), "not tied"
    assert "numpy-matmul: unsupported: it takes arrays of numpy, not of torch" in text
    knows()
    assert "torch-sdpa, by default: nothing was measured" in FullAttention(False).explain(*inputs())
    assert FullAttention(backend="torch-einsum").explain(*inputs()).startswith("torch-einsum, as")


def test_explain_without_the_suites_libraries_says_which_extra_brings_them(
    knows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows(measured("torch-sdpa", 2e-3), measured("torch-einsum", 1e-3))
    for name in ("fullattention.reports.blocks", "fullattention.reports.choices"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "tabulate", None)
    said = FullAttention(False).eval().explain(*inputs())
    assert said.startswith("torch-einsum; ")
    assert "tabulate, which is not installed: pip install 'fullattention[suite]'" in said


@pytest.mark.parametrize("broken", ["ndim", "array", "sizes"])
def test_wrong_input_gets_the_layers_own_error(knows: Any, broken: str) -> None:
    q, k, v = inputs()
    wrong: Any = {"ndim": (q[0], k, v), "array": (q.numpy(), k, v), "sizes": (q, k[:, :5], v)}
    with pytest.raises(InvalidInputError, match="C8"):
        FullAttention(False)(*wrong[broken], None)


@pytest.mark.parametrize("which", ["keys", "values", "attn_mask"])
def test_tensors_on_two_devices_are_named_with_both(knows: Any, which: str) -> None:
    q, k, v = inputs()
    mask = torch.zeros((1, 1, 12, 12), dtype=torch.bool)
    given = {"queries": q, "keys": k, "values": v, "attn_mask": mask}
    given[which] = given[which].to("meta")
    with pytest.raises(InvalidInputError, match=f"{which} is on meta and queries on cpu: .* one"):
        FullAttention(True)(**given)


def test_a_torch_device_is_as_good_as_its_name() -> None:
    q, k, v = inputs()
    for device in ("cpu", torch.device("cpu")):
        layer = FullAttention(False, backend="torch-einsum", device=device).eval()
        assert layer.backend is load("torch-einsum")
        assert layer(q, k, v, None)[0].shape == q.shape


@pytest.mark.parametrize(
    ("name", "value"), [("attention_dropout", 7), ("scale", "big"), ("masked_rows", "one")]
)
def test_a_setting_is_checked_whenever_it_is_set(name: str, value: Any) -> None:
    layer = FullAttention(False)
    before = getattr(layer, name)
    with pytest.raises(InvalidInputError, match=f"{name} is {value!r}"):
        setattr(layer, name, value)
    assert getattr(layer, name) == before


def test_a_backend_of_numpy_arrays_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="takes arrays of numpy"):
        FullAttention(backend="numpy-matmul")


def test_input_off_the_cpu_is_not_refused_for_being_there(knows: Any) -> None:
    q, k, v = (x.to("meta") for x in inputs())
    assert "nothing was measured" in FullAttention(False).explain(q, k, v)


def test_causal_attention_of_unequal_lengths_gets_the_layers_own_error(knows: Any) -> None:
    q, k, v = inputs()
    with pytest.raises(InvalidInputError, match="M2"):
        FullAttention(True)(q, k[:, :5], v[:, :5], None)


def test_a_layer_that_may_measure_does_so_after_others_decided(
    knows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_calls: list[object] = []
    monkeypatch.setattr(deciding, "_measure", measured_calls.append)
    q, k, v = inputs()
    FullAttention(False).eval()(q, k, v, None)
    assert not measured_calls
    tuning = FullAttention(False, tune=True).eval()
    tuning(q, k, v, None)
    tuning(q, k, v, None)
    assert len(measured_calls) == 1


def measuring(monkeypatch: pytest.MonkeyPatch, status: int = 0, says: str = "") -> list[list[str]]:
    """The commands that would measure; they end at once, with a status."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, status, "", says)

    monkeypatch.setattr(deciding, "subprocess", SimpleNamespace(run=run))
    return commands


def test_tuning_times_what_the_call_may_run_on_and_nothing_else(
    knows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = measuring(monkeypatch)
    for weights in (False, True):
        layer = FullAttention(False, output_attention=weights, tune=True).eval()
        layer(*inputs(), None)
    plain, with_weights = (
        {name for option, name in itertools.pairwise(command) if option == "--backend"}
        for command in commands
    )
    assert plain > {"torch-einsum", "torch-bmm", "torch-sdpa", "torch-sdpa-math"}
    assert not plain & {"numpy-matmul", "numba-cpu", "onnxruntime", "jax", *COMPILING}
    assert "torch-einsum" in with_weights
    assert "torch-sdpa" not in with_weights


def test_where_tuning_fails_it_warns_once_and_the_default_runs(
    knows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = measuring(monkeypatch, 2, "the store is read-only")
    layer = FullAttention(False, tune=True).eval()
    with pytest.warns(RuntimeWarning, match="tune: nothing was measured: .*the store is read-only"):
        layer(*inputs(), None)
    layer(*inputs(), None)
    assert len(commands) == 1
    assert chosen(layer, *inputs()) == "torch-sdpa"


def test_tuning_without_the_suites_libraries_warns_and_the_default_runs(
    knows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("choice", "request"):
        monkeypatch.setitem(sys.modules, f"fullattention.choosing.{name}", None)
    layer = FullAttention(False, tune=True).eval()
    with pytest.warns(RuntimeWarning, match=r"pip install 'fullattention\[suite\]'"):
        layer(*inputs(), None)


@without_numba
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_drops_the_same_weights_when_it_computes_again(
    knows: Any, reentrant: bool
) -> None:
    """The sum of v dv is that of V g if both passes drop the same weights, whichever those are."""
    knows(
        *(measured("torch-sdpa", 2e-3, mode=mode) for mode in ("forward", "training")),
        measured("numba-cpu-torch", 1e-3),
        measured("torch-einsum", 1e-3, mode="training"),
    )
    layer = FullAttention(False, attention_dropout=0.5).train()
    q, k, v = inputs(gradient=True)
    out = checkpoint(lambda *x: layer(*x, None)[0], q, k, v, use_reentrant=reentrant)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(4))
    out.backward(g)
    assert v.grad is not None
    torch.testing.assert_close((v * v.grad).sum(), (out * g).sum(), rtol=1e-4, atol=1e-4)


def test_what_the_chosen_backend_refuses_runs_by_default(
    knows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arrays: Any, **options: Any) -> Any:
        raise UnsupportedError("small", "a call of this size", "E = 8: at most 4")

    small = dataclasses.replace(load("torch-einsum"), name="small", attend=refuse)
    monkeypatch.setattr(deciding, "_decided", lambda call, tune: small)
    layer, (q, k, v) = FullAttention(False).eval(), inputs()
    expected, _ = FullAttention(False, backend="torch-sdpa").eval()(q, k, v, None)
    assert torch.equal(layer(q, k, v, None)[0], expected)
    assert chosen(layer, q, k, v) == "torch-sdpa"


def test_empty_axes_are_served(knows: Any) -> None:
    q, k, v = inputs()
    out, _ = FullAttention(False)(q[:0], k[:0], v[:0], None)
    assert out.shape == (0, 12, 3, 8)


def test_replace_swaps_what_computes_full_attention_and_says_what_it_left(knows: Any) -> None:
    torch.manual_seed(0)
    model: Any = PatchTST(layers=3).eval()
    model.encoder[1].attention.inner_attention = TopKeysAttention(False)
    model.encoder[2].attention.inner_attention = ScaledByTauAttention(False)
    done = replace(model)
    assert [one.swapped for one in done] == [True, False, False]
    assert done[0].path == "encoder.0.attention.inner_attention"
    assert "plain it computes something else" in done[1].reason
    assert "with tau and delta it computes something else" in done[2].reason
    assert isinstance(model.encoder[0].attention.inner_attention, FullAttention)
    assert isinstance(model.encoder[1].attention.inner_attention, TopKeysAttention)


@pytest.mark.parametrize("name", ["FlipsAcross", "Forgets", "DoublesInFloat32", "DetachesKeys"])
def test_a_layer_that_masks_and_nearly_computes_full_attention_is_left(name: str) -> None:
    (done,) = replace(torch.nn.ModuleList([getattr(near_layers, name)(True)]))
    assert near_layers.TOLD[name] in done.reason


def test_layers_are_tried_alike_whatever_the_caller_has_switched_on(knows: Any) -> None:
    for switched in (
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        with switched:
            (done,) = replace(torch.nn.ModuleList([UpstreamLayer(True, output_attention=True)]))
        assert done.swapped, done.reason


@pytest.mark.parametrize("name", near_layers.TOLD)
def test_a_layer_that_nearly_computes_full_attention_is_left(name: str) -> None:
    layer = getattr(near_layers, name)(False, output_attention=name in near_layers.WEIGHTS)
    (done,) = replace(torch.nn.ModuleList([layer]))
    assert not done.swapped
    assert near_layers.TOLD[name] in done.reason


def test_a_symbolic_tracer_may_keep_the_drop_in_as_one_node(knows: Any) -> None:
    class Around(torch.fx.Tracer):
        def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
            return isinstance(m, FullAttention) or super().is_leaf_module(m, module_qualified_name)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = FullAttention(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.attention(x, x, x, None)[0]
            return out

    model = Model().eval()
    traced = torch.fx.GraphModule(model, Around().trace(model))
    x = torch.randn(2, 5, 3, 8)
    assert torch.equal(traced(x), model(x))


@pytest.mark.parametrize("model", [[UpstreamLayer(False)], None], ids=["list", "None"])
def test_what_is_no_module_is_refused(model: Any) -> None:
    says = rf"model is a {type(model).__name__}: a torch.nn.Module"
    with pytest.raises(InvalidInputError, match=says):
        replace(model)
    with pytest.raises(InvalidInputError, match=says), capture(model):
        pass


def test_a_layer_that_keeps_its_last_weights_is_left_and_the_model_goes_on(knows: Any) -> None:
    model: Any = torch.nn.ModuleList([near_layers.Keeps(False), UpstreamLayer(False)])
    model[0](*inputs(gradient=True), None)
    kept, other = replace(model)
    assert "it cannot be copied, to be tried: RuntimeError" in kept.reason
    assert other.swapped


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_trials_leave_the_layer_and_the_users_random_numbers_alone(
    knows: Any, weights: bool, masked: bool
) -> None:
    layer = UpstreamLayer(masked, attention_dropout=0.3, output_attention=weights)
    before = torch.get_rng_state()
    assert replace(torch.nn.ModuleList([layer]))[0].swapped
    assert torch.equal(torch.get_rng_state(), before)
    assert (layer.dropout.p, layer.training) == (0.3, True)


def test_replace_keeps_settings_and_mode(knows: Any) -> None:
    layer = UpstreamLayer(True, scale=0.3, attention_dropout=0.4, output_attention=True).eval()
    model = torch.nn.ModuleList([layer])
    assert replace(model)[0].swapped
    new: Any = model[0]
    assert (new.mask_flag, new.scale, new.attention_dropout) == (True, 0.3, 0.4)
    assert new.output_attention
    assert not new.training


def test_a_layer_with_hooks_is_left(knows: Any) -> None:
    layer = UpstreamLayer(False)
    layer.register_forward_hook(lambda module, arguments, result: result)
    # The first hook of a process has the number 0.
    layer._forward_hooks = type(layer._forward_hooks)({0: print})  # noqa: SLF001
    assert "hooks" in replace(torch.nn.ModuleList([layer]))[0].reason


def test_a_layer_with_a_hook_before_its_backward_pass_is_left(knows: Any) -> None:
    layer = UpstreamLayer(False)
    layer.register_full_backward_pre_hook(lambda module, gradients: gradients)
    assert "hooks" in replace(torch.nn.ModuleList([layer]))[0].reason


def test_a_layer_whose_scale_is_a_tensor_is_left(knows: Any) -> None:
    layer = UpstreamLayer(False, scale=torch.tensor(0.3))  # type: ignore[arg-type]
    assert replace(torch.nn.ModuleList([layer]))[0].reason == "its scale is no number"


def test_a_layer_that_drops_in_eval_is_left(knows: Any) -> None:
    layer = UpstreamLayer(False).eval()
    layer.dropout.train()
    assert "its dropout is in another mode" in replace(torch.nn.ModuleList([layer]))[0].reason


@pytest.mark.parametrize("model", [UpstreamLayer(False), torch.nn.Linear(2, 2)])
@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"device": "no-such-device"}, "device is 'no-such-device'"),
        ({"device": "cuda:99"}, "device cuda:99: "),
        ({"tune": "yes"}, "tune is 'yes': True or False"),
        ({"masked_rows": "one"}, "masked_rows is 'one'"),
    ],
)
def test_replace_refuses_what_it_cannot_do(
    knows: Any, model: torch.nn.Module, option: dict[str, Any], error: str
) -> None:
    layers = torch.nn.ModuleList([model])
    with pytest.raises((InvalidInputError, UnavailableError), match=error):
        replace(layers, **option)
    assert layers[0] is model


def test_a_layer_that_the_model_shares_is_swapped_everywhere(knows: Any) -> None:
    shared = UpstreamLayer(False)
    model = torch.nn.ModuleList([shared, shared])
    assert [one.swapped for one in replace(model)] == [True, True]
    assert model[0] is model[1]


class Shaken(UpstreamLayer):
    """Its V is off by a backend's bound, a share of its elements upwards."""

    def __init__(self, precision: Precision, up: float, random: np.random.Generator) -> None:
        super().__init__(False, attention_dropout=0.0)
        self.precision = precision
        self.up = up
        self.random = random

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attn_mask: Any,
        tau: Any = None,
        delta: Any = None,
    ) -> Any:
        out, _ = super().forward(queries, keys, values, attn_mask)
        q, k, v = (x.detach().numpy() for x in (queries, keys, values))
        scale = queries.shape[-1] ** -0.5
        expected = attention_bound(q, k, v, hidden=None, scale=scale, precision=self.precision)
        upwards = self.random.random(expected.out_bound.shape) < self.up
        off = np.where(upwards, 1, -1) * expected.out_bound
        return out + torch.from_numpy(off).to(out.dtype), None


def shaken(model: PatchTST, backend: str, dtype: str) -> Iterator[PatchTST]:
    """The model with attention as far off as a backend's bound lets it be, in several ways."""
    precision = load("torch-sdpa" if backend == "auto" else backend).precision[dtype]
    random = np.random.default_rng(7)
    for up in (1.0, 0.0, 0.5):
        off = copy.deepcopy(model)
        for layer in off.encoder:
            layer.attention.inner_attention = Shaken(precision, up, random)  # type: ignore[union-attr]
        yield off


on_each_backend_and_dtype = pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        *(("auto", dtype) for dtype in ("float32", "float64")),
        pytest.param("numba-cpu-torch", "float32", marks=without_numba),
        # No other test here compiles its backward pass in float64.
        pytest.param("numba-cpu-torch", "float64", marks=(without_numba, pytest.mark.proof)),
    ],
)


@on_each_backend_and_dtype
def test_outputs_of_a_model_stay_within_what_the_bound_allows(
    knows: Any, backend: str, dtype: str
) -> None:
    torch.manual_seed(0)
    model = PatchTST().eval().to(getattr(torch, dtype))
    series = torch.randn(2, 96, 7, dtype=getattr(torch, dtype))
    before = model(series)
    allowed = max(abs(off(series) - before).max() for off in shaken(model, backend, dtype))
    assert 0 < allowed < 1e4 * torch.finfo(before.dtype).eps * abs(before).max()
    assert all(one.swapped for one in replace(model, backend=backend))
    assert abs(model(series) - before).max() <= allowed


def losses(model: PatchTST, dtype: str, steps: int = 6) -> np.ndarray:
    """Losses of a few training steps on a fixed series."""
    random = torch.Generator().manual_seed(1)
    series = torch.randn((4, 120, 3), generator=random, dtype=getattr(torch, dtype)).cumsum(1) / 10
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    found = []
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(model(series[:, :96]), series[:, 96:])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(loss.item())
    return np.array(found)


@on_each_backend_and_dtype
def test_training_gives_the_loss_curve_that_the_bound_allows(
    knows: Any, backend: str, dtype: str
) -> None:
    torch.manual_seed(0)
    model = PatchTST().to(getattr(torch, dtype))
    replaced = copy.deepcopy(model)
    assert all(one.swapped for one in replace(replaced, backend=backend))
    others = [losses(off, dtype) for off in shaken(model, backend, dtype)]
    before, after = losses(model, dtype), losses(replaced, dtype)
    assert before[-1] < 0.9 * before[0]
    eps = np.finfo(dtype).eps
    allowed = abs(np.array(others) - before).max() + eps * before.max()
    assert allowed < 100 * eps * before.max()
    assert abs(after - before).max() <= allowed


def test_capture_collects_each_kind_of_call_once_and_writes_it_for_bench(
    knows: Any, tmp_path: Path
) -> None:
    model = PatchTST(dropout=0.1)
    series = torch.randn(2, 96, 7)
    with capture(model) as workloads:
        model(series)
        model.eval()
        with torch.no_grad():
            model(series)
            model(series)
    assert [(one.mode, one.mask) for one in workloads] == [
        ("training", "none"),
        ("forward", "none"),
    ]
    assert tuple(workloads[0].shape) == (14, 12, 12, 4, 8, 8)
    assert workloads[0].source == "captured from PatchTST"
    model(series[:1])
    assert len(workloads) == 2, "what runs after the block is not recorded"
    write_workloads(tmp_path / "workloads.json", workloads)
    assert read_workloads(tmp_path / "workloads.json") == workloads


def test_capture_names_calls_once_that_make_one_workload(knows: Any) -> None:
    model = PatchTST(dropout=0.1)
    series = torch.randn(2, 96, 7)
    with capture(model) as workloads:
        model.train()(series)
        model.eval()(series)
    assert [one.mode for one in workloads] == ["training"]


def test_capture_sees_masks(knows: Any) -> None:
    layer = FullAttention(True).eval()
    model = torch.nn.ModuleList([layer])
    q, k, v = inputs()
    with capture(model) as workloads:
        layer(q, k, v, None)
        layer(q, k, v, attn_mask=triangular_causal_mask(4, 12, torch.device("cpu")))
    assert [one.mask for one in workloads] == ["causal", "padding"]


def test_a_file_that_holds_no_workloads_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "workloads.json"
    path.write_text('[{"name": "a", "shape": [1, 2], "source": ""}]')
    with pytest.raises(ValueError, match="no array of workloads"):
        read_workloads(path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="it holds no workload"):
        read_workloads(path)
