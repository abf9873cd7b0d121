"""The SDPA backends beyond what the conformance suite asks of every backend."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fullattention import FullAttention, UnavailableError, UnsupportedError, load

torch = pytest.importorskip("torch")


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
