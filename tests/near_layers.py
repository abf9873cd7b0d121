"""Layers with the signature and the settings of FullAttention that do nearly what it does."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.zoo.layers import UpstreamLayer

TOLD = {
    "RawScores": "plain it returns something else as weights",
    "Unasked": "plain it returns weights without being asked",
    "OnlyV": "plain it does not return a pair",
    "DropsNothing": "with dropout it drops nothing",
    "DropsScores": "with dropout it drops nothing",
    "DropsV": "with dropout it computes something else",
    "DropsValues": "with dropout it drops nothing, or alike along a whole axis",
    "DropsKeys": "with dropout it drops nothing, or alike along a whole axis",
    "KeepsTheSum": "with dropout it computes something else",
    "AlwaysDrops": "plain it computes something else",
    "FlipsAcross": "with 37 queries and 70 keys it computes something else",
    "Clamps": "with large scores it computes something else",
    "Forgets": "with 200 queries and keys it computes something else",
    "DoublesInFloat32": "in float32 it computes something else",
    "DetachesKeys": "plain it has another gradient of keys",
    "DetachesWeights": "plain it has another gradient of queries",
}
"""What `replace` says of each."""

WEIGHTS = ("RawScores", "DetachesWeights")
"""Those that differ where weights are asked for."""


class Near(UpstreamLayer):
    """The layer step by step, without masks."""

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attn_mask: Any,
        tau: Any = None,
        delta: Any = None,
    ) -> Any:
        scores = queries.shape[-1] ** -0.5 * torch.einsum("blhe,bshe->bhls", queries, keys)
        weights = self.weights(scores)
        return self.returned(torch.einsum("bhls,bshd->blhd", weights, values), weights, scores)

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.softmax(scores, dim=-1))  # type: ignore[no-any-return]

    def returned(self, out: torch.Tensor, weights: torch.Tensor, scores: torch.Tensor) -> Any:
        return out, weights if self.output_attention else None


class RawScores(Near):
    def returned(self, out: torch.Tensor, weights: torch.Tensor, scores: torch.Tensor) -> Any:
        return out, scores


class Unasked(Near):
    def returned(self, out: torch.Tensor, weights: torch.Tensor, scores: torch.Tensor) -> Any:
        return out, weights


class OnlyV(Near):
    def returned(self, out: torch.Tensor, weights: torch.Tensor, scores: torch.Tensor) -> Any:
        return out


class Keeps(Near):
    """It keeps its last weights, for people to look at."""

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        self.last = super().weights(scores)
        return self.last


class Clamps(Near):
    """Scores are kept within a range, so that exp cannot overflow."""

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        return super().weights(scores.clamp(-30, 30))


class DropsNothing(Near):
    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores, dim=-1)


class DropsScores(Near):
    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.dropout(scores), dim=-1)


class DropsV(DropsNothing):
    def returned(self, out: torch.Tensor, weights: torch.Tensor, scores: torch.Tensor) -> Any:
        return self.dropout(out), None


class DropsValues(DropsNothing):
    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attn_mask: Any,
        tau: Any = None,
        delta: Any = None,
    ) -> Any:
        return super().forward(queries, keys, self.dropout(values), attn_mask)


class DropsKeys(Near):
    """The same keys for all queries."""

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        kept: torch.Tensor = self.dropout(torch.ones_like(scores[:, :, :1]))
        return kept * torch.softmax(scores, dim=-1)


class KeepsTheSum(Near):
    """What is left of the weights is made to add up to 1 again."""

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        dropped = super().weights(scores)
        return dropped / dropped.sum(-1, keepdim=True)


class AlwaysDrops(Near):
    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(torch.softmax(scores, dim=-1), self.dropout.p)


class Adjusts(UpstreamLayer):
    """The layer, of arrays that are adjusted before."""

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attn_mask: Any,
        tau: Any = None,
        delta: Any = None,
    ) -> Any:
        return super().forward(*self.adjusted(queries, keys, values), attn_mask)

    def adjusted(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return queries, keys, values


class FlipsAcross(Adjusts):
    """Other values in cross-attention alone."""

    def adjusted(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
        return queries, keys, values if queries.shape[1] == keys.shape[1] else values.flip(1)


class Forgets(Adjusts):
    """No more than its first values count."""

    def adjusted(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
        within = torch.arange(values.shape[1]) < 128
        return queries, keys, values * within[:, None, None]


class DoublesInFloat32(Adjusts):
    def adjusted(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
        return 2 * queries if queries.dtype == torch.float32 else queries, keys, values


class DetachesKeys(Adjusts):
    def adjusted(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
        return queries, keys.detach(), values


class DetachesWeights(Near):
    def returned(self, out: torch.Tensor, weights: torch.Tensor, scores: torch.Tensor) -> Any:
        return out, weights.detach()
