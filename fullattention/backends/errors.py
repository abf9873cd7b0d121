"""The errors a user of a backend can meet."""

from __future__ import annotations


class InvalidInputError(ValueError):
    """An argument breaks a rule of the contract; the message names the argument and the rule."""


class LimitError(ValueError):
    """A call is beyond what a kernel or its device can do; the message names the limit."""


def described(error: BaseException) -> str:
    """An error's class and its message, if it has one and that can be told."""
    kind = type(error).__qualname__
    try:
        message = str(error)
    except BaseException as broken:  # noqa: BLE001 - a candidate's error may do anything
        return f"{kind}, whose message raises {type(broken).__qualname__}"
    return f"{kind}: {message}" if message else kind


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of any library says that memory ran out."""
    # torch and CuPy call theirs OutOfMemoryError too, and share no class with Python's.
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


class UnavailableError(RuntimeError):
    """A backend cannot run here.

    Attributes:
        backend: the name that was asked for.
        reason: why it cannot run, in one line.
    """

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(f"backend {backend!r} is unavailable: {reason}")
        self.backend = backend
        self.reason = reason

    def __reduce__(self) -> tuple[type[UnavailableError], tuple[str, str]]:
        """Pickle by the arguments: it crosses processes."""
        return type(self), (self.backend, self.reason)


class UnsupportedError(RuntimeError):
    """A call needs a capability that the backend lacks.

    Attributes:
        backend: name of the backend.
        capability: what the call needs, a key of `interface.CAPABILITIES` or a dtype.
        reason: why the backend lacks it.
    """

    def __init__(self, backend: str, capability: str, reason: str) -> None:
        super().__init__(f"backend {backend!r} lacks {capability}: {reason}")
        self.backend = backend
        self.capability = capability
        self.reason = reason

    def __reduce__(self) -> tuple[type[UnsupportedError], tuple[str, str, str]]:
        """Pickle by the arguments: it crosses processes."""
        return type(self), (self.backend, self.capability, self.reason)
