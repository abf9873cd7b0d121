"""The test vectors that ONNX publishes for its Attention operator, and what they are here.

The `onnx` package holds them as functions that build inputs and outputs; they run in this process.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx.backend.test.case.node import attention

INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")
AFTER_SOFTMAX = 3
"""The `qk_matmul_output_mode` whose output is the weights."""


@dataclass(frozen=True)
class Published:
    """One vector as the operator defines it; inputs and outputs by the operator's own names."""

    name: str
    attributes: dict[str, Any]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


@dataclass(frozen=True)
class Vector:
    """One vector as the layer defines it."""

    name: str
    q: np.ndarray
    """(B, L, H, E)"""
    k: np.ndarray
    v: np.ndarray
    hidden: np.ndarray | None
    """True where a key is hidden, broadcastable to (B, H, L, S)."""
    causal: bool
    """Causal by the layer's own rule, without a mask."""
    scale: float | None
    out: np.ndarray
    """(B, L, H, D)"""
    weights: np.ndarray | None
    """(B, H, L, S)"""


class NotOurs(Exception):
    """A vector needs what the layer does not define; the message says what."""


@functools.cache
def published() -> tuple[Published, ...]:
    """Every vector of the installed version."""
    found: list[Published] = []

    def keep(node: Any, inputs: Any, outputs: Any, name: str, **_: Any) -> None:
        found.append(
            Published(
                name=name.removeprefix("test_attention_"),
                attributes={
                    one.name: onnx.helper.get_attribute_value(one) for one in node.attribute
                },
                inputs=_by_name(INPUTS, node.input, inputs),
                outputs=_by_name(OUTPUTS, node.output, outputs),
            )
        )

    state = np.random.get_state()  # noqa: NPY002 - the vectors are drawn from this generator
    with mock.patch.object(attention, "expect", keep):
        for name, export in vars(attention.Attention).items():
            if name.startswith("export"):
                np.random.seed(0)  # noqa: NPY002 - as ONNX does before each
                export()
    np.random.set_state(state)  # noqa: NPY002
    return tuple(found)


def _by_name(names: tuple[str, ...], present: Any, arrays: Any) -> dict[str, np.ndarray]:
    """The arrays of an operator's optional inputs or outputs: an absent one's name is empty."""
    given = [name for name, label in zip(names, present, strict=False) if label]
    return dict(zip(given, arrays, strict=True))


def translate(one: Published) -> Vector:
    """A vector in the layer's terms.

    Raises:
        NotOurs: the layer defines no such thing.
    """
    if one.attributes.get("softcap"):
        raise NotOurs("scores are capped")
    if "past_key" in one.inputs:
        raise NotOurs("keys continue a cache")
    q, k, v = (_heads(one, name) for name in "QKV")
    if q.shape[2] != k.shape[2]:
        raise NotOurs("heads are grouped")
    if not _is_boolean(one.inputs.get("attn_mask")):
        raise NotOurs("the mask is added to the scores")
    causal = bool(one.attributes.get("is_causal"))
    masked = {"attn_mask", "nonpad_kv_seqlen"} & set(one.inputs) or max(_window(one)) >= 0
    implicit = causal and not masked and q.shape[1] == k.shape[1]
    explicit = (causal or masked) and not implicit
    after_softmax = one.attributes.get("qk_matmul_output_mode") == AFTER_SOFTMAX
    return Vector(
        name=one.name,
        q=q,
        k=k,
        v=v,
        hidden=_hidden(one, L=q.shape[1], S=k.shape[1]) if explicit else None,
        causal=implicit,
        scale=one.attributes.get("scale"),
        out=_split(one.outputs["Y"], q.shape[2]),
        weights=one.outputs["qk_matmul_output"] if after_softmax else None,
    )


def _heads(one: Published, name: str) -> np.ndarray:
    heads = one.attributes.get("q_num_heads" if name == "Q" else "kv_num_heads", 0)
    return _split(one.inputs[name], heads)


def _split(array: np.ndarray, heads: int) -> np.ndarray:
    """(B, L, H, E) from the operator's (B, H, L, E) or (B, L, H * E)."""
    if array.ndim == 4:
        return array.transpose(0, 2, 1, 3)
    return array.reshape(*array.shape[:2], heads, -1)


def _is_boolean(mask: np.ndarray | None) -> bool:
    """Whether a mask only shows and hides: boolean, or 0 and -infinity to add."""
    return mask is None or mask.dtype == bool or bool(((mask == 0) | np.isneginf(mask)).all())


def _window(one: Published) -> tuple[int, int]:
    """How many keys to the left and right of a query are seen; -1: all."""
    left, right = (one.attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    return left, right


def _hidden(one: Published, L: int, S: int) -> np.ndarray:
    """All that hides keys, as one mask: True hides, where True shows in the operator's."""
    hidden = np.zeros((1, 1, L, S), bool)
    lengths = one.inputs.get("nonpad_kv_seqlen")
    keys = np.arange(S)
    positions = np.arange(L)[:, None]
    if lengths is not None:  # the queries are the last L positions before each length
        lengths = lengths.reshape(-1, 1, 1, 1)
        hidden = hidden | (keys >= lengths)
        positions = positions + lengths - L
    if one.attributes.get("is_causal"):
        hidden = hidden | (keys > positions)
    left, right = _window(one)
    if left >= 0:
        hidden = hidden | (keys < positions - left)
    if right >= 0:
        hidden = hidden | (keys > positions + right)
    mask = one.inputs.get("attn_mask")
    if mask is not None:
        hidden = hidden | (~mask if mask.dtype == bool else mask != 0)
    return hidden
