"""Arrays whose elements lie at addresses from which no GPU reads them."""

from __future__ import annotations

import math

from fullattention.backends.errors import LimitError
from fullattention.backends.interface import Shape


def require_aligned(name: str, itemsize: int, address: int, strides: Shape = ()) -> None:
    """Refuse an array that does not lie in whole elements; address and strides are in bytes.

    Kernels count in elements, and a GPU loads one from a multiple of its size alone.

    Raises:
        LimitError: the address or a stride is no multiple of an element's size.
    """
    if math.gcd(address, *strides) % itemsize:  # takes a call 0.2 us, as a loop would not
        raise LimitError(
            f"{name} lies at address {address:#x} with strides {tuple(strides)} in bytes: they "
            f"must be multiples of its element's {itemsize}"
        )
