"""The options that choose what pytest times; `fullattention bench` has the same ones.

The plugin defines `--backend`, `--device` and `--dtype`, which the conformance checks share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fullattention.backends import names
from fullattention.bench.modes import MODES, applies
from fullattention.bench.workload_files import read_workloads
from fullattention.bench.workloads import Workload, parse_shape, select
from fullattention.machine.hardware import thread_count, usable_cores
from fullattention.records import BASELINE


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to time, and how."""

    backends: tuple[str, ...]
    named: bool
    """Whether they were asked for one by one."""
    compiling: bool
    """Whether backends that compile for minutes take part."""
    workloads: tuple[Workload, ...]
    device: str
    threads: int
    full: bool
    """Whether to measure longer."""
    seconds: float | None = None
    """Of each contest; None: as usual."""

    def workload(self, title: str) -> Workload:
        """The chosen workload of this title."""
        return next(workload for workload in self.workloads if workload.title == title)


def add_options(parser: pytest.Parser) -> None:
    """Define the options that only the benchmarks have."""
    group = parser.getgroup("fullattention bench")
    group.addoption(
        "--workload",
        action="append",
        metavar="NAME",
        help="workload by name or glob, again for more (default: a set for some minutes)",
    )
    group.addoption(
        "--shape",
        action="append",
        metavar="B,L,S,H,E,D",
        help="workload of your own, again for more",
    )
    group.addoption(
        "--workloads",
        action="append",
        metavar="FILE",
        help="workloads of a file that nn.capture wrote, again for more",
    )
    group.addoption(
        "--mode",
        action="append",
        choices=tuple(MODES),
        help="again for more (default: forward; with --full: all)",
    )
    group.addoption("--threads", type=int, metavar="N", help="threads (default: all usable cores)")
    group.addoption("--full", action="store_true", help="every workload, and longer measuring")
    group.addoption("--seconds", type=float, metavar="S", help="of turns per workload")
    group.addoption("--out", type=Path, metavar="DIR", help="folder for the records")


def options_of(config: pytest.Config) -> Options:
    """The options pytest was called with.

    Raises:
        pytest.UsageError: one of them makes no sense; the message says which and why.
    """
    given = config.getoption
    try:
        return make_options(
            backends=_listed(given("backend")),
            workloads=_listed(given("workload")),
            shapes=_listed(given("shape")),
            workload_files=_listed(given("workloads")),
            dtypes=_listed(given("dtype")),
            modes=_listed(given("mode")),
            device=given("device"),
            threads=given("threads"),
            full=given("full"),
            seconds=given("seconds"),
        )
    except (LookupError, ValueError) as error:
        raise pytest.UsageError(error.args[0]) from error


def make_options(
    *,
    backends: Iterable[str] = (),
    workloads: Iterable[str] = (),
    shapes: Iterable[str] = (),
    workload_files: Iterable[str] = (),
    dtypes: Iterable[str] = (),
    modes: Iterable[str] = (),
    device: str = "cpu",
    threads: int | None = None,
    full: bool = False,
    seconds: float | None = None,
) -> Options:
    """The options with their defaults filled in.

    Args:
        backends: names, `module:object` or `path.py[:object]`; `all`: every known one;
            none: all but those that compile for minutes, unless `full`.
        workloads: names or globs; none: the default set.
        shapes: workloads of one's own, each `B,L,S,H,E,D`.
        workload_files: files of workloads, as `workload_files.write_workloads` writes them.
        dtypes: in which each workload is run; none: the workload's own.
        modes: in which each workload is run; none: forward, or all if `full`.
        device: that the backends run on.
        threads: that the libraries may use; None: as many as there are usable cores.
        full: whether to run every workload and to measure longer.
        seconds: after which a contest begins no other block; None: as usual.

    Raises:
        LookupError: there is no such workload or mode, or the mode is for none of the workloads.
        ValueError: a shape, a file, a dtype, the number of threads or of seconds is none.
    """
    cores = usable_cores()
    if threads is not None and not 1 <= threads <= cores:
        raise ValueError(f"threads is {threads}: from 1 to {cores}, the cores this process may use")
    if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"seconds is {seconds:g}: a finite number from 0 on")
    asked = list(dict.fromkeys(backends))
    named = asked not in ([], ["all"])
    chosen = asked if named else names()
    return Options(
        backends=tuple(sorted(chosen, key=lambda name: name != BASELINE)),
        named=named,
        compiling=full or bool(asked),
        workloads=tuple(
            _in_modes(
                _in_dtypes(_chosen(workloads, shapes, workload_files, full), dtypes),
                list(modes) or (list(MODES) if full else ["forward"]),
                device,
            )
        ),
        device=device,
        threads=threads or cores,
        full=full,
        seconds=seconds,
    )


def _chosen(
    patterns: Iterable[str], shapes: Iterable[str], files: Iterable[str], full: bool
) -> list[Workload]:
    """The named workloads and the user's own; the default set only where there are neither."""
    patterns, own = tuple(patterns), [parse_shape(text) for text in shapes]
    own += [workload for file in files for workload in read_workloads(Path(file))]
    return own if own and not patterns else [*select(patterns, full=full), *own]


def _in_dtypes(workloads: list[Workload], dtypes: Iterable[str]) -> list[Workload]:
    """Each workload in each of the dtypes, or in its own where none are given."""
    dtypes = tuple(dtypes)
    wanted = [w.in_dtype(d) for w in workloads for d in dtypes] if dtypes else workloads
    return list(dict.fromkeys(wanted))


def _in_modes(workloads: list[Workload], modes: list[str], device: str) -> list[Workload]:
    """Each workload in each of the modes that it can be run in."""
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise LookupError(f"no mode is called {unknown[0]!r}; there are {', '.join(MODES)}")
    found = dict.fromkeys(MODES[m](w) for w in workloads for m in modes if applies(m, w, device))
    titles = [workload.title for workload in found]
    if not found:
        raise LookupError(f"mode {', '.join(modes)} is for none of the workloads on {device}")
    for title in titles:
        if titles.count(title) > 1:
            raise ValueError(f"two different workloads are called {title!r}: rename one")
    return list(found)


def thread_counts(text: str) -> list[int]:
    """The numbers of threads that `1,2,all` stands for, each once.

    Raises:
        ValueError: a part is neither a positive whole number nor `all`.
    """
    return list(dict.fromkeys(map(thread_count, text.split(","))))


def _listed(value: str | list[str] | None) -> list[str]:
    """An option's values, whether it can be given once or many times."""
    return [value] if isinstance(value, str) else list(value or [])
