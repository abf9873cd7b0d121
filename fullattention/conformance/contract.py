"""The requirements of the FullAttention contract, by id, as the reports cite them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

VERSION = 1

SECTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "core": {
            "C1": "V is (B, L, H, D), contiguous, of the input's dtype; D and E may differ",
            "C2": "a 2-tuple always; weights only on request, and V is the same without them",
            "C3": "inputs and mask are never modified; V shares no memory with them",
            "C4": "any strides are read right",
            "C5": "any lengths: 1, L != S, primes, every size around a tile's edge",
            "C6": "empty axes give empty or zero results",
            "C7": "factor, tau and delta have no effect",
            "C8": "wrong input is refused with an error that says why",
            "C9": "the same input gives the same bits twice",
            "C10": "a batch entry's result does not depend on its neighbours",
            "C11": "calls do not influence each other",
            "C12": "calls from two threads are right",
        },
        "scale": {
            "S1": "scale=None means 1 / sqrt(E)",
            "S2": "scale=0 means 1 / sqrt(E) too",
            "S3": "scale multiplies after masking: a negative one with hidden keys gives NaN",
            "S4": "any scale works without a mask; NaN or infinity gives NaN",
        },
        "mask": {
            "M1": "mask_flag=False ignores the mask",
            "M2": "mask_flag=True without a mask is causal, from L alone",
            "M3": "a mask is boolean, or holds a boolean one; True hides",
            "M4": "every shape that broadcasts to (B, H, L, S) works, and no other",
            "M5": "hidden weights are exactly 0, the others sum to 1",
            "M6": "a fully hidden row gives NaN, or 0 with masked_rows='zero', and only there",
            "M7": "nothing finite in a hidden position matters; no finite stand-in for -infinity",
        },
        "numerics": {
            "N1": "results lie within the bound of the declared precision",
            "N2": "finite scores of any size are safe",
            "N3": "half inputs are accumulated in float32; wide scores do not overflow",
            "N4": "NaN and infinities appear where the definition puts them, and nowhere else",
            "N5": "float64 in, float64 accuracy out",
        },
        "weights": {
            "W1": "weights are (B, H, L, S), contiguous, and V is their product with the values",
            "W2": "without dropout each row of weights sums to 1",
        },
        "dropout": {
            "P1": "dropout acts in training only; 0 <= p <= 1, and p = 1 gives zeros",
            "P2": "kept weights are divided by 1 - p, and weights are dropped independently",
            "P3": "the same seed drops the same weights; another call drops others",
        },
        "gradient": {
            "G1": "gradients of q, k and v lie within the bound, masks and dropout included",
            "G2": "a loss through the weights counts as well as one through V",
            "G3": "a fully hidden row leaves dq and dk finite; dv of its head is NaN, or finite",
        },
        "limits": {
            "L1": "axes and counts beyond 65 535 work, or are refused with the limit named",
            "L2": "out of memory says how much was asked, and the process stays usable",
        },
    }
)
"""Section -> requirement -> what it asks."""

UNDENIABLE = ("N1", "N5")
"""Requirements from which no deviation can be declared: what is not right is no attention."""

SECTION_OF: Mapping[str, str] = MappingProxyType(
    {requirement: section for section, entries in SECTIONS.items() for requirement in entries}
)

TEXT: Mapping[str, str] = MappingProxyType(
    {requirement: text for entries in SECTIONS.values() for requirement, text in entries.items()}
)
