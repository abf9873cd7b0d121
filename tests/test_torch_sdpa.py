"""The SDPA backends beyond what the conformance suite asks of every backend."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import pytest

from fullattention import Backend, FullAttention, UnavailableError, UnsupportedError, load

torch = pytest.importorskip("torch")
from fullattention.backends import torch_arrays, torch_sdpa  # noqa: E402 - need torch


def test_forcing_kernels_from_two_threads_leaves_torchs_own_choice_as_it_was() -> None:
    from torch.nn.attention import _cur_sdpa_kernel_backends

    before = _cur_sdpa_kernel_backends()
    x = torch.ones((2, 16, 2, 8))
    layers = [
        FullAttention(False, attention_dropout=0.0, backend=name)
        for name in ("torch-sdpa-math", "torch-sdpa-flash")
    ]

    def call(layer: FullAttention) -> None:
        for _ in range(200):
            layer(x, x, x, None)

    threads = [threading.Thread(target=call, args=(layer,)) for layer in layers * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _cur_sdpa_kernel_backends() == before


def test_a_plain_call_beside_a_forced_kernel_keeps_torchs_choice() -> None:
    x = torch.ones((2, 16, 2, 8))
    flash = FullAttention(False, attention_dropout=0.0, backend="torch-sdpa-flash")
    plain = FullAttention(False, attention_dropout=0.5, backend="torch-sdpa")
    done = threading.Event()

    def force() -> None:
        while not done.is_set():
            flash(x, x, x, None)

    forcing = threading.Thread(target=force)
    forcing.start()
    try:
        for _ in range(300):  # flash drops no weights, so under its rule this would raise
            plain(x, x, x, None)
    finally:
        done.set()
        forcing.join()


def test_plain_calls_of_two_threads_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = FullAttention(False, attention_dropout=0.0, backend="torch-sdpa")
    both = threading.Barrier(2, timeout=60)
    attend = torch.nn.functional.scaled_dot_product_attention

    def attend_together(*arguments: Any, **named: Any) -> Any:
        both.wait()  # for ever, or until it breaks, where one thread waits for the other's end
        return attend(*arguments, **named)

    functional = torch.nn.functional
    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend_together)
    x = torch.ones((2, 16, 2, 8))
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(layer, x, x, x, None) for _ in range(2)]
    for call in calls:
        call.result()


def test_torch_compile_leaves_a_forced_kernel_as_it_is_and_warns_of_nothing() -> None:
    """Warnings are errors here."""
    layer = FullAttention(False, attention_dropout=0.0, backend="torch-sdpa-math")
    q, k, v = (torch.randn((2, 5, 3, 8)) for _ in range(3))
    compiled = torch.compile(lambda q, k, v: layer(q, k, v, None)[0] + 1, backend="eager")
    assert torch.equal(compiled(q, k, v), layer(q, k, v, None)[0] + 1)


def test_a_kernel_that_torch_refuses_says_so_in_torchs_words() -> None:
    flash = load("torch-sdpa-flash")
    if "dropout" not in flash.lacks:
        pytest.skip("this torch drops weights in its CPU flash kernel")
    assert "torch: " in flash.lacks["dropout"]
    x = torch.ones((1, 4, 1, 8))
    with pytest.raises(UnsupportedError, match="torch: "):
        FullAttention(False, attention_dropout=0.5, backend=flash)(x, x, x, None)


@pytest.mark.parametrize("name", ["torch-sdpa-efficient", "torch-sdpa-cudnn"])
def test_a_kernel_of_another_device_is_unavailable_with_a_reason(name: str) -> None:
    with pytest.raises(UnavailableError, match="torch"):
        load(name, "cpu")


# On CUDA, whose kernels and whose words about them are stood in for.


def on_cuda(monkeypatch: pytest.MonkeyPatch, build: Callable[[str], Backend]) -> Backend:
    """A backend as it would be there; its tensors may lie on the CPU."""
    monkeypatch.setattr(torch_arrays, "require_device", lambda name, device: None)
    monkeypatch.setattr(torch_sdpa, "_refusals", lambda attend, device: {})
    return build("cuda")


def refuse(because: str, *, once: bool = False) -> Callable[..., NoReturn]:
    """torch's SDPA where flash alone is allowed, and refuses the call."""

    def refusing(*arrays: Any, **options: Any) -> NoReturn:
        told = torch.is_warn_always_enabled() or not once
        for text in (
            "Memory efficient kernel not used because:",
            "Memory Efficient attention has been runtime disabled.",
            "Flash attention kernel not used because:",
            *([because] if told else []),
            "cuDNN attention kernel not used because:",
            "cuDNN attention has been runtime disabled.",
        ):
            warnings.warn(f"{text} (Triggered internally at sdp_utils.cpp:1.)", stacklevel=2)
        raise RuntimeError("No available kernel. Aborting execution.")

    return refusing


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("once", [False, True])
def test_the_reason_is_that_of_the_kernel_asked_for_even_if_torch_tells_it_once(
    once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    functional = torch.nn.functional
    refusing = refuse("Flash attention takes at most 256", once=once)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", refusing)
    flash = on_cuda(monkeypatch, torch_sdpa.flash_attention)
    x = torch.ones((1, 4, 1, 8))
    with pytest.raises(UnsupportedError) as refusal:
        flash.attend(x, x, x, hidden=None, causal=False, scale=1.0, dropout=0.0, weights=False)
    assert refusal.value.reason == "torch: Flash attention takes at most 256"
    assert not torch.is_warn_always_enabled()


@pytest.mark.parametrize(
    ("error", "shape", "told"),
    [
        ("CUDA error: invalid configuration argument", (65_536, 1, 1, 8), "65536 along the batch"),
        ("CUDA error: invalid configuration argument", (1, 1, 65_536, 8), "65536 along the heads"),
        ("valid offsets when the batch size exceeds (65535).", (65_536, 1, 1, 8), "65536 along"),
    ],
)
@pytest.mark.parametrize("build", [torch_sdpa.backend, torch_sdpa.efficient])
def test_more_heads_than_a_grid_takes_are_refused_by_the_limit(
    build: Callable[[str], Backend],
    error: str,
    shape: tuple[int, ...],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arrays: Any, **options: Any) -> NoReturn:
        raise RuntimeError(error)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fail)
    attend = on_cuda(monkeypatch, build).attend
    options: dict[str, Any] = {"causal": False, "scale": 1.0, "dropout": 0.0, "weights": False}
    x, few = torch.ones(shape), torch.ones((2, 1, 2, 8))
    with pytest.raises(UnsupportedError, match=f"{told}.*65535"):
        attend(x, x, x, hidden=None, **options)
    with pytest.raises(RuntimeError, match=error[:10]) as kept:  # there, it says something else
        attend(few, few, few, hidden=None, **options)
    assert not isinstance(kept.value, UnsupportedError)


@pytest.mark.parametrize(
    ("build", "unordered"),
    [
        (torch_sdpa.backend, True),
        (torch_sdpa.flash_attention, True),
        (torch_sdpa.efficient, True),
        (torch_sdpa.cudnn, True),
        (torch_sdpa.math, False),
    ],
)
def test_fused_kernels_on_cuda_declare_that_they_sum_gradients_in_any_order(
    build: Callable[[str], Backend], unordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = on_cuda(monkeypatch, build).lacks
    assert ("deterministic_gradient" in lacks) == unordered
    assert "determinism" not in lacks


def test_fused_kernels_on_the_cpu_sum_in_order() -> None:
    assert "deterministic_gradient" not in load("torch-sdpa-flash").lacks


def test_a_mask_that_is_broadcast_over_keys_comes_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's memory-efficient kernel raises otherwise."""
    given: list[Any] = []
    functional = torch.nn.functional
    attend = functional.scaled_dot_product_attention

    def noted(*arrays: Any, attn_mask: Any, **options: Any) -> Any:
        given.append(attn_mask)
        return attend(*arrays, attn_mask=attn_mask, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", noted)
    q, k = torch.ones((2, 3, 2, 8)), torch.ones((2, 5, 2, 8))
    mask = torch.tensor([[False], [True], [False]])  # (L, 1)
    FullAttention(True, attention_dropout=0.0, backend="torch-sdpa")(q, k, k, mask)
    assert given[0].shape[-1] == 5
    assert given[0].stride(-1) == 1


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (torch_sdpa.efficient, [16, 16, 8]),
        (torch_sdpa.cudnn, [16, 16, 8]),
        (torch_sdpa.flash_attention, [16, 16, 16]),
    ],
)
def test_kernels_that_take_whole_chunks_get_widths_filled_up(
    build: Callable[[str], Backend], wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = (torch.randn((2, 5, 3, 2 * n))[..., ::2] for n in (11, 11, 3))
    options: dict[str, Any] = {"causal": False, "scale": 0.3, "dropout": 0.0, "weights": False}
    want, _ = load("torch-sdpa-math").attend(q, k, v, hidden=None, **options)
    widths: list[list[int]] = []
    functional = torch.nn.functional
    attend = functional.scaled_dot_product_attention

    def noted(*arrays: Any, **options: Any) -> Any:
        widths.append([array.shape[-1] for array in arrays])
        assert all(array.stride(-1) == 1 for array in arrays)
        return attend(*arrays, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", noted)
    monkeypatch.setattr(torch_sdpa, "sdpa_kernel", contextlib.nullcontext)
    out, _ = on_cuda(monkeypatch, build).attend(q, k, v, hidden=None, **options)
    assert widths[0] == wanted
    torch.testing.assert_close(out, want)


@pytest.mark.parametrize("build", [torch_sdpa.backend, torch_sdpa.flash_attention])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_kernels_on_cuda_get_rows_that_they_can_load(
    build: Callable[[str], Backend], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (2, 5, 3, 8)
    dense = torch.randn(shape, dtype=dtype)
    late = torch.empty(240 + 1, dtype=dtype)[1:].view(shape).copy_(dense)
    spaced = torch.empty((2, 5, 3, 13), dtype=dtype)[..., :8].copy_(dense)
    given: list[Any] = []

    def noted(*arrays: Any, **options: Any) -> Any:
        given.extend(array.transpose(1, 2) for array in arrays)
        return arrays[2]

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    monkeypatch.setattr(torch_sdpa, "sdpa_kernel", contextlib.nullcontext)
    options: dict[str, Any] = {"causal": False, "scale": 0.3, "dropout": 0.0, "weights": False}
    on_cuda(monkeypatch, build).attend(late, spaced, dense, hidden=None, **options)
    size = dense.element_size()
    for array in given:
        places = (array.data_ptr(), *(step * size for step in array.stride()[:-1]))
        assert all(place % 16 == 0 for place in places)
        assert torch.equal(array, dense)
    assert given[2].data_ptr() == dense.data_ptr()  # which is not copied
