"""Layers that are wrong where two traits of a call meet, or in a pass that few calls take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from tests.zoo.layers import UpstreamLayer, triangular_causal_mask
from tests.zoo.specimen import Specimen

COMBINED: list[Specimen] = []


def fault(kind: str, violates: str) -> Callable[[type], type]:
    """Enter a class in the list, with its docstring as the reason."""

    def enter(layer: type) -> type:
        COMBINED.append(
            Specimen(
                name=layer.__name__,
                kind=kind,
                reason=layer.__doc__ or "",
                candidate=layer,
                violates=tuple(violates.split()),
            )
        )
        return layer

    return enter


class Stepwise(UpstreamLayer):
    """The upstream layer as steps, for one of which a fault stands."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.p = self.dropout.p

    def forward(self, *arguments: Any, **options: Any) -> Any:
        q, k, v, mask = arguments
        hidden = None
        if self.mask_flag:
            mask = triangular_causal_mask(len(q), q.shape[1], q.device) if mask is None else mask
            hidden = mask.mask
        causal = self.mask_flag and arguments[3] is None
        scores = self.scores(q, k, causal=causal)
        if hidden is not None:
            scores.masked_fill_(self.hides(hidden), self.fill())
        a = torch.softmax(self.factor(q.shape[-1]) * scores, dim=-1)
        dropped = self.drop(a, hidden)
        out = self.result(torch.einsum("bhls,bshd->blhd", dropped, v), hidden)
        return out, self.returned(a, dropped, hidden) if self.output_attention else None

    def scores(self, q: Any, k: Any, *, causal: bool) -> Any:
        return torch.einsum("blhe,bshe->bhls", q, k)

    def hides(self, hidden: Any) -> Any:
        return hidden

    def fill(self) -> float:
        return -math.inf

    def factor(self, E: int) -> float:
        return self.scale or 1 / math.sqrt(E)

    def drop(self, a: Any, hidden: Any) -> Any:
        return F.dropout(a, self.p, self.training)

    def result(self, out: Any, hidden: Any) -> Any:
        return out.contiguous()

    def returned(self, a: Any, dropped: Any, hidden: Any) -> Any:
        return dropped

    @property
    def drops(self) -> bool:
        return self.training and 0 < self.p < 1


def passes(x: Any, forward: Callable[[Any], Any], backward: Callable[[Any], Any]) -> Any:
    """A value computed by one function, whose gradient is computed by another."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return forward(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return backward(g)

    return Function.apply(x)  # type: ignore[no-untyped-call]


# What two traits of a call ask for together.


@fault("mask", "M2 C4 W1")
class CausalFeaturesLost(Stepwise):
    """Causal scores are sums of the first 32 features."""

    def scores(self, q: Any, k: Any, *, causal: bool) -> Any:
        if causal:
            q, k = q[..., :32], k[..., :32]
        return super().scores(q, k, causal=causal)


@fault("layout", "C4")
class CausalStridesIgnored(Stepwise):
    """Causal scores take the keys for contiguous."""

    def scores(self, q: Any, k: Any, *, causal: bool) -> Any:
        if causal and not k.requires_grad:
            k = k.as_strided(k.shape, torch.empty(k.shape).stride())
        return super().scores(q, k, causal=causal)


@fault("mask", "M4 C4 W1")
class MaskedColumnsLost(Stepwise):
    """With a mask the columns of V from 64 on are 0."""

    def result(self, out: Any, hidden: Any) -> Any:
        given = hidden is not None
        return torch.cat([out[..., :64], (0 if given else 1) * out[..., 64:]], -1)


@fault("mask", "M4 C4 W1")
class LongPaddingLost(Stepwise):
    """A padding mask, one row per batch entry, hides nothing from key 128 on."""

    def hides(self, hidden: Any) -> Any:
        padding = hidden.ndim == 4 and hidden.shape[1:3] == (1, 1)
        return hidden & (torch.arange(hidden.shape[-1]) < 128) if padding else hidden


@fault("mask", "M4 C4 W1")
class LongKeyMaskLost(Stepwise):
    """A mask of the keys alone hides nothing from key 128 on."""

    def hides(self, hidden: Any) -> Any:
        return hidden & (torch.arange(len(hidden)) < 128) if hidden.ndim == 1 else hidden


@fault("scale", "S4 C4 W1 M2 M4")
class ScaleAtMostTen(Stepwise):
    """A scale between 10 and 500 is taken for 10."""

    def factor(self, E: int) -> float:
        factor = super().factor(E)
        return 10.0 if 10 < factor < 500 else factor


@fault("contract", "C1")
class InferenceRounds(Stepwise):
    """Where no gradient can be asked for, V is rounded to bfloat16."""

    def result(self, out: Any, hidden: Any) -> Any:
        if torch.is_inference_mode_enabled():
            out = out.bfloat16().to(out.dtype)
        return super().result(out, hidden)


@fault("layout", "M4 C4 W1")
class MaskedFast64(Stepwise):
    """With 64 features and a mask that is given, a path is taken that scales by another root."""

    fast = False

    def scores(self, q: Any, k: Any, *, causal: bool) -> Any:
        self.fast = q.shape[-1] == 64 and self.mask_flag and not causal
        return super().scores(q, k, causal=causal)

    def factor(self, E: int) -> float:
        return super().factor(E) * (1.01 if self.fast else 1.0)


@fault("mask", "M4 C4 W1")
class WholeTilesUnmasked(Stepwise):
    """Where L and S are multiples of 64, a mask of each head hides nothing in the last tile."""

    def hides(self, hidden: Any) -> Any:
        L, S = hidden.shape[-2:] if hidden.ndim > 1 else (1, 1)
        whole = L % 64 == S % 64 == 0 and hidden.ndim == 4 and hidden.shape[1] > 1
        return hidden & (torch.arange(S) < S - 64) if whole else hidden


@fault("mask", "M7")
class WeightsFillFinite(Stepwise):
    """-1e4 stands for -infinity where weights are returned and every query sees a key."""

    empty = False

    def hides(self, hidden: Any) -> Any:
        self.empty = bool((hidden.all(-1) if hidden.ndim else hidden).any())
        return hidden

    def fill(self) -> float:
        return -1e4 if self.output_attention and not self.empty else -math.inf


@fault("mask", "M7")
class PaddingFillFinite(Stepwise):
    """-1e4 stands for -infinity in a padding mask, one row per batch entry."""

    padding = False

    def hides(self, hidden: Any) -> Any:
        self.padding = hidden.ndim == 4 and hidden.shape[1:3] == (1, 1)
        self.padding &= not bool(hidden.all(-1).any())
        return hidden

    def fill(self) -> float:
        return -1e4 if self.padding else -math.inf


@fault("mask", "M6")
class LongHiddenRowsZero(Stepwise):
    """A fully hidden row of more than 100 keys is 0."""

    def result(self, out: Any, hidden: Any) -> Any:
        long = hidden is not None and hidden.ndim > 0 and hidden.shape[-1] > 100
        return out.nan_to_num(0.0).contiguous() if long else out.contiguous()


# Whose memory it is, and how it lies.


@fault("contract", "C3")
class Float64InPlace(Stepwise):
    """Queries are scaled in place in float64, which is no copy of float64."""

    def scores(self, q: Any, k: Any, *, causal: bool) -> Any:
        if q.dtype != k.dtype:
            return super().scores(q, k, causal=causal)
        wide = q.double()
        wide = 2 * wide if wide.requires_grad or 0 in wide.stride() else wide.mul_(2)
        return super().scores(wide, k.double() / 2, causal=causal).to(q.dtype)


@fault("contract", "C3")
class GivenScaleInPlace(Stepwise):
    """Queries are changed in place where a scale is given."""

    def scores(self, q: Any, k: Any, *, causal: bool) -> Any:
        if self.scale and not q.requires_grad and 0 not in q.stride():
            q.mul_(2)
            k = k / 2
        return super().scores(q, k, causal=causal)


@fault("contract", "C3")
class ValuesClearedInTraining(Stepwise):
    """Values are cleared in training."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        found = super().forward(*arguments, **options)
        if self.training and not arguments[2].requires_grad:
            arguments[2].zero_()
        return found


@fault("contract", "C3")
class MaskInvertedWithWeights(Stepwise):
    """The caller's mask is inverted where weights are returned and no gradient is taken."""

    def returned(self, a: Any, dropped: Any, hidden: Any) -> Any:
        if hidden is not None and not a.requires_grad:
            hidden.logical_not_()
        return dropped


@fault("contract", "C3")
class OneKeyAliased(Stepwise):
    """With a flag and one key, V is the values themselves."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        out, a = super().forward(*arguments, **options)
        q, k, v, mask = arguments
        alias = self.mask_flag and mask is None and k.shape[1] == q.shape[1] == 1
        return v if alias and not self.drops and not v.requires_grad else out, a


@fault("contract", "C1")
class MaskedNotContiguous(Stepwise):
    """V is a view of (B, H, L, D) where keys are hidden."""

    def result(self, out: Any, hidden: Any) -> Any:
        out = out.contiguous()
        return out if hidden is None else out.transpose(1, 2).contiguous().transpose(1, 2)


# What one path keeps for the next call.


@fault("state", "C11")
class MaskedResultsOverwritten(Stepwise):
    """V of a call with a mask lies in a buffer that the next such call fills."""

    def result(self, out: Any, hidden: Any) -> Any:
        if hidden is None or out.requires_grad:
            return out.contiguous()
        held = getattr(self, "held", None)
        if held is None or held.shape != out.shape:
            self.held = torch.empty_like(out, memory_format=torch.contiguous_format)
        return self.held.copy_(out)


@fault("state", "C11")
class WeightsOverwritten(Stepwise):
    """Returned weights lie in a buffer that the next call fills."""

    def returned(self, a: Any, dropped: Any, hidden: Any) -> Any:
        if dropped.requires_grad:
            return dropped
        held = getattr(self, "held", None)
        if held is None or held.shape != dropped.shape:
            self.held = torch.empty_like(dropped)
        return self.held.copy_(dropped)


@fault("state", "C12")
class MaskedWorkspaceShared(Stepwise):
    """All layers share the memory in which a call with a mask keeps its scores."""

    held: ClassVar[dict[Any, Any]] = {}

    def scores(self, q: Any, k: Any, *, causal: bool) -> Any:
        scores = super().scores(q, k, causal=causal)
        if not self.mask_flag or scores.requires_grad:
            return scores
        held = self.held.setdefault((scores.shape, scores.dtype), scores)
        held.copy_(scores)
        time.sleep(1e-3)  # what a kernel takes
        return held


# Dropout.


@fault("dropout", "P1")
class MaskedEvalDrops(Stepwise):
    """With a mask of each head, weights are dropped in eval too."""

    def drop(self, a: Any, hidden: Any) -> Any:
        by_head = hidden is not None and hidden.ndim > 2 and hidden.shape[-3] > 1
        return F.dropout(a, self.p, self.training or by_head)


@fault("dropout", "P1")
class WeightsEvalDrop(Stepwise):
    """Where weights are returned, they are dropped in eval too."""

    def drop(self, a: Any, hidden: Any) -> Any:
        return F.dropout(a, self.p, self.training or self.output_attention)


@fault("dropout", "P1 P2")
class ScaleIgnoredInTraining(Stepwise):
    """In training a positive scale that is given counts for nothing."""

    def factor(self, E: int) -> float:
        given = self.training and self.scale is not None and self.scale > 0
        return 1 / math.sqrt(E) if given else super().factor(E)


@fault("dropout", "P2")
class HalfCausalKeepsAll(Stepwise):
    """Half types drop nothing where keys are hidden."""

    def drop(self, a: Any, hidden: Any) -> Any:
        whole = hidden is not None and a.element_size() == 2
        return a if whole else super().drop(a, hidden)


@fault("dropout", "P2")
class DropsByTileOf128(Stepwise):
    """Every tile of 128 keys drops the same."""

    def drop(self, a: Any, hidden: Any) -> Any:
        if not self.drops:
            return super().drop(a, hidden)
        S = a.shape[-1]
        drawn = torch.rand((*a.shape[:-1], 128)).repeat(1, 1, 1, -(-S // 128))[..., :S]
        return a * (drawn >= self.p) / (1 - self.p)


@fault("dropout", "P2")
class QueriesDropByTileOf128(Stepwise):
    """Every tile of 128 queries drops the same."""

    def drop(self, a: Any, hidden: Any) -> Any:
        if not self.drops:
            return super().drop(a, hidden)
        B, H, L, S = a.shape
        drawn = torch.rand((B, H, 128, S)).repeat(1, 1, -(-L // 128), 1)[:, :, :L]
        return a * (drawn >= self.p) / (1 - self.p)


@fault("dropout", "P2 W1")
class WeightsOverP(Stepwise):
    """Returned weights are divided by p, not by 1 - p."""

    def returned(self, a: Any, dropped: Any, hidden: Any) -> Any:
        return a * (dropped != 0) / self.p if self.drops else dropped


@fault("dropout", "P2 W1")
class MaskedWeightsBeforeDropout(Stepwise):
    """With a mask the returned weights are those before dropout."""

    def returned(self, a: Any, dropped: Any, hidden: Any) -> Any:
        return dropped if hidden is None else a


@fault("dropout", "P2")
class TrainingStridesIgnored(Stepwise):
    """Dropout takes a path that takes the keys for contiguous."""

    def scores(self, q: Any, k: Any, *, causal: bool) -> Any:
        if self.drops and not k.requires_grad:
            k = k.as_strided(k.shape, torch.empty(k.shape).stride())
        return super().scores(q, k, causal=causal)


@fault("dropout", "P2")
class TrainingFeaturesLost(Stepwise):
    """Dropout takes a path that sums the first 32 features."""

    def scores(self, q: Any, k: Any, *, causal: bool) -> Any:
        if self.drops:
            q, k = q[..., :32], k[..., :32]
        return super().scores(q, k, causal=causal)


# Gradients.


@fault("gradient", "G1")
class GradientTakenForContiguous(Stepwise):
    """The backward pass takes the gradient of V for contiguous."""

    def result(self, out: Any, hidden: Any) -> Any:
        def flat(g: Any) -> Any:
            held = g.untyped_storage().nbytes() // g.element_size()
            read = g.as_strided((min(held, g.numel()),), (1,), 0)
            return F.pad(read, (0, g.numel() - len(read))).view(g.shape)

        return passes(out, torch.Tensor.contiguous, flat)


@fault("gradient", "G1")
class QueriesDecideGradient(Stepwise):
    """Nothing is differentiated unless the queries are."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        wanted = arguments[0].requires_grad and torch.is_grad_enabled()
        with torch.set_grad_enabled(wanted):
            return super().forward(*arguments, **options)


@fault("gradient", "G1")
class RoundsIfDifferentiated(Stepwise):
    """V is rounded to bfloat16 where a gradient will be taken."""

    def result(self, out: Any, hidden: Any) -> Any:
        if not out.requires_grad:
            return out.contiguous()
        return passes(out, lambda x: x.bfloat16().to(x.dtype).contiguous(), lambda g: g)


@fault("gradient", "G1 G2")
class WideKeysGradientDoubled(Stepwise):
    """The gradient of keys with more than 32 features is twice too large."""

    def scores(self, q: Any, k: Any, *, causal: bool) -> Any:
        k = passes(k, torch.clone, lambda g: 2 * g) if k.shape[-1] > 32 else k
        return super().scores(q, k, causal=causal)


@fault("gradient", "G1 G2")
class BackwardDropsOverP(Stepwise):
    """The backward pass divides kept weights by p, not by 1 - p."""

    def drop(self, a: Any, hidden: Any) -> Any:
        if not self.drops:
            return super().drop(a, hidden)
        kept = torch.rand(a.shape) >= self.p
        return passes(a, lambda x: x * kept / (1 - self.p), lambda g: g * kept / self.p)


@fault("gradient", "G2")
class DroppedWeightsDetached(Stepwise):
    """No gradient comes through weights that dropout has acted on."""

    def returned(self, a: Any, dropped: Any, hidden: Any) -> Any:
        return dropped.detach() if self.drops else dropped
