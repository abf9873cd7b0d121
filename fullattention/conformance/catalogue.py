"""Every check there is, by level."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import get_args

from fullattention.backends.precision import DTYPES
from fullattention.conformance import (
    accuracy,
    arguments,
    combinations,
    core,
    dropout,
    gradient,
    limits,
    mask,
    modes,
    numerics,
    relations,
    scale,
    weights,
)
from fullattention.conformance.check import Check
from fullattention.records import Level

LEVELS: tuple[Level, ...] = get_args(Level)

SECTIONS = (
    core,
    scale,
    mask,
    numerics,
    accuracy,
    weights,
    dropout,
    gradient,
    limits,
    relations,
    arguments,
    combinations,
    modes,
)


@functools.cache
def catalogue(dtypes: tuple[str, ...], level: Level) -> tuple[Check, ...]:
    """Every check for some dtypes at a level, in the contract's order.

    What does not depend on precision is tried in one dtype: float32 where it is among them.
    """
    primary = "float32" if "float32" in dtypes else dtypes[0]
    return tuple(
        check
        for section in SECTIONS
        for dtype in dtypes
        for check in section.checks(dtype, dtype == primary)
        if check.quick or (level == "standard" and not check.full) or level == "full"
    )


def selected(
    takes: Sequence[str], level: Level, dtypes: Sequence[str] = (), only: str = ""
) -> tuple[Check, ...]:
    """The checks for a candidate that takes some dtypes.

    Args:
        takes: dtypes that the candidate takes.
        level: how many checks.
        dtypes: which dtypes to check; all that it takes if empty.
        only: beginning of the ids of the checks wanted, whatever the level; empty: all.

    Raises:
        ValueError: an unknown level or dtype, or no id begins with `only`.
    """
    if level not in LEVELS:
        raise ValueError(f"level is {level!r}: one of {', '.join(LEVELS)}")
    unknown = sorted(set(dtypes) - set(DTYPES))
    if unknown:
        raise ValueError(f"dtype {', '.join(unknown)} is unknown: one of {', '.join(DTYPES)}")
    wanted = tuple(dtypes) or tuple(takes)
    if not only:
        return catalogue(wanted, level)
    found = tuple(one for one in catalogue(wanted, "full") if one.id.startswith(only))
    if not found:
        raise ValueError(f"no check of {', '.join(wanted)} has an id that begins with {only!r}")
    return found
