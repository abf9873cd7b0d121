"""Adapters of GPU libraries, on stand-ins that hold them to the libraries' rules."""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any

import pytest
import torch

from fullattention import FullAttention, UnavailableError, UnsupportedError
from fullattention.backends import Backend, flash_attn_2, registry, xformers_attention
from fullattention.conformance.subject import from_backend
from fullattention.conformance.suite import judge_subject
from tests.fake_attention import FlashAttn, LowerTriangularMask, Xformers


@pytest.fixture
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> FlashAttn:
    fake = FlashAttn()
    fake.install(monkeypatch)
    return fake


@pytest.fixture
def xformers(monkeypatch: pytest.MonkeyPatch) -> Xformers:
    fake = Xformers()
    fake.install(monkeypatch)
    return fake


def called(backend: Backend, *, L: int = 3, S: int = 3, E: int = 8, **named: Any) -> None:
    """Call a layer once, causally unless told otherwise."""
    q, k, v = (torch.ones((2, T, 4, n), dtype=torch.float16) for T, n in ((L, E), (S, E), (S, 8)))
    mask = named.pop("mask", None)
    settings = {"mask_flag": True, "attention_dropout": 0.0, **named}
    FullAttention(backend=backend, **settings)(q, k, v, mask)


FLASH = flash_attn_2.adapter("cpu", "fake")
XFORMERS = xformers_attention.adapter("cpu", "fake")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_flash_attn_is_conformant_where_its_function_keeps_its_word(
    dtype: str, flash_attn: FlashAttn
) -> None:
    verdict = judge_subject(from_backend(FLASH), dtypes=(dtype,))
    assert verdict.conformant, [r for r in verdict.results if r.status == "failed"]
    assert len(flash_attn.calls) > 20


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_xformers_is_conformant_where_its_function_keeps_its_word(
    dtype: str, xformers: Xformers
) -> None:
    verdict = judge_subject(from_backend(XFORMERS), dtypes=(dtype,))
    assert verdict.conformant, [r for r in verdict.results if r.status == "failed"]
    assert len(xformers.calls) > 100


def test_flash_attn_declares_that_it_sums_gradients_in_any_order() -> None:
    assert "deterministic_gradient" in FLASH.lacks


def test_flash_attn_gets_our_layout_scale_and_causal(flash_attn: FlashAttn) -> None:
    called(FLASH, scale=0.3)
    called(FLASH, scale=-0.3, mask_flag=False)
    called(FLASH, L=1, S=5)
    assert flash_attn.calls == [
        {"scale": 0.3, "causal": True, "p": 0.0, "shape": (2, 3, 4, 8)},
        {"scale": 0.3, "causal": False, "p": 0.0, "shape": (2, 3, 4, 8)},
        {"scale": 1 / math.sqrt(8), "causal": False, "p": 0.0, "shape": (2, 1, 4, 8)},
    ]


def test_xformers_gets_its_own_causal_mask_and_ours_as_a_bias(xformers: Xformers) -> None:
    called(XFORMERS, scale=0.3)
    called(XFORMERS, mask=torch.tensor([False, True, False]))
    causal, masked = xformers.calls
    assert isinstance(causal["bias"], LowerTriangularMask)
    assert causal["scale"] == 0.3
    assert causal["shape"] == (2, 3, 4, 8)
    expected = torch.tensor([0.0, -torch.inf, 0.0]).expand(2, 4, 3, 3)
    assert torch.equal(masked["bias"].float(), expected)


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ({"mask": torch.zeros((3, 3), dtype=torch.bool)}, "mask"),
        ({"output_attention": True}, "weights"),
        ({"mask_flag": False, "E": 264}, "264 features.*256"),
    ],
)
def test_flash_attn_refuses_what_its_function_cannot(
    needs: dict[str, Any], words: str, flash_attn: FlashAttn
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        called(FLASH, **needs)
    assert not flash_attn.calls


@pytest.mark.parametrize("width", [8, 11])
@pytest.mark.parametrize("backend", [FLASH, XFORMERS])
def test_their_kernels_get_rows_that_they_can_load(
    backend: Backend, width: int, flash_attn: FlashAttn, xformers: Xformers
) -> None:
    """Else their stand-ins raise."""
    x = torch.ones(2 * 3 * 4 * width + 1, dtype=torch.float16)[1:].view((2, 3, 4, width))
    FullAttention(False, attention_dropout=0.0, backend=backend)(x, x, x, None)
    assert len(flash_attn.calls) + len(xformers.calls) == 1


@pytest.mark.usefixtures("flash_attn", "xformers")
@pytest.mark.parametrize("backend", [FLASH, XFORMERS])
def test_more_batch_entries_than_a_grid_takes_are_refused_by_the_limit(backend: Backend) -> None:
    x = torch.ones((65_536, 1, 1, 8), dtype=torch.float16)
    with pytest.raises(UnsupportedError, match=r"65536 along the batch axis.*65535"):
        FullAttention(False, attention_dropout=0.0, backend=backend)(x, x, x, None)


@pytest.mark.parametrize(
    ("name", "library"), [("flash-attn", "flash_attn"), ("xformers", "xformers")]
)
def test_a_missing_library_is_named(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UnavailableError, match=f"{library} is not installed: pip install {name}"):
        registry._loaded.__wrapped__(name, "cuda")  # noqa: SLF001 - anew


def test_a_library_built_for_another_torch_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise ImportError("flash_attn_2_cuda.so: undefined symbol: _ZN3c10\nand so on")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(UnavailableError, match=r"flash_attn does not load: .*undefined symbol"):
        flash_attn_2.backend("cuda")


def test_an_installed_library_is_unavailable_on_the_cpu(flash_attn: FlashAttn) -> None:
    with pytest.raises(UnavailableError, match="run on 'cuda' only, not on 'cpu'"):
        registry._loaded.__wrapped__("flash-attn", "cpu")  # noqa: SLF001 - anew
