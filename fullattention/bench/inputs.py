"""Random queries, keys and values for a workload."""

from __future__ import annotations

import functools

import numpy as np

from fullattention.bench.workloads import Workload
from fullattention.conformance.data import numpy_dtype

SEED = 2017
"""Every timing uses the same numbers, so that a wrong one can be looked into."""

Inputs = tuple[np.ndarray, np.ndarray, np.ndarray]


@functools.lru_cache(maxsize=1)  # the backends of one workload follow each other
def random_inputs(workload: Workload, seed: int) -> Inputs:
    """Queries (B, L, H, E), keys (B, S, H, E) and values (B, S, H, D), read-only.

    Normal deviates: unlike small whole numbers, they round in every step, so that an error in
    precision shows.
    """
    B, L, S, H, E, D = workload.shape
    random = np.random.default_rng(seed)
    q, k, v = (
        _normal(random, shape, workload.dtype)
        for shape in ((B, L, H, E), (B, S, H, E), (B, S, H, D))
    )
    return q, k, v


def _normal(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "float64":
        array = random.standard_normal(shape)
    else:
        array = random.standard_normal(shape, np.float32).astype(numpy_dtype(dtype), copy=False)
    array.flags.writeable = False
    return array
