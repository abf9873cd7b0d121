"""What is too large to run here: predicted before it is tried."""

from __future__ import annotations

from fullattention.backends.precision import UNIT_ROUNDOFF
from fullattention.bench.calls import Clock, build_layer
from fullattention.bench.inputs import Inputs
from fullattention.bench.machine import GIB
from fullattention.bench.workloads import Workload
from fullattention.conformance.data import numpy_dtype
from fullattention.conformance.subject import Layer, Subject

TENSOR_COPIES = 4
"""Of q, k, v and the result at once: ours, the backend's, and a wider or transposed one of each."""

SCORE_COPIES = 3
"""Of the scores at once, where they are stored: raw, scaled, and their exponentials."""

PROBE_SECONDS = 0.01
"""A probe that takes this long tells how the rest scales; a shorter one is mostly overhead."""

PROBE_QUERIES = 32
PROBE_GROWTH = 8


class TooLargeError(Exception):
    """A workload needs more memory or time than there is; the message says how much."""


def require_memory(subject: Subject, workload: Workload, free: int) -> None:
    """Refuse a call that would not fit into `free` bytes of the host's memory.

    Only an estimate can be had beforehand, and on the host it must be: the system ends a process
    that takes too much. On other devices a failed allocation is an error like any other.

    Raises:
        TooLargeError: it would not.
    """
    needed = _bytes_needed(subject, workload)
    if needed > free:
        raise TooLargeError(
            f"needs about {needed / GIB:.1f} GiB of memory, {free / GIB:.1f} GiB are free"
        )


def _bytes_needed(subject: Subject, workload: Workload) -> int:
    B, L, S, H, E, D = workload.shape
    tensors = B * H * (L * E + S * E + S * D + L * D) * numpy_dtype(workload.dtype).itemsize
    return TENSOR_COPIES * tensors + SCORE_COPIES * _score_bytes(subject, workload)


def _score_bytes(subject: Subject, workload: Workload) -> int:
    """Size of all scores on the host; none where an online softmax keeps tiles of them only."""
    model = subject.precision[workload.dtype]
    online = model.tile > 0 and "wide_scores" not in subject.lacks
    if subject.device != "cpu" or online:
        return 0
    B, L, S, H, _, _ = workload.shape
    return B * H * L * S * (8 if model.u_acc <= UNIT_ROUNDOFF["float64"] else 4)


def require_time(
    subject: Subject, workload: Workload, inputs: Inputs, longest: float, clock: Clock
) -> None:
    """Refuse a workload of which one call would take more than `longest` seconds.

    Raises:
        TooLargeError: it would, as a call on a part of it predicts.
    """
    predicted = _predicted_call(subject, workload, inputs, clock)
    if predicted > longest:
        raise TooLargeError(
            f"one call would take about {predicted:.2g} s, the limit is {longest:g} s"
        )


def _predicted_call(subject: Subject, workload: Workload, inputs: Inputs, clock: Clock) -> float:
    """Seconds of one call, scaled up from the smallest part of it that takes long enough."""
    B, L = workload.shape.B, workload.shape.L
    queries = L if workload.mask == "causal" else min(L, PROBE_QUERIES)
    layer = build_layer(subject, workload)
    batch = 1
    while True:
        q, k, v = inputs
        part = (q[:batch, :queries], k[:batch], v[:batch])
        seconds = _second_call(subject, layer, part, clock)
        if seconds >= PROBE_SECONDS or batch == B:
            return seconds * (B / batch) * (L / queries)
        batch = min(B, PROBE_GROWTH * batch)


def _second_call(subject: Subject, layer: Layer, part: Inputs, clock: Clock) -> float:
    """Seconds of a call whose like has been made before: the first one may compile."""
    q, k, v = (subject.arrays.put(array, subject.device) for array in part)
    layer(q, k, v, None)
    subject.arrays.synchronize(subject.device)
    start = clock()
    layer(q, k, v, None)
    subject.arrays.synchronize(subject.device)
    return clock() - start
