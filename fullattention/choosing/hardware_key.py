"""The name under which a machine's timings are kept."""

from __future__ import annotations

import hashlib
import re

from fullattention.records import Environment
from fullattention.units import counted

LONGEST = 60
"""Characters of a key's readable part."""


def hardware_key(environment: Environment) -> str:
    """CPU model, cores in use and GPU as a folder name: readable words, and a hash of all of it.

    Versions of drivers and libraries are no part of it: they change on one machine, and each
    timing tells its own.
    """
    facts = (environment.cpu, counted(environment.cores, "core"), environment.gpu or "no GPU")
    return f"{_words(*facts)}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:8]}"


def cpu_words(environment: Environment) -> str:
    """What the keys of a CPU model begin with, whatever the cores in use and the GPU."""
    return _words(environment.cpu)


def _words(*facts: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", " ".join(facts).lower()).strip("-")
    return words[:LONGEST].strip("-")
