"""What is kept of the hardware that this process runs on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fullattention.choosing.hardware_key import hardware_key
from fullattention.choosing.request import Request
from fullattention.choosing.store import Store
from fullattention.machine.environment import environment
from fullattention.machine.hardware import usable_cores
from fullattention.records import Comparison, Environment, Timing


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is kept of this hardware."""

    folder: Path
    """The store's."""
    key: str
    here: Environment
    timings: Sequence[Timing]
    """The oldest first."""
    comparisons: Sequence[Comparison]

    def timed_for(self, request: Request) -> list[str]:
        """The backends that were timed at such calls and take arrays of the wanted library.

        It loads none of them: that would import their libraries.
        """
        libraries = ("", request.library)  # old records do not tell theirs
        return list(
            dict.fromkeys(
                timing.backend
                for timing in self.timings
                if timing.status == "timed"
                and request.is_like(timing)
                and (request.library is None or timing.library in libraries)
            )
        )


def known_here(store: Store | None = None) -> Known:
    """What a store keeps of the hardware that this process runs on."""
    here = environment(usable_cores())
    key = hardware_key(here)
    kept = store or Store()
    return Known(
        folder=kept.folder,
        key=key,
        here=here,
        timings=kept.timings(key).records,
        comparisons=kept.comparisons(key).records,
    )
