"""The backend interface, the built-in backends, and how they are found."""

from fullattention.backends.errors import InvalidInputError, UnavailableError, UnsupportedError
from fullattention.backends.interface import CAPABILITIES, Arrays, Attend, Backend
from fullattention.backends.precision import Precision, flash, prescaled, standard, stored, tf32
from fullattention.backends.registry import load, names

__all__ = [
    "CAPABILITIES",
    "Arrays",
    "Attend",
    "Backend",
    "InvalidInputError",
    "Precision",
    "UnavailableError",
    "UnsupportedError",
    "flash",
    "load",
    "names",
    "prescaled",
    "standard",
    "stored",
    "tf32",
]
