"""The call that is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fullattention.backends.interface import Array
from fullattention.bench.workloads import Workload
from fullattention.conformance.subject import Layer, Subject

Clock = Callable[[], float]
"""Seconds since some moment."""


def build_layer(subject: Subject, workload: Workload) -> Layer:
    """A fresh layer that does not drop out, with the mask that the workload asks for."""
    mask_flag = workload.mask == "causal"
    layer = subject.build(mask_flag=mask_flag, attention_dropout=0.0, masked_rows="nan")
    layer.eval()
    return layer


class Calls:
    """A layer's call on fixed inputs, counted: the last of each round waits for the device.

    So a round costs an asynchronous backend one wait, whatever the number of its calls.
    """

    def __init__(self, subject: Subject, layer: Layer, arrays: Sequence[Array]) -> None:
        self.subject = subject
        self.layer = layer
        self.arrays = arrays
        self.per_round = 1
        self.made = 0
        self.wanted: frozenset[int] = frozenset()
        self.kept: list[Array] = []

    def start(self, per_round: int, wanted: Sequence[int]) -> None:
        """Count from 0 again, and keep what the calls with the wanted numbers give."""
        self.per_round, self.made, self.wanted = per_round, 0, frozenset(wanted)

    def __call__(self) -> None:
        """Make one call."""
        q, k, v = self.arrays
        out, _ = self.layer(q, k, v, None)
        if self.made in self.wanted:
            self.kept.append(out)
        self.made += 1
        if self.made % self.per_round == 0:
            self.subject.arrays.synchronize(self.subject.device)

    def seconds(self, clock: Clock) -> float:
        """How long one call takes, the wait for the device included while a round has one call."""
        start = clock()
        self()
        return clock() - start
