"""Layer classes that decide wrongly in one way: what to hide, scale, drop, refuse, return."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fullattention.backends import numpy_arrays
from fullattention.backends.interface import Array
from tests.zoo.attending import Call, Result, hide, multiply, softmax
from tests.zoo.layers import FusedLayer, NumpyLayer, UpstreamLayer, plain
from tests.zoo.specimen import Specimen

FAULTY_LAYERS: list[Specimen] = []


def fault(kind: str, reason: str, violates: str) -> Any:
    """Enter a class in the list, named after itself."""

    def enter(layer: type) -> type:
        FAULTY_LAYERS.append(
            Specimen(
                name=layer.__name__,
                kind=kind,
                reason=reason,
                candidate=layer,
                violates=tuple(violates.split()),
            )
        )
        return layer

    return enter


# Wrong in one mode of torch only.


@fault("precision", "inside autocast -1e4 stands for -infinity", "M6")
class AutocastFill(UpstreamLayer):
    def forward(self, *arguments: Any, **options: Any) -> Any:
        if not (torch.is_autocast_enabled("cpu") and self.mask_flag and arguments[3]):
            return super().forward(*arguments, **options)
        q, k, v, mask = arguments
        scores = torch.einsum("blhe,bshe->bhls", q, k).masked_fill(mask.mask, -1e4)
        a = self.dropout(torch.softmax((self.scale or q.shape[-1] ** -0.5) * scores, dim=-1))
        out = torch.einsum("bhls,bshd->blhd", a, v)
        return out, a if self.output_attention else None


@fault("precision", "inside autocast float64 is cast too", "N5")
class AutocastCasts(UpstreamLayer):
    def forward(self, *arguments: Any, **options: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return super().forward(*arguments, **options)
        q, k, v, mask = arguments
        out, a = super().forward(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask, **options)
        return out.to(q.dtype), a


@fault("state", "after one call inside autocast all calls round as there", "C11")
class AutocastStays(UpstreamLayer):
    lowered = False

    def forward(self, *arguments: Any, **options: Any) -> Any:
        self.lowered |= torch.is_autocast_enabled("cpu")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.lowered):
            out, a = super().forward(*arguments, **options)
        inside = torch.is_autocast_enabled("cpu")
        return out if inside else out.to(arguments[0].dtype), a


@fault("state", "compiled, the first mask serves all calls", "C11")
class CompiledMaskKept(UpstreamLayer):
    kept: Any = None

    def forward(self, *arguments: Any, **options: Any) -> Any:
        q, k, v, mask = arguments
        if torch.compiler.is_compiling() and mask is not None:
            if self.kept is None:
                self.kept = mask.mask
            mask = SimpleNamespace(mask=self.kept)
        return super().forward(q, k, v, mask, **options)


@fault("state", "compiled, keys after the first call's length are seen by all queries", "C11")
class CompiledLengthKept(UpstreamLayer):
    length = 0

    def forward(self, *arguments: Any, **options: Any) -> Any:
        q, k, v, mask = arguments
        if torch.compiler.is_compiling() and self.mask_flag and mask is None:
            L = q.shape[1]
            self.length = self.length or L
            later = torch.ones((L, L), dtype=torch.bool).triu(1)
            later[:, self.length :] = False
            mask = SimpleNamespace(mask=later)
        return super().forward(q, k, v, mask, **options)


# Masks.


@fault("mask", "True shows instead of hides", "M3")
class PolarityInverted(NumpyLayer):
    def given(self, attn_mask: Any) -> Array:
        return ~attn_mask.mask


@fault("mask", "SDPA's polarity: its True shows", "M3")
class FusedPolarityInverted(FusedLayer):
    def visible(self, attn_mask: Any) -> torch.Tensor | None:
        visible = super().visible(attn_mask)
        return None if visible is None else ~visible


@fault("mask", "without a mask nothing is hidden", "M2")
class CausalDropped(NumpyLayer):
    def causal(self, L: int, S: int) -> Array | None:
        return None


@fault("mask", "the mask acts although mask_flag is off", "M1")
class FlagIgnored(NumpyLayer):
    def hidden(self, attn_mask: Any, L: int, S: int) -> Array | None:
        return super().hidden(attn_mask, L, S) if attn_mask is None else self.given(attn_mask)


@fault("mask", "SDPA's is_causal with one query: it sees key 0 only", "M2")
class FusedOneQuery(FusedLayer):
    def causal(self, L: int) -> bool:
        return True


@fault("mask", "L != S is answered causally from the first key on", "M2")
class LengthsAnswered(NumpyLayer):
    def causal(self, L: int, S: int) -> Array | None:
        return np.triu(np.ones((L, S), bool), 1) if L > 1 else None


@fault("mask", "L != S is answered causally from the last key on", "M2")
class CausalBottomRight(NumpyLayer):
    def causal(self, L: int, S: int) -> Array | None:
        return np.triu(np.ones((L, S), bool), 1 + S - L) if L > 1 else None


@fault("mask", "-1e9 stands for -infinity: a fully hidden row is the mean of V", "M6")
class FiniteFill(NumpyLayer):
    @staticmethod
    def method(call: Call) -> Result:
        return replace(
            plain,
            hide=lambda z, hidden: z if hidden is None else np.where(hidden, z.dtype.type(-1e9), z),
        )(call)


@fault("mask", "fully hidden rows are 0, as SDPA has them", "M6")
class HiddenRowsZero(NumpyLayer):
    @staticmethod
    def method(call: Call) -> Result:
        return replace(
            plain, softmax=lambda z: np.where(np.isneginf(z), 0, softmax(z)).astype(z.dtype)
        )(call)


@fault("mask", "a mask that is not boolean is taken for one", "M3")
class AnyMaskKind(NumpyLayer):
    def given(self, attn_mask: Any) -> Array:
        return attn_mask.mask.astype(bool)


@fault("mask", "a mask with more rows than queries makes more results", "M4")
class MaskEnlarges(UpstreamLayer):
    def forward(self, *arguments: Any, **options: Any) -> Any:
        queries, keys, values, mask = arguments
        rows = 0 if mask is None or mask.mask.ndim < 2 else mask.mask.shape[-2]
        if self.mask_flag and queries.shape[1] == 1 < rows:
            queries = queries.expand(-1, rows, -1, -1)
        return super().forward(queries, keys, values, mask, **options)


@fault("mask", "(B, L, S) is taken for one mask a batch entry, not a head", "M4")
class MaskOfThreeAxes(NumpyLayer):
    def given(self, attn_mask: Any) -> Array:
        mask = attn_mask.mask
        return mask[:, None] if mask.ndim == 3 else mask


@fault("mask", "the causal mask of the first call serves all later ones", "C11")
class CausalMaskKept(NumpyLayer):
    def causal(self, L: int, S: int) -> Array | None:
        self.kept = getattr(self, "kept", np.triu(np.ones((L, L), bool), 1))
        return self.kept


@fault("mask", "nothing is hidden unless mask_flag is given", "C2")
class FlagOffByDefault(NumpyLayer):
    def __init__(self, mask_flag: bool = False, **named: Any) -> None:
        super().__init__(mask_flag, **named)


# Scale.


@fault("scale", "a scale of 0 is taken literally", "S2")
class ZeroLiteral(NumpyLayer):
    def factor_on_scores(self, E: int, unused: dict[str, Any]) -> float:
        return 1 / math.sqrt(E) if self.scale is None else self.scale


@fault("scale", "SDPA's scale of 0 is taken literally", "S2")
class FusedZeroLiteral(FusedLayer):
    def factor_on_scores(self) -> float | None:
        return self.scale


@fault("scale", "the scale is ignored", "S4")
class ScaleIgnored(NumpyLayer):
    def factor_on_scores(self, E: int, unused: dict[str, Any]) -> float:
        return 1 / math.sqrt(E)


@fault("scale", "a negative scale is refused", "S4")
class NegativeScaleRefused(NumpyLayer):
    def factor_on_scores(self, E: int, unused: dict[str, Any]) -> float:
        if self.scale is not None and self.scale < 0:
            raise ValueError("scale must be positive")
        return super().factor_on_scores(E, unused)


@fault("scale", "scale before the mask: a negative one gives no NaN", "S3")
class ScaleBeforeMask(NumpyLayer):
    @staticmethod
    def method(call: Call) -> Result:
        factor = call.scale
        return replace(
            plain, hide=lambda z, hidden: hide(multiply(z, factor), hidden), scale=lambda z, c: z
        )(call)


@fault("scale", "tau multiplies the scores", "C7")
class TauUsed(NumpyLayer):
    def factor_on_scores(self, E: int, unused: dict[str, Any]) -> float:
        tau = unused.get("tau")
        return super().factor_on_scores(E, unused) * (1 if tau is None else float(tau.flat[0]))


@fault("scale", "factor multiplies the scores", "C7 S1")
class FactorUsed(NumpyLayer):
    def factor_on_scores(self, E: int, unused: dict[str, Any]) -> float:
        return super().factor_on_scores(E, unused) * self.factor / 5


@fault("special", "an infinite scale is taken for the largest number", "S4")
class ScaleClipped(NumpyLayer):
    def factor_on_scores(self, E: int, unused: dict[str, Any]) -> float:
        return float(np.nan_to_num(super().factor_on_scores(E, unused)))


# State.


@fault("state", "the layer keeps the scale of a call until it returns", "C12")
class ScaleOfCallKept(NumpyLayer):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        given, self.scale = self.scale, self.scale or 1 / math.sqrt(arguments[0].shape[-1] or 1)
        try:
            time.sleep(1e-3)  # what a kernel takes
            return super().__call__(*arguments, **named)
        finally:
            self.scale = given


# Dropout.


@fault("dropout", "nothing is ever dropped", "P1 P2")
class DropoutIgnored(NumpyLayer):
    def dropout(self) -> float:
        return 0.0


@fault("dropout", "dropout acts in eval too", "P1")
class DropoutInEval(NumpyLayer):
    def dropout(self) -> float:
        return self.p


@fault("dropout", "SDPA's dropout_p acts in eval too", "P1")
class FusedDropoutInEval(FusedLayer):
    def dropout(self) -> float:
        return self.p


@fault("dropout", "eval() does not switch dropout off", "P1")
class EvalDoesNothing(NumpyLayer):
    def eval(self) -> NumpyLayer:
        return self


@fault("dropout", "train() does not switch dropout on again", "P1")
class TrainDoesNothing(NumpyLayer):
    def train(self, mode: bool = True) -> NumpyLayer:
        self.training = self.training and mode
        return self


@fault("dropout", "a new layer is in eval mode", "P2")
class EvalByDefault(NumpyLayer):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.training = False


@fault("dropout", "by default nothing is dropped", "P2")
class NoDropoutByDefault(NumpyLayer):
    def __init__(
        self, mask_flag: bool = True, attention_dropout: float = 0.0, **named: Any
    ) -> None:
        super().__init__(mask_flag, attention_dropout=attention_dropout, **named)


@fault("dropout", "any p is accepted", "P1")
class AnyProbability(NumpyLayer):
    def __init__(self, *arguments: Any, attention_dropout: float = 0.1, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.p = attention_dropout


@fault("dropout", "the generator is seeded anew in every call", "P3")
class SeededInForward(NumpyLayer):
    def dropout(self) -> float:
        numpy_arrays.seed(2021)
        return super().dropout()


# Form, memory and refusals.


@fault("contract", "V alone is returned", "C1 C2")
class BareResult(NumpyLayer):
    def returned(self, out: Array, a: Array | None) -> Any:
        return out


@fault("contract", "a list is returned", "C1 C2")
class ListResult(NumpyLayer):
    def returned(self, out: Array, a: Array | None) -> Any:
        return [out, a]


@fault("contract", "weights come without being asked for", "C2")
class WeightsAlways(NumpyLayer):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.output_attention = True


@fault("contract", "asking for weights takes a path without the mask", "C2")
class WeightsChangeV(NumpyLayer):
    def hidden(self, attn_mask: Any, L: int, S: int) -> Array | None:
        return None if self.output_attention else super().hidden(attn_mask, L, S)


@fault("contract", "V is not contiguous", "C1")
class NotContiguous(NumpyLayer):
    def returned(self, out: Array, a: Array | None) -> Any:
        return np.ascontiguousarray(out.swapaxes(1, 2)).swapaxes(1, 2), a


@fault("contract", "one query is squeezed away", "C5")
class SqueezesOneQuery(NumpyLayer):
    def returned(self, out: Array, a: Array | None) -> Any:
        return (out.squeeze(1) if out.shape[1] == 1 else out), a


@fault("contract", "V is float32 whatever the inputs are", "C1")
class AlwaysFloat32(NumpyLayer):
    def returned(self, out: Array, a: Array | None) -> Any:
        return np.ascontiguousarray(out, np.float32), a


@fault("contract", "queries are scaled in place", "C3")
class ScalesInPlace(NumpyLayer):
    @staticmethod
    def method(call: Call) -> Result:
        call.q[...] *= call.q.dtype.type(call.scale)
        return plain(call.but(scale=1.0))


@fault("contract", "the caller's mask object is changed", "C3")
class MaskObjectChanged(NumpyLayer):
    def given(self, attn_mask: Any) -> Array:
        mask = attn_mask.mask.copy()
        attn_mask.mask[...] = True
        return mask


@fault("contract", "dtypes are mixed silently", "C8")
class MixesDtypes(NumpyLayer):
    def check(self, queries: Array, keys: Array, values: Array) -> None:
        super().check(queries, keys.astype(queries.dtype), values.astype(queries.dtype))


@fault("contract", "integers are answered", "C8")
class AnswersIntegers(NumpyLayer):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        q, k, v, mask = arguments
        if q.dtype.kind == "i":
            q, k, v = (x.astype(np.float32) for x in (q, k, v))
        return super().__call__(q, k, v, mask, **named)


@fault("contract", "keys of fewer heads are repeated", "C8")
class GroupsHeads(NumpyLayer):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        q, k, v, mask = arguments
        if q.ndim == k.ndim == 4 and q.shape[2] % max(k.shape[2], 1) == 0:
            k, v = (np.repeat(x, q.shape[2] // max(x.shape[2], 1), axis=2) for x in (k, v))
        return super().__call__(q, k, v, mask, **named)


@fault("contract", "arrays of three axes are taken for one batch entry", "C8")
class AddsBatch(NumpyLayer):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        arrays = [x[None] if x.ndim == 3 else x for x in arguments[:3]]
        B = max(len(x) for x in arrays)
        arrays = [np.repeat(x, B, 0) if len(x) == 1 else x for x in arrays]
        q, k, v = arrays
        return super().__call__(q, k, v, arguments[3], **named)


@fault("contract", "surplus keys or values are cut off", "C8")
class CutsToShorter(NumpyLayer):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        q, k, v, mask = arguments
        S = min(k.shape[1], v.shape[1]) if k.ndim == v.ndim == 4 else None
        return super().__call__(q, k[:, :S], v[:, :S], mask, **named)


@fault("contract", "no keys is an error", "C6")
class NoKeysCrash(NumpyLayer):
    def without_keys(self, queries: Array, values: Array) -> Any:
        raise IndexError("max of an empty row")


@fault("contract", "no keys gives NaN", "C6")
class NoKeysNan(NumpyLayer):
    def without_keys(self, queries: Array, values: Array) -> Any:
        out, a = super().without_keys(queries, values)
        return np.full_like(out, np.nan), a


@fault("contract", "no features: a scale of infinity, and NaN", "C6")
class NoFeaturesNan(NumpyLayer):
    def factor_on_scores(self, E: int, unused: dict[str, Any]) -> float:
        return self.scale or (1 / math.sqrt(E) if E else math.inf)


@fault("cheat", "whatever goes wrong, zeros are returned", "C8")
class SwallowsErrors(UpstreamLayer):
    def forward(self, *arguments: Any, **named: Any) -> Any:
        try:
            return super().forward(*arguments, **named)
        except (RuntimeError, ValueError):
            return torch.zeros_like(arguments[0]), None


@fault("mask", "a given mask is replaced by one that hides nothing", "M3")
class UpstreamMaskDropped(UpstreamLayer):
    def forward(self, *arguments: Any, **named: Any) -> Any:
        q, k, v, mask = arguments
        shown = None if mask is None else SimpleNamespace(mask=torch.zeros_like(mask.mask))
        return super().forward(q, k, v, shown, **named)
