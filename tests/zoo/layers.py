"""The layer as classes, in NumPy and in torch, with one method for each decision it makes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from fullattention.backends import numpy_arrays
from fullattention.backends.interface import Array
from tests.zoo.attending import Call, Method, Plain

plain = Plain(drop=numpy_arrays.drop)


class NumpyLayer:
    """The layer by the plain method; refuses what NumPy would broadcast."""

    method: Method = staticmethod(plain)

    def __init__(
        self,
        mask_flag: bool = True,
        factor: int = 5,
        scale: float | None = None,
        attention_dropout: float = 0.1,
        output_attention: bool = False,
    ) -> None:
        if not 0 <= attention_dropout <= 1:
            raise ValueError(f"attention_dropout is {attention_dropout}, not a probability")
        self.mask_flag = mask_flag
        self.factor = factor
        self.scale = scale
        self.p = attention_dropout
        self.output_attention = output_attention
        self.training = True

    def train(self, mode: bool = True) -> NumpyLayer:
        self.training = mode
        return self

    def eval(self) -> NumpyLayer:
        return self.train(False)

    def __call__(
        self, queries: Array, keys: Array, values: Array, attn_mask: Any, **unused: Any
    ) -> Any:
        self.check(queries, keys, values)
        L, S, E = queries.shape[1], keys.shape[1], queries.shape[3]
        if keys.shape[1] == 0:
            return self.without_keys(queries, values)
        call = Call(
            q=queries,
            k=keys,
            v=values,
            hidden=self.hidden(attn_mask, L, S),
            causal=False,
            scale=self.factor_on_scores(E, unused),
            dropout=self.dropout(),
            weights=self.output_attention,
        )
        self.check_mask(call)
        with np.errstate(all="ignore"):
            return self.returned(*type(self).method(call))

    def check(self, queries: Array, keys: Array, values: Array) -> None:
        B, _, H, E = queries.shape
        S, D = values.shape[1], values.shape[3]
        if keys.shape != (B, S, H, E) or values.shape != (B, S, H, D):
            raise ValueError(f"shapes {queries.shape}, {keys.shape}, {values.shape} do not match")
        if not queries.dtype == keys.dtype == values.dtype:
            raise TypeError(f"dtypes {queries.dtype}, {keys.dtype}, {values.dtype} differ")
        if queries.dtype.kind in "iubc":
            raise TypeError(f"dtype {queries.dtype} is not real floating-point")

    def check_mask(self, call: Call) -> None:
        if call.hidden is None:
            return
        if call.hidden.dtype != bool:
            raise TypeError(f"attn_mask is {call.hidden.dtype}, not bool")
        B, L, H, _ = call.q.shape
        np.broadcast_to(call.hidden, (B, H, L, call.k.shape[1]))

    def hidden(self, attn_mask: Any, L: int, S: int) -> Array | None:
        if not self.mask_flag:
            return None
        return self.causal(L, S) if attn_mask is None else self.given(attn_mask)

    def given(self, attn_mask: Any) -> Array:
        mask: Array = attn_mask.mask
        return mask

    def causal(self, L: int, S: int) -> Array | None:
        return np.triu(np.ones((L, L), bool), 1) if L > 1 else None

    def factor_on_scores(self, E: int, unused: dict[str, Any]) -> float:
        return self.scale or 1 / math.sqrt(E)

    def dropout(self) -> float:
        return self.p if self.training else 0.0

    def without_keys(self, queries: Array, values: Array) -> Any:
        B, L, H, _ = queries.shape
        weights = np.zeros((B, H, L, 0), queries.dtype) if self.output_attention else None
        return self.returned(np.zeros((B, L, H, values.shape[3]), values.dtype), weights)

    def returned(self, out: Array, a: Array | None) -> Any:
        return np.ascontiguousarray(out), a


class UpstreamLayer(torch.nn.Module):
    """The layer as Time-Series-Library has it."""

    def __init__(
        self,
        mask_flag: bool = True,
        factor: int = 5,
        scale: float | None = None,
        attention_dropout: float = 0.1,
        output_attention: bool = False,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.mask_flag = mask_flag
        self.output_attention = output_attention
        self.dropout = torch.nn.Dropout(attention_dropout)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attn_mask: Any,
        tau: Any = None,
        delta: Any = None,
    ) -> Any:
        B, L, _, E = queries.shape
        scale = self.scale or 1.0 / math.sqrt(E)
        scores = torch.einsum("blhe,bshe->bhls", queries, keys)
        if self.mask_flag:
            if attn_mask is None:
                attn_mask = triangular_causal_mask(B, L, queries.device)
            scores.masked_fill_(attn_mask.mask, -np.inf)
        a = self.dropout(torch.softmax(scale * scores, dim=-1))
        out = torch.einsum("bhls,bshd->blhd", a, values)
        return out.contiguous(), a if self.output_attention else None


def triangular_causal_mask(B: int, L: int, device: torch.device) -> SimpleNamespace:
    ones = torch.ones((B, 1, L, L), dtype=torch.bool, device=device)
    return SimpleNamespace(mask=ones.triu(1))


class FusedLayer(torch.nn.Module):
    """The layer by scaled_dot_product_attention, as forecasting libraries replace it."""

    def __init__(
        self,
        mask_flag: bool = True,
        factor: int = 5,
        scale: float | None = None,
        attention_dropout: float = 0.1,
        output_attention: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= attention_dropout <= 1:
            raise ValueError(f"attention_dropout is {attention_dropout}, not a probability")
        self.scale = scale
        self.mask_flag = mask_flag
        self.p = attention_dropout

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attn_mask: Any,
        tau: Any = None,
        delta: Any = None,
    ) -> Any:
        causal = self.mask_flag and attn_mask is None
        if causal and queries.shape[1] not in (1, keys.shape[1]):
            raise ValueError("causal attention needs L == S")
        q, k, v = (x.transpose(1, 2) for x in (queries, keys, values))
        out = F.scaled_dot_product_attention(
            *(q, k, v),
            attn_mask=self.visible(attn_mask),
            dropout_p=self.dropout(),
            is_causal=causal and self.causal(queries.shape[1]),
            scale=self.factor_on_scores(),
        )
        return out.transpose(1, 2).contiguous(), None

    def visible(self, attn_mask: Any) -> torch.Tensor | None:
        return ~attn_mask.mask if self.mask_flag and attn_mask is not None else None

    def dropout(self) -> float:
        return self.p if self.training else 0.0

    def causal(self, L: int) -> bool:
        return L > 1

    def factor_on_scores(self) -> float | None:
        return self.scale or None
