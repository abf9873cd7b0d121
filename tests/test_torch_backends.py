"""What torch's other backends do beyond what the conformance suite asks of every backend."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable

import pytest
import torch

from fullattention import FullAttention
from fullattention.backends import (
    Backend,
    UnavailableError,
    UnsupportedError,
    load,
    registry,
    torch_bmm,
    torch_compile,
    torch_flex,
    torch_inductor,
)
from fullattention.backends.registry import BUILT_IN
from fullattention.conformance.subject import load_subject
from fullattention.conformance.suite import judge_subject
from tests.available import TORCHS_OWN, each


def compiles(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that waits for torch.compile."""
    for mark in (pytest.mark.proof, *TORCHS_OWN):
        test = mark(test)
    return test


def loaded(name: str) -> Backend:
    try:
        return load(name)
    except UnavailableError as error:
        pytest.skip(error.reason)


# torch-bmm.


@pytest.mark.parametrize("scores", [1, 200])
def test_blocks_of_few_batch_entries_are_conformant(
    scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite's cases are small, so that each fits into one block."""
    monkeypatch.setattr(torch_bmm, "BLOCK_SCORES", scores)
    verdict = judge_subject(load_subject("torch-bmm"), dtypes=("float32",))
    assert verdict.conformant, [r for r in verdict.results if r.status == "failed"]


# What torch.compile makes.


@pytest.mark.parametrize("name", ["torch-compile", "torch-flex"])
def test_without_a_compiler_it_is_unavailable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    finding = torch_inductor._missing_tool.__wrapped__  # noqa: SLF001 - as in a fresh process
    monkeypatch.setattr(torch_inductor, "_missing_tool", finding)
    with (
        config.patch({"cpp.cxx": ("a-compiler-nobody-has",)}),
        pytest.raises(UnavailableError, match=r"finds no C\+\+ compiler"),
    ):
        registry._loaded.__wrapped__(name, "cpu")  # noqa: SLF001 - anew


@pytest.mark.parametrize("name", ["torch-compile", "torch-flex"])
def test_an_older_torch_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, *, fullgraph, dynamic: model)
    with pytest.raises(UnavailableError, match=r"needs torch 2\.13 or later"):
        registry._loaded.__wrapped__(name, "cpu")  # noqa: SLF001 - anew


def test_torch_flex_refuses_gradients_on_a_cpu_before_it_compiles() -> None:
    backend = loaded("torch-flex")
    x = torch.ones((1, 4, 1, 8), requires_grad=True)
    before = torch_flex.compiled.cache_info().currsize
    with pytest.raises(UnsupportedError, match=r"gradient: .*backward"):
        FullAttention(False, attention_dropout=0.0, backend=backend)(x, x, x, None)
    assert torch_flex.compiled.cache_info().currsize == before


@compiles
@pytest.mark.parametrize("name", ["torch-compile", "torch-flex"])
def test_one_graph_serves_all_lengths(name: str) -> None:
    from torch._dynamo.utils import counters

    layer = FullAttention(False, attention_dropout=0.0, backend=loaded(name))
    reference = FullAttention(False, attention_dropout=0.0, backend="torch-einsum")
    torch.compiler.reset()  # other tests may have compiled the same graph
    counters.clear()
    for B, L, S, H in ((2, 5, 7, 3), (3, 4, 4, 2), (2, 33, 65, 5), (40, 7, 7, 2)):
        q, k, v = (torch.randn((B, T, H, 8)) for T in (L, S, S))
        assert torch.allclose(layer(q, k, v, None)[0], reference(q, k, v, None)[0], atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1


@compiles
def test_what_torch_gives_up_compiling_raises_and_runs_nothing() -> None:
    """The third dtype of one function: as if calls differed in what a variant leaves out."""
    from torch._dynamo import config

    loaded("torch-compile")
    steps = torch_inductor.compiled(_halved, 2, {"x": ["N"]})
    with config.patch(recompile_limit=2):
        for dtype in (torch.float32, torch.float64):
            ones = torch.ones(3, dtype=dtype)
            assert torch.equal(steps(ones), ones / 2)
        with pytest.raises(Exception, match="fullgraph=True") as raised:
            steps(torch.ones(3, dtype=torch.float16))
    assert "recompile_limit" in str(raised.value.__cause__)


def _halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@compiles
def test_torch_compile_trains_with_its_graph_retained() -> None:
    layer = FullAttention(False, attention_dropout=0.0, backend=loaded("torch-compile"))
    q, k, v = (torch.randn((2, 5, 3, 4), requires_grad=True) for _ in range(3))
    out = layer(q, k, v, None)[0]
    first, second = (torch.autograd.grad(out.sum(), q, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert torch_compile.compiled.cache_info().currsize > 0


# All of torch's.


@pytest.mark.parametrize("name", each(n for n in BUILT_IN if n.startswith("torch-")))
def test_a_backend_attends_alike_after_pickling(name: str) -> None:
    backend = dataclasses.replace(loaded(name))  # what was loaded would go by its name
    copy = pickle.loads(pickle.dumps(backend))
    assert copy is not backend
    q, k, v = (torch.randn((2, 5, 3, 4)) for _ in range(3))
    out, again = (
        FullAttention(False, attention_dropout=0.0, backend=one)(q, k, v, None)[0]
        for one in (backend, copy)
    )
    assert torch.equal(out, again)
