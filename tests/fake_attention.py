"""Stand-ins for libraries that need a GPU: their functions' signatures and rules, by einsum.

What a function refuses here, the real one refuses, or is known to answer wrongly.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    scale: float,
    dropout: float,
) -> torch.Tensor:
    """V (B, L, H, D) in the arguments' dtype, computed in float32."""
    scores = scale * torch.einsum("blhe,bshe->bhls", q.float(), k.float())
    if bias is not None:
        scores = scores + bias
    a = F.dropout(torch.softmax(scores, -1), dropout)
    return torch.einsum("bhls,bshd->blhd", a, v.float()).to(q.dtype)


def later_by_the_last(L: int, S: int) -> torch.Tensor:
    """-inf where a key lies after a query, both counted from the end."""
    return torch.full((L, S), -torch.inf).triu(S - L + 1)


def can_load(tensor: torch.Tensor) -> bool:
    """Whether rows lie where a kernel loads them: whole chunks of 16 bytes as they lie.

    Others are filled up, and thereby copied, by the libraries themselves.
    """
    size = tensor.element_size()
    places = (tensor.data_ptr(), *(size * step for step in tensor.stride()[:-1]))
    return bool(tensor.shape[-1] * size % 16) or all(place % 16 == 0 for place in places)


@dataclass
class FlashAttn:
    """`flash_attn`, which notes the arguments of each call."""

    calls: list[dict[str, Any]] = field(default_factory=list)

    def flash_attn_func(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: torch.Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> torch.Tensor:
        self.calls.append(
            {"scale": softmax_scale, "causal": causal, "p": dropout_p, "shape": tuple(q.shape)}
        )
        (B, L, H, E), S = q.shape, k.shape[1]
        assert k.shape == v.shape == (B, S, H, E), "one width for all"
        assert E <= 256
        assert all(x.dtype in (torch.float16, torch.bfloat16) for x in (q, k, v))
        assert all(x.stride(-1) == 1 and can_load(x) for x in (q, k, v))
        assert 0 <= dropout_p < 1
        assert softmax_scale is not None
        assert softmax_scale > 0, "it finds the largest score before it scales"
        bias = later_by_the_last(L, S) if causal else None
        return attention(q, k, v, bias=bias, scale=softmax_scale, dropout=dropout_p)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = ModuleType("flash_attn")
        vars(module).update(flash_attn_func=self.flash_attn_func, __version__="2.8.3")
        monkeypatch.setitem(sys.modules, "flash_attn", module)


class LowerTriangularMask:
    """Of xFormers: a key after a query's own position is hidden, counted from the start."""


@dataclass
class Xformers:
    """`xformers.ops`, which notes the arguments of each call."""

    calls: list[dict[str, Any]] = field(default_factory=list)

    def memory_efficient_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_bias: torch.Tensor | LowerTriangularMask | None = None,
        p: float = 0.0,
        scale: float | None = None,
        *,
        op: Any = None,
    ) -> torch.Tensor:
        self.calls.append({"scale": scale, "bias": attn_bias, "p": p, "shape": tuple(query.shape)})
        (B, L, H, E), S, D = query.shape, key.shape[1], value.shape[3]
        assert key.shape == (B, S, H, E)
        assert value.shape == (B, S, H, D)
        assert E % 8 == D % 8 == 0, "else it may find no kernel"
        assert all(x.stride(-1) == 1 and can_load(x) for x in (query, key, value))
        assert 0 <= p < 1
        assert scale is not None
        bias: torch.Tensor | None = None
        if isinstance(attn_bias, LowerTriangularMask):
            bias = torch.full((L, S), -torch.inf).triu(1)
        elif attn_bias is not None:
            assert attn_bias.shape == (B, H, L, S)
            assert attn_bias.dtype == query.dtype
            assert all(step % 8 == 0 for step in attn_bias.stride()[:-1])
            bias = attn_bias
        return attention(query, key, value, bias=bias, scale=scale, dropout=p)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        package, ops = ModuleType("xformers"), ModuleType("xformers.ops")
        vars(ops).update(
            memory_efficient_attention=self.memory_efficient_attention,
            LowerTriangularMask=LowerTriangularMask,
        )
        vars(package).update(ops=ops, __version__="0.0.35")
        monkeypatch.setitem(sys.modules, "xformers", package)
        monkeypatch.setitem(sys.modules, "xformers.ops", ops)
