"""Whose call it was in which CUDA told of an error."""

from __future__ import annotations

import functools
from typing import Any

from fullattention.backends.errors import LimitError, UnsupportedError
from fullattention.backends.interface import Array, Attend


def attributed(name: str, attend: Attend) -> Attend:
    """The same function; what it raises carries a note with the backend's name.

    Nothing waits for the device: that would cost every call what only a faulty one needs.
    """
    note = (
        f"in a call of backend {name!r}; CUDA tells late, so work queued before it may be the "
        "cause: CUDA_LAUNCH_BLOCKING=1 shows which"
    )

    @functools.wraps(attend)
    def attend_noted(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array | None]:
        try:
            return attend(q, k, v, **options)
        except LimitError as error:
            raise UnsupportedError(name, "a call of this size", str(error)) from error
        except UnsupportedError:
            raise  # which names the backend itself
        except Exception as error:
            error.add_note(note)
            raise

    return attend_noted
