"""A choice as text: the backends with a time, the fastest first, then why each other has none."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fullattention.records import BASELINE, Choice, Option
from fullattention.reports.blocks import Block, Heading, Lines, Table
from fullattention.units import counted, digits, seconds


def choice_blocks(choice: Choice) -> list[Block]:
    """The call, the ranked backends, and the others with their reasons."""
    B, L, S, H, E, D = choice.shape
    timed = [option for option in choice.options if option.seconds is not None]
    rest = [option for option in choice.options if option.seconds is None]
    call = (
        f"B {B}, L {L}, S {S}, H {H}, E {E}, D {D}, {choice.dtype}, on {choice.device} with "
        f"{counted(choice.threads, 'thread')}"
    )
    if choice.timed_threads is not None:
        call += f", told by timings with {choice.timed_threads}: the nearest that there are"
    blocks: list[Block] = [
        Heading(f"{choice.backend} for {choice.mode}, mask {choice.mask}"),
        Lines([call, f"Hardware: {choice.hardware}", *_doubts(choice)]),
        Table(
            ("backend", "time", "from - to", "/ fastest", "error/bound", "basis"),
            [_row(option) for option in timed],
            right=("time", "from - to", "/ fastest", "error/bound"),
            widest=44,
        ),
    ]
    if rest:
        blocks += [Heading("Why not the others"), Lines(_reasons(rest))]
    return blocks


def _doubts(choice: Choice) -> list[str]:
    """What makes the first a weak choice: others that may be faster have no time."""
    first, *others = choice.options
    untold = [option.backend for option in others if option.basis == "unknown"]
    doubts = []
    if untold and all(option.seconds is None for option in others):
        doubts.append(f"{first.backend} is the only one measured: others may be faster.")
    if BASELINE in untold:
        doubts.append(f"{BASELINE}, which others are compared with, has no time here.")
    return doubts


def _reasons(options: Sequence[Option]) -> list[str]:
    """Why each has no time; those that are not there in one line."""
    missing = [option.backend for option in options if option.basis == "unavailable"]
    told = [f"{o.backend}: {o.basis}: {o.reason}" for o in options if o.basis != "unavailable"]
    return [*told, *([f"unavailable here: {', '.join(missing)}"] if missing else [])]


def _row(option: Option) -> list[str]:
    tie = ", tied" if option.tied else ""
    return [
        option.backend,
        seconds(option.seconds),
        f"{seconds(option.low)} - {seconds(option.high)}",
        f"{digits(option.ratio)}{tie}",
        digits(option.error_over_bound),
        _basis(option),
    ]


def _basis(option: Option) -> str:
    if option.basis == "measured":
        return ", ".join(filter(None, [f"measured {option.measured[:10]}", option.reason]))
    if option.model_error is None:
        return option.basis
    return f"{option.basis}, {option.reason}; off by {math.expm1(option.model_error):.0%} on those"
