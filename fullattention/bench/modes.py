"""The modes in which a workload is timed, each apart: in each another backend may win."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fullattention.backends import UnsupportedError
from fullattention.backends.interface import Array
from fullattention.bench.workloads import Workload
from fullattention.conformance.subject import Layer, Subject

DROPOUT = 0.1
"""In training; the default of Time-Series-Library's layer."""

Change = Callable[[Workload], Workload]

MODES: Mapping[str, Change] = MappingProxyType(
    {
        "forward": lambda workload: workload,
        "weights": lambda workload: dataclasses.replace(workload, mode="weights"),
        "causal": lambda workload: dataclasses.replace(workload, mask="causal"),
        "padding": lambda workload: dataclasses.replace(workload, mask="padding"),
        "training": lambda workload: dataclasses.replace(workload, mode="training"),
        "host": lambda workload: dataclasses.replace(workload, mode="host"),
    }
)
"""Name -> what it makes of a workload."""


def applies(mode: str, workload: Workload, device: str) -> bool:
    """Whether a workload can be run in a mode that is not the same as another one there."""
    if mode == "causal":  # without a mask array, which is defined for as many queries as keys
        return workload.shape.L == workload.shape.S
    if mode == "host":  # on the CPU it is the forward mode
        return device != "cpu"
    return True


def hidden_keys(workload: Workload) -> np.ndarray | None:
    """The mask array (B, 1, 1, S) of a workload, True where a key is hidden; None without one.

    Each batch entry hides up to half of its keys, the last ones; the first key always shows.
    """
    if workload.mask != "padding":
        return None
    B, S = workload.shape.B, workload.shape.S
    lengths = np.random.default_rng(S).integers((S + 1) // 2, S + 1, B)
    hidden: np.ndarray = np.arange(S) >= lengths[:, None, None, None]
    return hidden


def build_layer(subject: Subject, workload: Workload) -> Layer:
    """A fresh layer as the workload's mode and mask need it."""
    training = workload.mode == "training"
    layer = subject.build(
        mask_flag=workload.mask != "none",
        attention_dropout=DROPOUT if training else 0.0,
        output_attention=workload.mode == "weights",
        masked_rows="nan",
    )
    layer.train(training)
    return layer


class Inputs(NamedTuple):
    """What one call takes: queries, keys and values, and the gradient of V for a backward pass."""

    q: Any
    k: Any
    v: Any
    g: Any


class Results(NamedTuple):
    """What one call gives; None where the mode gives no such thing."""

    out: Any
    weights: Any = None
    dq: Any = None
    dk: Any = None
    dv: Any = None


Call = Callable[[Inputs], Results]


def make_call(subject: Subject, workload: Workload) -> Call:
    """The call that is timed.

    Raises:
        UnsupportedError: the mode needs gradients and the candidate gives none.
    """
    layer = build_layer(subject, workload)
    hidden = hidden_keys(workload)
    mask = None if hidden is None else subject.arrays.put(hidden, subject.device)
    if workload.mode == "training":
        return _training(subject, layer, mask)
    if workload.mode == "host":
        return _from_host(subject, layer, mask)

    def forward(inputs: Inputs) -> Results:
        out, weights = layer(inputs.q, inputs.k, inputs.v, mask)
        return Results(out, weights)

    return forward


def _from_host(subject: Subject, layer: Layer, mask: Array | None) -> Call:
    put, take, device = subject.arrays.put, subject.arrays.take, subject.device

    def forward(inputs: Inputs) -> Results:
        q, k, v = (put(array, device) for array in inputs[:3])
        return Results(take(layer(q, k, v, mask)[0]))

    return forward


def _training(subject: Subject, layer: Layer, mask: Array | None) -> Call:
    """Forward and backward pass, as a training step makes them: the graph is used once."""
    if "gradient" in subject.lacks:
        raise UnsupportedError(subject.name, "gradient", subject.lacks["gradient"])
    if subject.library == "torch":
        return _torch_training(layer, mask)
    vjp = subject.arrays.vjp
    if vjp is None:
        reason = f"{subject.library} does not differentiate"
        raise UnsupportedError(subject.name, "gradient", reason)

    def attend(*leaves: Array) -> tuple[Array, ...]:
        return (layer(*leaves, mask)[0],)

    def step(inputs: Inputs) -> Results:
        (out,), gradients = vjp(attend, inputs[:3], (inputs.g,))
        return Results(out, None, *gradients)

    return step


def _torch_training(layer: Layer, mask: Array | None) -> Call:
    """A step as torch is used: unlike `vjp` it makes no graph of the gradients."""
    import torch

    def step(inputs: Inputs) -> Results:
        leaves = inputs[:3]
        for leaf in leaves:
            leaf.requires_grad_()
        out, _ = layer(*leaves, mask)
        return Results(out.detach(), None, *torch.autograd.grad(out, leaves, inputs.g))

    return step
