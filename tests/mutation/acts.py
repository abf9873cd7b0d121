"""What the tests have a process do; a module that is imported in no time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def act(what: str, alive: Callable[[], None]) -> str:
    """Hang, crash, take long with signs of life, fail, or return at once."""
    if what == "hangs":
        time.sleep(600)
    if what == "crashes":
        os._exit(3)
    if what == "fails":
        raise LookupError("the judge's own error")
    if what == "is slow":
        for _ in range(8):
            time.sleep(0.5)
            alive()
    return what
