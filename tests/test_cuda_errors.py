"""An error that a CUDA backend's call or backward pass shows names the backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

from fullattention.backends.cuda_errors import attributed, attributed_passes
from fullattention.backends.errors import LimitError, UnsupportedError

NAME = "some-backend"


def fail(error: Exception) -> NoReturn:
    raise error


def test_an_error_names_the_backend_in_whose_call_it_showed() -> None:
    with pytest.raises(MemoryError, match="7 bytes") as caught:
        attributed(NAME, fail)(MemoryError("7 bytes"))
    assert "backend 'some-backend'" in caught.value.__notes__[0]


def test_what_names_the_backend_itself_has_no_note() -> None:
    with pytest.raises(UnsupportedError) as refused:
        attributed(NAME, fail)(UnsupportedError(NAME, "mask", "why"))
    assert not hasattr(refused.value, "__notes__")


def test_a_limit_is_lacking_support_for_the_call() -> None:
    with pytest.raises(UnsupportedError, match="'some-backend' lacks this call: E = 9: at most 8"):
        attributed(NAME, fail)(LimitError("E = 9: at most 8"))


@dataclass(frozen=True)
class Breaking:
    """A pair of passes of which the second breaks, long after the call."""

    error: Exception

    def forward(
        self, q: Any, k: Any, v: Any, hidden: Any, options: Any, *, weights: bool
    ) -> tuple[Any, None, Any]:
        return v.clone(), None, v.sum()

    def backward(self, *arguments: Any) -> NoReturn:
        raise self.error


def differentiate(error: Exception) -> None:
    torch = pytest.importorskip("torch")
    from fullattention.backends.torch_autograd import differentiable

    attend = differentiable(NAME, attributed_passes(NAME, Breaking(error)))
    q = torch.ones((1, 2, 1, 4), requires_grad=True)
    out, _ = attend(*(q, q, q), hidden=None, causal=False, scale=1.0, dropout=0.0, weights=False)
    out.sum().backward()


def test_an_error_of_the_backward_pass_names_the_backend_too() -> None:
    with pytest.raises(RuntimeError, match="illegal address") as caught:
        differentiate(RuntimeError("illegal address"))
    assert "backend 'some-backend'" in caught.value.__notes__[0]


def test_a_limit_of_the_backward_pass_is_lacking_support_too() -> None:
    with pytest.raises(UnsupportedError, match="'some-backend' lacks this call: too long"):
        differentiate(LimitError("too long"))
