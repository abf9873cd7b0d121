"""Faults of a backward pass whose forward pass is right."""

from tests.faulty_backward import backend_with
from tests.zoo.specimen import Specimen


def wrong(name: str, reason: str, violates: str) -> Specimen:
    """The pair of passes whose fault the reason is."""
    return Specimen(
        name=name,
        kind="gradient",
        reason=reason,
        candidate=backend_with(reason),
        violates=(violates,),
    )


GRADIENT = (
    wrong("gradient-scale-missing", "no scale in dq", "G1"),
    wrong("gradient-keys-missing", "dk missing", "G1"),
    wrong("gradient-last-key", "dv of the last key dropped", "G1"),
    wrong("gradient-dropout-ignored", "dropout not in backward", "G1"),
    wrong("gradient-dropout-anew", "dropout drawn anew in backward", "G1"),
    wrong("gradient-row-means-half", "row means from V rounded to half", "G1"),
    wrong("gradient-tf32", "products of the gradients in TF32", "G1"),
    wrong("gradient-weights-ignored", "no loss through the weights", "G2"),
    wrong("gradient-hidden-row-nan", "dq of a fully hidden row NaN", "G3"),
    wrong("gradient-any-order", "sums over queries in any order", "C9"),
)
