"""A check: one thing the contract asks, tried on a candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fullattention.conformance import masks
from fullattention.conformance.case import Case, check_case
from fullattention.conformance.contract import SECTION_OF
from fullattention.conformance.subject import Subject


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a check measured besides that it passed."""

    ratio: float | None = None
    """Largest error over its bound."""
    bits: float | None = None
    """Effective bits: how far the typical error lies below the typical result."""
    warning: str = ""
    """What is suspicious, though it is allowed."""


Run = Callable[[Subject], Evidence | float | None]
"""Tries a candidate: what was measured, the largest error over its bound alone, or None.

Raises Failed where the candidate is wrong.
"""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One trial of one requirement."""

    requirement: str
    label: str
    """What is tried, unique within the requirement and sufficient to repeat it."""
    dtype: str
    run: Run
    needs: frozenset[str] = frozenset()
    """Capabilities without which the candidate is not asked."""
    quick: bool = False
    """Whether the quick level has it too."""
    full: bool = False
    """Whether the full level alone has it."""

    @property
    def id(self) -> str:
        """Requirement and label: the name by which it can be run alone."""
        return f"{self.requirement}: {self.label}"

    @property
    def section(self) -> str:
        """The contract's section."""
        return SECTION_OF[self.requirement]


Checks = Iterator[Check]


Trial = Callable[[Subject, Case], Evidence | float | None]
"""A run on a case."""


def case_check(
    requirement: str,
    case: Case,
    trial: Trial = check_case,
    label: str = "",
    *,
    quick: bool = False,
    full: bool = False,
    needs: str = "",
) -> Check:
    """A check that tries a case: that its result lies within the bound, or in a way of its own.

    Args:
        requirement: what is tried.
        case: on which call.
        trial: how.
        label: names the trial, where it is not the usual one.
        quick: whether the quick level has it too.
        full: whether the full level alone has it.
        needs: capabilities that the case does not show, separated by spaces.
    """
    return Check(
        requirement=requirement,
        label=f"{label} {case}".strip(),
        dtype=case.dtype,
        run=lambda subject: trial(subject, case),
        needs=needs_of(case) | frozenset(needs.split()),
        quick=quick,
        full=full,
    )


def needs_of(case: Case) -> frozenset[str]:
    """The capabilities that a case uses."""
    needs = {"weights"} if case.weights else set()
    if case.scale is not None:
        needs.add("scale")
    if case.mask == masks.CAUSAL and case.shape.L > 1:
        needs.add("causal")
    elif case.mask not in (masks.OFF, masks.CAUSAL):
        needs.add("mask")
    return frozenset(needs)
