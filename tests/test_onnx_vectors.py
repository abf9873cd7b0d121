"""The oracle and the NumPy backends against vectors that others computed: ONNX's Attention."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from fullattention import FullAttention, load
from fullattention.backends.precision import UNIT_ROUNDOFF, Precision, prescaled
from fullattention.conformance.bound import Expected, attention_bound, ratios
from fullattention.layer import resolve_scale

pytest.importorskip("onnx")

from tests.onnx_vectors import NotOurs, Vector, published, translate

LEAST = 34
"""Usable vectors of the version that the constraints name."""

UNUSED = {
    "heads are grouped": {
        *("4d_gqa", "4d_gqa_scaled", "4d_gqa_causal", "4d_gqa_attn_mask"),
        *("3d_gqa", "3d_gqa_scaled", "3d_gqa_causal", "3d_gqa_attn_mask"),
        *("4d_gqa_causal_nonpad_decode", "4d_gqa_causal_nonpad_decode_fp16", "3d_local_window"),
    },
    "the mask is added to the scores": {
        *("4d_attn_mask", "4d_attn_mask_3d", "4d_attn_mask_4d", "4d_diff_heads_sizes_attn_mask"),
        *("4d_attn_mask_3d_causal", "4d_attn_mask_4d_causal", "4d_attn_mask_causal_bf16"),
        *("3d_attn_mask", "3d_diff_heads_sizes_attn_mask", "4d_diff_heads_mask4d_padded_kv"),
        *("4d_with_qk_matmul_bias", "4d_with_qk_matmul_softmax"),
        *("4d_padded_kv_bf16", "4d_causal_padded_kv_bf16"),
        *("local_window_ext_cache_rank2_mask", "local_window_ext_cache_rank3_head_mask"),
        "local_window_ext_cache_rank4_batch_mask",
    },
    "keys continue a cache": {
        *("4d_with_past_and_present", "4d_causal_with_past_and_present"),
        *("4d_gqa_with_past_and_present", "4d_gqa_with_past_and_present_fp16"),
        "4d_diff_heads_with_past_and_present",
        "4d_diff_heads_with_past_and_present_mask3d",
        "4d_diff_heads_with_past_and_present_mask4d",
        "4d_with_past_and_present_qk_matmul",
        "4d_with_past_and_present_qk_matmul_bias",
        "4d_with_past_and_present_qk_matmul_bias_3d_mask",
        "4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
        "4d_with_past_and_present_qk_matmul_bias_4d_mask",
        "4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
        *("3d_with_past_and_present", "3d_gqa_with_past_and_present"),
        "3d_diff_heads_with_past_and_present",
        "3d_with_past_and_present_qk_matmul",
        "3d_with_past_and_present_qk_matmul_bias",
        "3d_with_past_and_present_qk_matmul_softmax",
        "local_window_with_past",
    },
    "scores are capped": {
        *("4d_softcap", "4d_gqa_softcap", "4d_diff_heads_sizes_softcap"),
        *("3d_softcap", "3d_gqa_softcap", "3d_diff_heads_sizes_softcap"),
        *("4d_softcap_neginf_mask", "4d_softcap_neginf_mask_poison"),
        *("4d_with_qk_matmul_softcap", "3d_with_past_and_present_qk_matmul_softcap"),
        "local_window_gqa_rank4_mask",
    },
}
"""What the layer does not define -> the vectors that need it."""


@functools.cache
def sorted_out() -> tuple[dict[str, Vector], dict[str, set[str]]]:
    """The usable vectors by name, and the names of the others by reason."""
    usable, unused = {}, dict[str, set[str]]()
    for one in published():
        try:
            usable[one.name] = translate(one)
        except NotOurs as error:
            unused.setdefault(str(error), set()).add(one.name)
    return usable, unused


def usable() -> list[Vector]:
    return list(sorted_out()[0].values())


def theirs(dtype: str) -> Precision:
    """How the vectors were computed: every step in the inputs' dtype, the scale on q and on k."""
    u = UNIT_ROUNDOFF[dtype]
    return dataclasses.replace(
        prescaled(dtype), u_in=3 * u, u_acc=u, u_softmax=u, u_scores=u, score_roundings=2
    )


def expected(vector: Vector, precision: Precision) -> Expected:
    L, S = vector.q.shape[1], vector.k.shape[1]
    hidden = np.triu(np.ones((L, S), bool), 1) if vector.causal else vector.hidden
    return attention_bound(
        vector.q,
        vector.k,
        vector.v,
        hidden=hidden,
        scale=resolve_scale(vector.scale, vector.q.shape[-1]),
        precision=precision,
        masked_rows="zero",
    )


def worst(got: np.ndarray, want: np.ndarray, *bounds: np.ndarray) -> float:
    return float(ratios(got, want.astype(np.float64), sum(bounds, np.zeros(()))).max())


def test_each_vector_is_used_or_listed_with_what_it_needs() -> None:
    used, unused = sorted_out()
    assert unused == UNUSED
    assert len(used) + sum(map(len, unused.values())) == len(published())
    assert len({one.name for one in published()}) == len(published())
    assert len(used) >= LEAST


def test_the_vectors_cover_what_both_define() -> None:
    vectors = usable()
    assert {str(one.q.dtype) for one in vectors} == {"float32", "float16", "bfloat16"}
    assert any(one.scale is not None for one in vectors)
    assert any(one.weights is not None for one in vectors)
    assert any(one.q.shape[-1] != one.v.shape[-1] for one in vectors)
    hidden = [one.hidden for one in vectors if one.hidden is not None]
    assert any(mask.any() and not mask.all(-1).any() for mask in hidden)
    assert any(mask.all(-1).any() for mask in hidden)


@pytest.mark.parametrize("vector", usable(), ids=lambda vector: vector.name)
def test_the_oracle_agrees(vector: Vector) -> None:
    dtype = str(vector.q.dtype)
    want = expected(vector, theirs(dtype))
    assert worst(vector.out, want.out, want.out_bound) <= 1
    if vector.weights is not None:
        assert worst(vector.weights, want.weights, want.weights_bound) <= 1


@pytest.mark.parametrize("name", ["numpy-reference", "numpy-matmul"])
@pytest.mark.parametrize("vector", usable(), ids=lambda vector: vector.name)
def test_the_backend_agrees(name: str, vector: Vector) -> None:
    dtype = str(vector.q.dtype)
    layer = FullAttention(
        mask_flag=vector.causal or vector.hidden is not None,
        scale=vector.scale,
        output_attention=True,
        backend=name,
        masked_rows="zero",
    ).eval()
    out, weights = layer(vector.q, vector.k, vector.v, vector.hidden)
    ours = expected(vector, load(name).precision[dtype])
    vectors = expected(vector, theirs(dtype))
    assert worst(out, vector.out, ours.out_bound, vectors.out_bound) <= 1
    if vector.weights is not None:
        assert weights is not None
        bounds = ours.weights_bound, vectors.weights_bound
        assert worst(weights, vector.weights, *bounds) <= 1


def test_the_mean_of_the_values_passes_only_where_it_is_right() -> None:
    passed = set()
    for vector in usable():
        want = expected(vector, theirs(str(vector.q.dtype)))
        mean = np.broadcast_to(vector.v.mean(1, keepdims=True), want.out.shape)
        if worst(mean, want.out, want.out_bound) <= 1:
            passed.add(vector.name)
    assert passed == {"3d_transpose_verification", "local_window_ext_cache_float16_mask"}
