"""ONNX Runtime on the CPU: the formula as a graph, and the standard's Attention operator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from fullattention.backends import numpy_arrays
from fullattention.backends.errors import UnavailableError
from fullattention.backends.interface import SCORE_COPIES, Array, Attend, Backend, Sizes, dtype_name
from fullattention.backends.precision import DTYPES, UNIT_ROUNDOFF, Precision, accumulator, standard
from fullattention.backends.reasons import leak
from fullattention.machine.threads import threads_told

OPSET, IR_VERSION = 23, 11
"""The first with Attention."""

ERRORS_ONLY = 3
"""Severity of what is printed: shapes that the library infers wrongly are a warning at each run."""

KINDS = {
    "float64": TensorProto.DOUBLE,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
}
"""What NumPy arrays can be handed over; bfloat16 is widened first."""

NO_DROPOUT = "the Attention operator drops nothing"


class Variant(NamedTuple):
    """What a graph is built for; the sizes of its axes are free."""

    dtype: str
    """A key of `KINDS`."""
    hidden: bool
    causal: bool
    dropout: bool
    weights: bool


Nodes = Callable[[Variant], Iterator[NodeProto]]
"""The middle of a graph: from `q`, `k` and `v` by heads, (B, H, time, features), `scale`, `hidden`
and `keep` to `weights` and `out` by heads, all widened."""


def formula(variant: Variant) -> Iterator[NodeProto]:
    """Product, scale, mask, softmax, dropout, product."""
    yield _node("Transpose", "k_by_heads", "k_by_features", perm=(0, 1, 3, 2))
    yield _node("MatMul", "q_by_heads k_by_features", "products")
    yield _node("Mul", "products scale", "scores")
    if variant.causal:
        every = helper.make_tensor("every", TensorProto.BOOL, [1], [True])
        yield _node("Shape", "scores", "lengths", start=2)
        yield _node("ConstantOfShape", "lengths", "every", value=every)
        yield _node("Constant", "", "one", value_int=1)
        yield _node("Trilu", "every one", "hidden", upper=1)
    masked = variant.causal or variant.hidden
    if masked:
        lowest = helper.make_tensor("lowest", _inside(variant), [], [-np.inf])
        yield _node("Constant", "", "lowest", value=lowest)
        yield _node("Where", "hidden lowest scores", "visible_scores")
    yield _node("Softmax", "visible_scores" if masked else "scores", "shares")
    yield _node("Mul", "shares keep", "a") if variant.dropout else _node("Identity", "shares", "a")
    yield _node("MatMul", "a v_by_heads", "out_by_heads")


def operator(variant: Variant) -> Iterator[NodeProto]:
    """The standard's Attention; the scale goes to the queries, as its own cannot be negative."""
    yield _node("Mul", "q_by_heads scale", "scaled_q")
    inputs = "scaled_q k_by_heads v_by_heads"
    if variant.hidden:
        yield from _visible()
        inputs += " visible"
    outputs = ["out_by_heads", "", "", "a"] if variant.weights else ["out_by_heads"]
    after_softmax: dict[str, Any] = {"qk_matmul_output_mode": 3} if variant.weights else {}
    causal = int(variant.causal)
    yield helper.make_node(
        "Attention", inputs.split(), outputs, scale=1.0, is_causal=causal, **after_softmax
    )


def _visible() -> Iterator[NodeProto]:
    """A mask that shows, of full size along its last two axes: Attention broadcasts no others."""
    yield _node("Shape", "q_by_heads", "L", start=2, end=3)
    yield _node("Shape", "k_by_heads", "S", start=2, end=3)
    yield _node("Constant", "", "any", value_ints=[1, 1])
    yield _node("Concat", "any L S", "lengths", axis=0)
    yield _node("Not", "hidden", "shown")
    yield _node("Expand", "shown lengths", "visible")


def build(nodes: Nodes, variant: Variant) -> bytes:
    """The serialized model: layouts and dtypes around the nodes."""
    kind, inside = KINDS[variant.dtype], _inside(variant)
    inputs = {"q": (kind, "BLHE"), "k": (kind, "BSHE"), "v": (kind, "BSHD"), "scale": (inside, "")}
    if variant.hidden:
        inputs["hidden"] = (TensorProto.BOOL, "bhls")
    if variant.dropout:
        inputs["keep"] = (inside, "BHLS")
    outputs = {"out": (kind, "BLHD")}
    if variant.weights:
        outputs["weights"] = (kind, "BHLS")
    within = [*_opened(inside), *nodes(variant), *_closed(kind, variant.weights)]
    graph = helper.make_graph(within, "attention", _values(inputs), _values(outputs))
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    serialized: bytes = model.SerializeToString()
    return serialized


def _opened(inside: int) -> Iterator[NodeProto]:
    """A cast to the same type costs nothing: ONNX Runtime leaves it out."""
    for name in "qkv":
        yield _node("Transpose", name, f"narrow_{name}", perm=(0, 2, 1, 3))
        yield _node("Cast", f"narrow_{name}", f"{name}_by_heads", to=inside)


def _closed(kind: int, weights: bool) -> Iterator[NodeProto]:
    yield _node("Cast", "out_by_heads", "narrow_out", to=kind)
    yield _node("Transpose", "narrow_out", "out", perm=(0, 2, 1, 3))
    if weights:
        yield _node("Cast", "a", "weights", to=kind)


def _node(kind: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def _inside(variant: Variant) -> int:
    return KINDS[accumulator(variant.dtype)]


def _values(named: Mapping[str, tuple[int, str]]) -> list[ValueInfoProto]:
    return [
        helper.make_tensor_value_info(name, kind, list(axes))
        for name, (kind, axes) in named.items()
    ]


@functools.cache
def session(nodes: Nodes, variant: Variant, threads: int | None) -> onnxruntime.InferenceSession:
    """A graph, ready to run on so many threads; None: as many as the library wants."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = ERRORS_ONLY
    model = build(nodes, variant)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def attend_by(nodes: Nodes) -> Attend:
    """A graph as a function; see `interface.Attend`."""

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
        (B, L, H, _), S = q.shape, k.shape[1]
        inside = accumulator(dtype_name(q))
        dtype = dtype_name(q) if dtype_name(q) in KINDS else inside
        given = {  # the library would copy strided arrays too, and not say for how much memory
            name: np.ascontiguousarray(x, dtype) for name, x in zip("qkv", (q, k, v), strict=True)
        }
        given["scale"] = np.array(scale, inside)
        if hidden is not None:  # Attention broadcasts the first two axes alone
            given["hidden"] = np.broadcast_to(hidden, (*hidden.shape[:2], L, S))
        if dropout:  # drawn here: a graph's random numbers are seeded when it is built
            given["keep"] = numpy_arrays.drop(np.ones((B, H, L, S), inside), dropout)
        variant = Variant(dtype, hidden is not None, causal, dropout > 0, weights)
        results = session(nodes, variant, threads_told()).run(None, given)
        out, *a = (result.astype(q.dtype, copy=False) for result in results)
        return out, a[0] if weights else None

    return attend


def _score_copies(sizes: Sizes, uses: Collection[str]) -> float:
    """Every node of the formula writes its result to a place of its own."""
    masked = not {"mask", "causal"}.isdisjoint(uses)
    return SCORE_COPIES + (2.0 if masked else 0.0)


def backend(device: str) -> Backend:
    """The formula as a graph."""
    return Backend(
        name="onnxruntime",
        attend=attend_by(formula),
        precision={dtype: standard(dtype) for dtype in DTYPES},
        masked_rows="nan",
        score_copies=_score_copies,
        lacks=numpy_arrays.LACKS,
        **_common("onnxruntime", device),
    )


def _operator_copies(sizes: Sizes, uses: Collection[str]) -> float:
    """The operator keeps its scores and what it makes of the mask; weights it returns apart."""
    return SCORE_COPIES if "weights" in uses else 2.0


def attention(device: str) -> Backend:
    """The standard's Attention operator, where this ONNX Runtime has it."""
    name = "onnxruntime-attention"
    common = _common(name, device)
    attend = attend_by(operator)
    _require_operator(name, attend)
    return Backend(
        name=name,
        attend=attend,
        precision={dtype: _prescaled(dtype) for dtype in DTYPES},
        masked_rows="zero",
        score_copies=_operator_copies,
        lacks={**numpy_arrays.LACKS, "dropout": NO_DROPOUT},
        deviates={"N4": leak("the operator")},
        **common,
    )


def _require_operator(backend: str, attend: Attend) -> None:
    """Ask by one tiny call, which uses all that any call does.

    Raises:
        UnavailableError: the library refuses it; the reason is its own.
    """
    x, hidden = np.zeros((1, 1, 1, 1), np.float32), np.zeros((1, 1, 1, 1), bool)
    try:
        attend(x, x, x, hidden=hidden, causal=False, scale=1.0, dropout=0.0, weights=True)
    except Exception as error:  # its exceptions have no other base
        reason = f"onnxruntime {onnxruntime.__version__}: {str(error).splitlines()[0]}"
        raise UnavailableError(backend, reason) from error


def _prescaled(dtype: str) -> Precision:
    """The queries are scaled in the accumulator's format."""
    return replace(standard(dtype), u_in=UNIT_ROUNDOFF[accumulator(dtype)])


def _common(name: str, device: str) -> dict[str, Any]:
    numpy_arrays.require_cpu(name, device)
    return {
        "version": f"{np.__version__}, onnxruntime {onnxruntime.__version__}",
        "arrays": numpy_arrays.ARRAYS,
        "device": device,
        "seed": numpy_arrays.seed,
    }
