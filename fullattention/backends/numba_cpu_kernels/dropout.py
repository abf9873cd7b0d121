"""Random bits that depend on a seed and on a weight's place alone.

So a backward pass draws again what the forward pass dropped, in whatever order either one works,
and all regimes drop the same weights. A weight's place (pair, l, s) is mixed in two steps: a
64-bit hash of (seed, pair, l) gives each row two 32-bit keys, which a 32-bit hash of s takes in at
two places, so that two rows share a stream only where both keys agree.
"""

from __future__ import annotations

import numpy as np

from fullattention.backends.numba_cpu_kernels.vector import constant, helper

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@helper
def mixed(x):
    """A bijection of 64 bits in which each input bit flips half of the output bits."""
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


@helper
def row_key(seed, pair, row):
    """64 bits for one row of weights."""
    stream = mixed(np.uint64(seed) + _GOLDEN * np.uint64(pair + 1))
    return mixed(stream + _GOLDEN * np.uint64(row + 1))


@helper
def random_bits(keys, first, second):
    """32 random bits in each lane, for key numbers and the two halves of the rows' keys."""
    x = keys * constant(keys, 0x9E3779B9) + first
    x = (x ^ (x >> constant(x, 17))) * constant(x, 0xED5AD4BB)
    x = (x ^ (x >> constant(x, 11)) ^ second) * constant(x, 0xAC4C1B51)
    x = (x ^ (x >> constant(x, 15))) * constant(x, 0x31848BAB)
    return x ^ (x >> constant(x, 14))
