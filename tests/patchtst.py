"""A small PatchTST as Time-Series-Library builds one, with its attention layer as a parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.zoo.layers import UpstreamLayer

PATCH, STRIDE = 16, 8


class TopKeysAttention(UpstreamLayer):
    """The same signature and settings, and another result: each query sees its best keys only."""

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attn_mask: Any,
        tau: Any = None,
        delta: Any = None,
    ) -> Any:
        scores = torch.einsum("blhe,bshe->bhls", queries, keys)
        best = scores.topk(min(25, keys.shape[1]), dim=-1).values[..., -1:]
        weights = torch.softmax(scores.masked_fill(scores < best, -torch.inf), dim=-1)
        return torch.einsum("bhls,bshd->blhd", weights, values), None


class ScaledByTauAttention(UpstreamLayer):
    """Like the layer of non-stationary transformers: the same until it is given tau."""

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attn_mask: Any,
        tau: Any = None,
        delta: Any = None,
    ) -> Any:
        if tau is not None:
            queries = queries * tau[:, :, None, None]
        return super().forward(queries, keys, values, attn_mask)


class AttentionLayer(nn.Module):
    """Projections into heads around the innermost layer."""

    def __init__(self, attention: nn.Module, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.inner_attention = attention
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)
        self.n_heads = n_heads

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attn_mask: Any,
        tau: Any = None,
        delta: Any = None,
    ) -> tuple[torch.Tensor, Any]:
        B, L, _ = queries.shape
        q, k, v = (
            projection(x).view(B, x.shape[1], self.n_heads, -1)
            for projection, x in (
                (self.query_projection, queries),
                (self.key_projection, keys),
                (self.value_projection, values),
            )
        )
        out, weights = self.inner_attention(q, k, v, attn_mask, tau=tau, delta=delta)
        return self.out_projection(out.view(B, L, -1)), weights


class EncoderLayer(nn.Module):
    def __init__(self, attention: AttentionLayer, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, d_ff), nn.GELU(), nn.Linear(d_ff, d_model)
        )
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.attention(x, x, x, attn_mask=None)[0])
        return self.norm2(x + self.feed_forward(x))  # type: ignore[no-any-return]


class PatchTST(nn.Module):
    """Series (batch, time, variates) -> forecast (batch, horizon, variates), variate by variate."""

    def __init__(
        self,
        attention: Callable[..., nn.Module] = UpstreamLayer,
        *,
        steps: int = 96,
        horizon: int = 24,
        d_model: int = 32,
        n_heads: int = 4,
        layers: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        patches = (steps - PATCH) // STRIDE + 2
        self.pad = nn.ReplicationPad1d((0, STRIDE))
        self.embed = nn.Linear(PATCH, d_model, bias=False)
        self.position = nn.Parameter(0.02 * torch.randn(patches, d_model))
        self.encoder = nn.ModuleList(
            EncoderLayer(
                AttentionLayer(attention(False, attention_dropout=dropout), d_model, n_heads),
                d_model,
                2 * d_model,
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(patches * d_model, horizon)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        B, _, variates = series.shape
        patches = self.pad(series.transpose(1, 2)).unfold(-1, PATCH, STRIDE)
        x = self.embed(patches.reshape(B * variates, -1, PATCH)) + self.position
        for layer in self.encoder:
            x = layer(x)
        return self.head(x.flatten(1)).view(B, variates, -1).transpose(1, 2)  # type: ignore[no-any-return]
