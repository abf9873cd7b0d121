"""A choice as text: the backends with a time, the fastest first, then why each other has none."""

from __future__ import annotations

import math

from fullattention.records import Choice, Option
from fullattention.reports.blocks import Block, Heading, Lines, Table
from fullattention.reports.units import digits, seconds


def choice_blocks(choice: Choice) -> list[Block]:
    """The call, the ranked backends, and the others with their reasons."""
    B, L, S, H, E, D = choice.shape
    timed = [option for option in choice.options if option.seconds is not None]
    rest = [option for option in choice.options if option.seconds is None]
    call = (
        f"B {B}, L {L}, S {S}, H {H}, E {E}, D {D}, {choice.dtype}, on {choice.device} with "
        f"{choice.threads} threads"
    )
    if choice.timed_threads is not None:
        call += f", told by timings with {choice.timed_threads}: the nearest that there are"
    blocks: list[Block] = [
        Heading(f"{choice.backend} for {choice.mode}, mask {choice.mask}"),
        Lines([call, f"Hardware: {choice.hardware}"]),
        Table(
            ("backend", "time", "from - to", "/ fastest", "error/bound", "basis"),
            [_row(option) for option in timed],
            right=("time", "from - to", "/ fastest", "error/bound"),
            widest=44,
        ),
    ]
    if rest:
        lines = [f"{option.backend}: {option.basis}: {option.reason}" for option in rest]
        blocks += [Heading("Why not the others"), Lines(lines)]
    return blocks


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
