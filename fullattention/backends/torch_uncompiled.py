"""Functions that torch.compile leaves as they are.

Importing this loads torch's compiler, which takes as long as torch itself: it is imported where
something is being compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def uncompiled(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The result of a function of which no part is compiled."""
    return function(*arguments, **options)
