"""Few calls in which many traits meet."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any


def covering(*traits: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows with a value of each trait, such that any two values of two traits meet in some row.

    The same traits give the same rows: about as many as the product of the two longest.
    """
    every = [list(itertools.product([index], range(len(t)))) for index, t in enumerate(traits)]
    left = {
        pair
        for one, other in itertools.combinations(every, 2)
        for pair in itertools.product(one, other)
    }
    rows = []
    while left:
        chosen = dict(min(left))
        for index in range(len(traits)):
            if index not in chosen:
                gains = {
                    value: len(_pairs({**chosen, index: value}) & left)
                    for value in range(len(traits[index]))
                }
                chosen[index] = max(gains, key=lambda value: gains[value])
        left -= _pairs(chosen)
        rows.append(tuple(trait[chosen[index]] for index, trait in enumerate(traits)))
    return rows


def _pairs(chosen: Mapping[int, int]) -> set[tuple[tuple[int, int], ...]]:
    """The pairs of a row: each half is a trait and a value of it."""
    return set(itertools.combinations(sorted(chosen.items()), 2))
