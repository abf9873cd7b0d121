"""Whose call it was in which CUDA told of an error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from fullattention.backends.errors import LimitError, UnsupportedError

if TYPE_CHECKING:
    from fullattention.backends.torch_autograd import Kernels

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def attributed(name: str, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The same function; what it raises carries a note with the backend's name.

    A limit of its kernels becomes an `UnsupportedError` of the backend. Nothing waits for the
    device: that would cost every call what only a faulty one needs.
    """
    note = (
        f"in a call of backend {name!r}; CUDA tells late, so work queued before it may be the "
        "cause: CUDA_LAUNCH_BLOCKING=1 shows which"
    )

    @functools.wraps(function)
    def noted(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            return function(*arguments, **options)
        except LimitError as error:
            raise UnsupportedError(name, "this call", str(error)) from error
        except UnsupportedError:
            raise  # which names the backend itself
        except Exception as error:
            error.add_note(note)
            raise

    return noted


class _Passes(NamedTuple):
    forward: Callable[..., Any]
    backward: Callable[..., Any]


def attributed_passes(name: str, kernels: Kernels) -> Kernels:
    """Both passes, each attributed: torch runs the backward one long after the call."""
    return _Passes(attributed(name, kernels.forward), attributed(name, kernels.backward))
