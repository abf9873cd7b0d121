"""The call that a backend is wanted for."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import get_args

from fullattention.backends import names
from fullattention.backends.interface import USED_BY_MODE, Sizes, device_kind, needs
from fullattention.backends.precision import DTYPES
from fullattention.machine.hardware import GIB
from fullattention.records import Comparison, Mask, Mode, Timing


@dataclass(frozen=True, kw_only=True)
class Request:
    """The call that a backend is wanted for.

    Raises:
        ValueError: a field breaks its rule; the message names it.
    """

    shape: Sizes
    dtype: str = "float32"
    mask: Mask = "none"
    mode: Mode = "forward"
    device: str = "cpu"
    threads: int
    nearest_threads: bool = False
    """Whether the timings with the nearest number of threads will do."""
    max_memory: int | None = None
    """Bytes that a call may take at its peak."""
    deterministic: bool = False
    uses: tuple[str, ...] = ()
    """Capabilities that the call uses beyond those of its mask and mode."""
    library: str | None = None
    """Whose arrays the backend is to take; None: any."""
    compiling: bool = True
    """Whether a call may stop for seconds to compile."""
    backends: tuple[str, ...] = ()
    """By name, those that may run it; none: every known one."""
    baseline: str = ""
    """What runs by default. Another one is put before it only if the times of both compare and,
    where they were measured, only if it is known to be faster."""

    def __post_init__(self) -> None:
        if min(self.shape) < 1:
            raise ValueError(f"shape is {tuple(self.shape)}: every size must be at least 1")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}: one of {', '.join(DTYPES)}")
        for name, value, known in (
            ("mask", self.mask, get_args(Mask)),
            ("mode", self.mode, get_args(Mode)),
        ):
            if not isinstance(value, str) or value not in known:
                raise ValueError(f"{name} is {value!r}: one of {', '.join(known)}")
        if self.mask == "causal" and self.shape.L != self.shape.S:
            raise ValueError("mask is 'causal': that needs as many queries as keys, L == S")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}: at least 1")
        if self.max_memory is not None and self.max_memory < 1:
            raise ValueError(f"max_memory is {self.max_memory}: at least 1 byte")
        if unknown := [name for name in self.backends if name not in names()]:
            raise ValueError(f"backend is {unknown[0]!r}: one of {', '.join(names())}")

    @property
    def candidates(self) -> tuple[str, ...]:
        """The backends that may run it."""
        return self.backends or tuple(names())

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options of the command line that describe such a call."""
        return (
            *("--shape", ",".join(map(str, self.shape)), "--dtype", self.dtype),
            *("--mask", self.mask, "--mode", self.mode),
            *("--device", self.device, "--threads", str(self.threads)),
            *(() if self.max_memory is None else ("--max-memory", f"{self.max_memory / GIB:.17g}")),
            *(("--deterministic",) if self.deterministic else ()),
            *itertools.chain(*(("--backend", name) for name in self.backends)),
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """The capabilities that such a call uses, its dtype first."""
        kept = ("determinism",) if self.deterministic else ()
        return needs(self.dtype, self.mask, (*USED_BY_MODE[self.mode], *kept, *self.uses))

    @property
    def on_gpu(self) -> bool:
        """Whether the arrays lie elsewhere than in the host's memory."""
        return device_kind(self.device) != "cpu"

    def is_of(self, record: Timing | Comparison) -> bool:
        """Whether a record is of such a call, in whatever shape.

        On a GPU neither its number matters nor how many threads the CPU had.
        """
        threads = self.on_gpu or record.environment.threads == self.threads
        return threads and self.is_like(record)

    def is_like(self, record: Timing | Comparison) -> bool:
        """Whether a record is of such a call, with whatever number of threads."""
        wanted, told = (
            (device_kind(one.device), one.dtype, one.mask, one.mode) for one in (self, record)
        )
        return wanted == told
