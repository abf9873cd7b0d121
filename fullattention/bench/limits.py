"""What is too large to run here: predicted before it is tried."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator

from fullattention.backends.interface import SCORE_COPIES, USED_BY_MASK, USED_BY_MODE
from fullattention.backends.precision import UNIT_ROUNDOFF
from fullattention.bench.inputs import InputPool
from fullattention.bench.modes import Inputs, make_call
from fullattention.bench.turns import Clock
from fullattention.bench.workloads import Workload
from fullattention.conformance.data import numpy_dtype
from fullattention.conformance.subject import Subject
from fullattention.units import memory

TENSOR_COPIES = 4
"""Copies of q, k, v and the result at one time: ours, the backend's, and a wider or transposed one
of each."""

TRAINING_COPIES = 2
"""Factor on all of it for a backward pass, which needs as much again."""

PROBE_QUERIES = 32
"""Queries of the first probe, which has one batch entry: fewer would be mostly overhead."""

PROBE_GROWTH = 4
"""Factor from one probe's size to the next one's."""

PROBE_SHARE = 0.1
"""Only a probe that took this share of the limit can have its workload refused."""


class TooLargeError(Exception):
    """A workload needs more memory or time than there is; the message says how much."""


def require_disk(pool: InputPool) -> None:
    """Refuse inputs that would not fit where their file is to lie.

    Raises:
        TooLargeError: they would not.
    """
    free = shutil.disk_usage(pool.path.parent).free
    if pool.bytes > free:
        raise TooLargeError(
            f"its inputs take {memory(pool.bytes)}, {memory(free)} are free in "
            f"{pool.path.parent.parent}"
        )


def require_memory(subject: Subject, workload: Workload, free: int) -> None:
    """Refuse a call that would not fit into `free` bytes of the host's memory.

    Only an estimate can be had beforehand, and on the host it must be: the system ends a process
    that takes too much. On other devices a failed allocation is an error like any other.

    Raises:
        TooLargeError: it would not.
    """
    needed = memory_needed(subject, workload)
    if needed > free:
        raise TooLargeError(f"needs about {memory(needed)} of memory, {memory(free)} are free")


def memory_needed(subject: Subject, workload: Workload) -> int:
    """Bytes of the host's memory that a call takes at most, by estimate."""
    B, L, S, H, E, D = workload.shape
    tensors = B * H * (L * E + S * E + S * D + L * D) * numpy_dtype(workload.dtype).itemsize
    passes = TRAINING_COPIES if workload.mode == "training" else 1
    wide = subject.precision[workload.dtype].u_acc <= UNIT_ROUNDOFF["float64"]
    scores = int(_score_copies(subject, workload) * B * H * L * S) * (8 if wide else 4)
    return passes * (TENSOR_COPIES * tensors + scores)


def _score_copies(subject: Subject, workload: Workload) -> float:
    """Copies of all scores that a forward pass holds on the host at one time."""
    if subject.device != "cpu":
        return 0.0
    uses = (*USED_BY_MASK[workload.mask], *USED_BY_MODE[workload.mode])
    if subject.score_copies is not None:
        return subject.score_copies(workload.shape, uses)
    online = subject.precision[workload.dtype].tile > 0 and "wide_scores" not in subject.lacks
    return 0.0 if online and "weights" not in uses else SCORE_COPIES


def require_time(
    subject: Subject, workload: Workload, inputs: Inputs, longest: float, clock: Clock
) -> None:
    """Refuse a workload of which one call would take more than `longest` seconds.

    Raises:
        TooLargeError: it would, as a call on a part of it predicts.
    """
    predicted = _predicted_call(subject, workload, inputs, longest, clock)
    if predicted > longest:
        raise TooLargeError(
            f"one call would take about {predicted:.1f} s, the limit is {longest:g} s"
        )


def _predicted_call(
    subject: Subject, workload: Workload, inputs: Inputs, longest: float, clock: Clock
) -> float:
    """Seconds of one call, predicted from calls on ever larger parts of it.

    To scale a part's time up in proportion hardly ever predicts too little, so a prediction within
    the limit will do. Else two parts tell what any call costs and what its size adds: waiting for a
    busy core delays a small part as much as the whole.
    """
    smaller: tuple[int, float] | None = None
    for batch, queries in _growing_parts(workload):
        size, rest = batch * queries, workload.shape.B * workload.shape.L - batch * queries
        seconds = _steady_call(subject, workload, inputs, batch, queries, clock)
        in_proportion = seconds + rest * seconds / size
        if in_proportion <= longest or seconds > longest:
            return in_proportion
        if smaller and seconds >= PROBE_SHARE * longest:
            return seconds + rest * max(0.0, (seconds - smaller[1]) / (size - smaller[0]))
        smaller = size, seconds
    raise AssertionError("the last part is the whole")


def _growing_parts(workload: Workload) -> Iterator[tuple[int, int]]:
    """Batch entries and queries of each probe; the last one has them all."""
    B, L = workload.shape.B, workload.shape.L
    batch, queries = 1, L if workload.mask == "causal" else min(L, PROBE_QUERIES)
    yield batch, queries
    while (batch, queries) != (B, L):
        if batch < B:
            batch = min(B, PROBE_GROWTH * batch)
        else:
            queries = min(L, PROBE_GROWTH * queries)
        yield batch, queries


def _steady_call(
    subject: Subject, workload: Workload, inputs: Inputs, batch: int, queries: int, clock: Clock
) -> float:
    """Seconds of the faster of two calls on a part, after one that may have compiled."""
    q, k, v, g = inputs
    part = (q[:batch, :queries], k[:batch], v[:batch], None if g is None else g[:batch, :queries])
    on_host = workload.mode == "host"
    arrays = Inputs(
        *(
            array if array is None or on_host else subject.arrays.put(array, subject.device)
            for array in part
        )
    )
    shape = workload.shape._replace(B=batch, L=queries)
    call = make_call(subject, dataclasses.replace(workload, shape=shape))

    def seconds() -> float:
        start = clock()
        call(arrays)
        subject.arrays.synchronize(subject.device)
        return clock() - start

    seconds()
    return min(seconds(), seconds())
