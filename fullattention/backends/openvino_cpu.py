"""OpenVINO's CPU plugin: the formula as a graph, in float32."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import openvino
from openvino import opset13 as op

from fullattention.backends import numpy_arrays
from fullattention.backends.interface import SCORE_COPIES, Array, Backend, Sizes, dtype_name
from fullattention.backends.precision import DTYPES, standard
from fullattention.machine.threads import threads_told

KINDS = {"float32": openvino.Type.f32, "float16": openvino.Type.f16}
"""What NumPy arrays can be handed over; bfloat16 is widened first."""

NARROWED = "OpenVINO's CPU plugin computes it in float32"


class Variant(NamedTuple):
    """What a graph is built for; the sizes of its axes are free."""

    dtype: str
    """A key of `KINDS`."""
    masked: bool
    dropout: bool
    weights: bool


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    hidden: Array | None,
    causal: bool,
    scale: float,
    dropout: float,
    weights: bool,
) -> tuple[Array, Array | None]:
    """Attend by a graph of two products and a softmax; see `interface.Attend`."""
    (B, L, H, _), S = q.shape, k.shape[1]
    dtype = dtype_name(q) if dtype_name(q) in KINDS else "float32"
    given = [array.astype(dtype, copy=False) for array in (q, k, v)]
    given.append(np.array(scale, np.float32))
    if causal:
        hidden = np.triu(np.ones((1, 1, L, S), bool), 1)
    if hidden is not None:
        given.append(hidden)
    if dropout:
        given.append(numpy_arrays.drop(np.ones((B, H, L, S), np.float32), dropout))
    variant = Variant(dtype, hidden is not None, dropout > 0, weights)
    # A request is no two threads' at once, and holds on to its last inputs.
    request = compiled(variant, threads_told()).create_infer_request()
    results = request.infer(given, share_inputs=True).to_tuple()
    out, *a = (result.astype(q.dtype, copy=False) for result in results)
    return out, a[0] if weights else None


@functools.cache
def compiled(variant: Variant, threads: int | None) -> openvino.CompiledModel:
    """A graph, ready to run on so many threads; None: as many as the library wants."""
    options = {
        "INFERENCE_PRECISION_HINT": "f32",  # else bfloat16, on CPUs that have it
        "INFERENCE_NUM_THREADS": threads or 0,
    }
    return openvino.Core().compile_model(build(variant), "CPU", options)


def build(variant: Variant) -> openvino.Model:
    """The graph; half types are widened at its inputs and narrowed at its outputs."""
    kind, inside = KINDS[variant.dtype], openvino.Type.f32
    arrays = [op.parameter([-1] * 4, kind) for _ in "qkv"]
    scale = op.parameter([], inside)
    hidden = op.parameter([-1] * 4, openvino.Type.boolean)
    keep = op.parameter([-1] * 4, inside)
    q, k, v = (op.transpose(op.convert(array, inside), [0, 2, 1, 3]) for array in arrays)
    scores = op.multiply(op.matmul(q, k, transpose_a=False, transpose_b=True), scale)
    if variant.masked:
        scores = op.select(hidden, op.constant(-np.inf, inside), scores)
    a = op.softmax(scores, axis=-1)
    if variant.weights:  # the plugin's softmax leaves 0 beside a NaN; V is NaN either way
        total = op.reduce_sum(a, [-1], keep_dims=True)
        a = op.select(op.is_nan(total), total, a)
    if variant.dropout:
        a = op.multiply(a, keep)
    out = op.transpose(op.matmul(a, v, transpose_a=False, transpose_b=False), [0, 2, 1, 3])
    results = [out, a] if variant.weights else [out]
    optional = ((hidden, variant.masked), (keep, variant.dropout))
    inputs = [*arrays, scale, *(one for one, wanted in optional if wanted)]
    return openvino.Model([op.convert(one, kind) for one in results], inputs, "attention")


def _score_copies(sizes: Sizes, uses: Collection[str]) -> float:
    """The plugin makes one kernel of the graph, unless the weights are seen or changed."""
    apart = not {"weights", "dropout"}.isdisjoint(uses)
    return SCORE_COPIES + 2.0 if apart else 0.0


def backend(device: str) -> Backend:
    """The formula as a graph."""
    numpy_arrays.require_cpu("openvino", device)
    return Backend(
        name="openvino",
        version=f"{np.__version__}, openvino {openvino.__version__.partition('-')[0]}",
        attend=attend,
        arrays=numpy_arrays.ARRAYS,
        device=device,
        seed=numpy_arrays.seed,
        precision={dtype: standard(dtype) for dtype in DTYPES if dtype != "float64"},
        masked_rows="nan",
        score_copies=_score_copies,
        lacks={**numpy_arrays.LACKS, "float64": NARROWED},
    )
