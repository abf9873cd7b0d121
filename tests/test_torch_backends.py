"""What torch's other backends do beyond what the conformance suite asks of every backend."""

from __future__ import annotations

import pytest

from fullattention.backends import torch_bmm
from fullattention.conformance.subject import load_subject
from fullattention.conformance.suite import judge_subject

# torch-bmm.


@pytest.mark.parametrize("scores", [1, 200])
def test_blocks_of_few_batch_entries_are_conformant(
    scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite's cases are small, so that each fits into one block."""
    monkeypatch.setattr(torch_bmm, "BLOCK_SCORES", scores)
    verdict = judge_subject(load_subject("torch-bmm"), dtypes=("float32",))
    assert verdict.conformant, verdict.results
