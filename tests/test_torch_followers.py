"""Where torch follows a call operation by operation, nothing may run that it cannot see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from fullattention.backends import Backend, UnsupportedError, load, registry
from fullattention.backends.torch_followers import follower
from fullattention.nn import FullAttention, deciding
from tests.faulty_backward import backend_with

Tensors = tuple[torch.Tensor, ...]
Attention = Callable[..., torch.Tensor]

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning",  # make_dual compiles by it
    "ignore:Converting a tensor to a Python:torch.jit.TracerWarning",
    "ignore:There is a performance drop:UserWarning",  # vmap takes SDPA's kernel one by one
)


class Marked(torch.Tensor):
    """A subclass that says nothing of itself."""


def arguments(*leading: int) -> Tensors:
    """q, k, v and a mask."""
    random = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn((*leading, 2, 5, 3, 8), generator=random) for _ in range(3))
    mask = torch.rand((*leading, 2, 1, 5, 5), generator=random) < 0.3
    return q, k, v, mask


def make_dual(x: torch.Tensor) -> torch.Tensor:
    """A tensor with a tangent of ones."""
    ones = torch.ones_like(x)
    return forward_ad.make_dual(x, ones)  # type: ignore[no-untyped-call,no-any-return]


def dual(attention: Attention) -> torch.Tensor:
    q, *rest = arguments()
    with forward_ad.dual_level():
        out = attention(make_dual(q), *rest)
        return forward_ad.unpack_dual(out).tangent  # type: ignore[no-untyped-call,no-any-return]


def vmapped(attention: Attention) -> torch.Tensor:
    return torch.vmap(attention)(*arguments(4))


def vmapped_by_mask(attention: Attention) -> torch.Tensor:
    q, k, v, _ = arguments()
    return torch.vmap(lambda mask: attention(q, k, v, mask))(arguments(4)[3])


def gradient(attention: Attention) -> torch.Tensor:
    found: torch.Tensor = torch.func.grad(lambda q, *rest: attention(q, *rest).sin().sum())(
        *arguments()
    )
    return found


def jvp(attention: Attention) -> torch.Tensor:
    q, *rest = arguments()
    found: torch.Tensor = torch.func.jvp(lambda q: attention(q, *rest), (q,), (q,))[1]
    return found


def hessian_product(attention: Attention) -> torch.Tensor:
    q, *rest = arguments()

    def slope(q: torch.Tensor) -> Any:
        return torch.func.grad(lambda q: attention(q, *rest).sin().sum())(q)

    found: torch.Tensor = torch.func.jvp(slope, (q,), (q,))[1]
    return found


def functionalized(attention: Attention) -> torch.Tensor:
    found: torch.Tensor = torch.func.functionalize(attention)(*arguments())
    return found


def on_twice_the_queries(traced: Attention) -> torch.Tensor:
    """What a trace gives for other numbers than those it was made with."""
    q, *rest = arguments()
    return traced(2 * q, *rest)


def jit_traced(attention: Attention) -> torch.Tensor:
    traced = torch.jit.trace(attention, arguments())  # type: ignore[no-untyped-call]
    return on_twice_the_queries(traced)


def fx_traced(attention: Attention) -> torch.Tensor:
    return on_twice_the_queries(make_fx(attention)(*arguments()))


def fx_traced_for_any_length(attention: Attention) -> torch.Tensor:
    return on_twice_the_queries(make_fx(attention, tracing_mode="symbolic")(*arguments()))


def exported(attention: Attention) -> torch.Tensor:
    class Model(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return attention(*tensors)

    program = torch.export.export(Model(), arguments(), strict=False)
    return on_twice_the_queries(program.module())


def fake(attention: Attention) -> torch.Tensor:
    given = arguments()
    with FakeTensorMode() as mode:
        shape = attention(*map(mode.from_tensor, given)).shape
    return torch.zeros(shape)


def subclassed(attention: Attention) -> torch.Tensor:
    found = attention(*(tensor.as_subclass(Marked) for tensor in arguments()))
    assert type(found) is Marked
    return found.as_subclass(torch.Tensor)


STATES: dict[Callable[[Attention], torch.Tensor], str] = {
    dual: "forward-mode differentiation",
    jvp: "forward-mode differentiation",
    hessian_product: "forward-mode differentiation",
    vmapped: "torch.func",
    vmapped_by_mask: "torch.func",
    gradient: "torch.func",
    functionalized: "torch.func",
    jit_traced: "torch.jit.trace",
    fx_traced: "make_fx",
    fx_traced_for_any_length: "make_fx",
    exported: "torch.export",
    fake: "FakeTensorMode",
    subclassed: "subclasses of torch.Tensor, here Marked",
}
"""What follows a call -> how it is called."""


def by_memory() -> Backend:
    """A backend of kernels with their own backward pass, on memory as torch would see it."""
    return backend_with("none")


def attention_of(layer: Any) -> Attention:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
        out: torch.Tensor = layer(q, k, v, mask)[0]
        return out

    return attention


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wherever "auto" decides, it decides for the backend that torch cannot follow."""
    deciding.forget()
    monkeypatch.setattr(deciding, "_decided", lambda call, tune: by_memory())
    yield
    deciding.forget()


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_auto_gives_what_the_plain_layer_gives(
    decided: None, state: Callable[[Attention], torch.Tensor], weights: bool
) -> None:
    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
        scores = torch.einsum("blhe,bshe->bhls", q, k).masked_fill(mask, -torch.inf)
        return torch.einsum("bhls,bshd->blhd", torch.softmax(scores * 8**-0.5, -1), v)

    layer = FullAttention(True, output_attention=weights).eval()
    expected = state(plain)
    torch.testing.assert_close(state(attention_of(layer)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_a_backend_on_memory_refuses_by_name(state: Callable[[Attention], torch.Tensor]) -> None:
    layer = FullAttention(True, backend=by_memory()).eval()
    with pytest.raises(UnsupportedError, match=f"own-backward.*{STATES[state]}"):
        state(attention_of(layer))


def test_numbas_kernels_refuse_too() -> None:
    pytest.importorskip("numba")
    layer = FullAttention(False, backend="numba-cpu-torch").eval()
    with pytest.raises(UnsupportedError, match="forward-mode"):
        dual(attention_of(layer))


def test_a_backward_pass_on_memory_refuses_a_tangent() -> None:
    layer = FullAttention(True, backend=by_memory()).eval()
    q, k, v, mask = arguments()
    out, _ = layer(q.requires_grad_(), k, v, mask)
    with forward_ad.dual_level():
        g = make_dual(torch.ones_like(out))
        with pytest.raises(UnsupportedError, match="forward-mode"):
            torch.autograd.grad(out, q, g)


def test_plain_calls_are_followed_by_nothing() -> None:
    q, k, v, mask = arguments()
    parameter = torch.nn.Parameter(q)
    assert not follower(parameter, k, v, mask)
    assert not follower(q, k, v, None)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        assert not follower(q, k, v, mask)
    with forward_ad.dual_level():
        assert not follower(q, k, v, mask)


def test_the_first_call_of_all_may_be_followed(
    decided: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = FullAttention(True).eval()
    monkeypatch.setattr(deciding, "_defaults", {})
    registry._loaded.cache_clear()  # noqa: SLF001 - as in a new process
    assert vmapped(attention_of(layer)).shape == (4, 2, 5, 3, 8)
    assert "mask" not in load("torch-sdpa").lacks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", [False, True])
def test_torch_compile_takes_the_whole_layer_without_a_warning(
    decided: None, weights: bool, dtype: torch.dtype
) -> None:
    layer = FullAttention(True, output_attention=weights).eval()
    q, k, v, mask = arguments()
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    try:
        out, _ = compiled(q, k, v, mask)
    finally:
        torch.compiler.reset()
    torch.testing.assert_close(out, layer(q, k, v, mask)[0], rtol=0.05, atol=0.05)


def test_explain_says_what_follows_a_call(decided: None) -> None:
    layer = FullAttention(True).eval()
    said = []

    def explaining(*tensors: torch.Tensor) -> torch.Tensor:
        said.append(layer.explain(*tensors))
        return tensors[0]

    vmapped(explaining)
    assert said == ["torch-sdpa, by default: a transform of torch.func sees operations"]
