"""torch's scaled_dot_product_attention: its own choice of kernel, and each kernel by itself."""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch.nn.attention import SDPBackend, sdpa_kernel

from fullattention.backends import torch_arrays
from fullattention.backends.errors import UnavailableError, UnsupportedError
from fullattention.backends.interface import (
    SCORE_COPIES,
    Array,
    Attend,
    Backend,
    ScoreCopies,
    Sizes,
)
from fullattention.backends.precision import DTYPES, Precision, flash, prescaled, widest
from fullattention.backends.reasons import CLEAN, UNORDERED, leak
from fullattention.backends.shared_lock import SharedLock
from fullattention.backends.torch_calls import aligned, filled, fit, require_grid

ONCE = "torch's fused backward kernels have no derivative"
NO_WEIGHTS = "scaled_dot_product_attention does not return weights"

TOO_MANY = re.compile("invalid configuration argument|batch size exceeds")
"""What torch says where a CUDA grid has no room for a call's batch or heads."""

NO_CAUSES = ("because:", "because", "has been runtime disabled.")
"""Ends of what torch warns of while it refuses a call, besides why the kernel asked for does."""

CHOICE = SharedLock()
"""Shared by calls that leave the choice to torch, held alone by those that force a kernel: which
kernels are allowed is a setting of the process, so a thread that forces one would force it on the
others, and might restore what another had set."""


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    hidden: Array | None,
    causal: bool,
    scale: float,
    dropout: float,
    weights: bool,
) -> tuple[Array, Array | None]:
    """Attend by whichever kernel torch picks; see `interface.Attend`."""
    # torch.compile cannot trace a lock, and would leave the call out of its graph.
    with contextlib.nullcontext() if torch.compiler.is_compiling() else CHOICE:
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=None if hidden is None else _shown(hidden, k.shape[1]),
            dropout_p=dropout,
            is_causal=causal,
            scale=scale,
        )
    return out.transpose(1, 2), None


def _shown(hidden: Array, S: int) -> Array:
    """The mask as torch has it: True shows. CUDA's kernels want its rows dense in memory."""
    if hidden.shape[-1] != S:
        hidden = hidden.expand(*hidden.shape[:-1], S).contiguous()
    return ~hidden


def _attend_alone(
    name: str, kernel: str, q: Array, k: Array, v: Array, **options: Any
) -> tuple[Array, Array | None]:
    def call() -> tuple[Array, Array | None]:
        with CHOICE.alone(), sdpa_kernel(getattr(SDPBackend, kernel)):
            return attend(q, k, v, **options)

    try:
        return call()
    except RuntimeError as error:
        if "No available kernel" not in str(error) and "No viable backend" not in str(error):
            raise
        raise UnsupportedError(name, "this call", _reason(call, error)) from error


def _attend_forced(*arguments: Any, **options: Any) -> tuple[Array, Array | None]:
    """Attend by one kernel; torch.compile would try to trace the lock, and warn that it cannot."""
    if torch.compiler.is_compiling():
        from fullattention.backends.torch_uncompiled import uncompiled

        return uncompiled(_attend_alone, *arguments, **options)  # type: ignore[no-any-return]
    return _attend_alone(*arguments, **options)


def _forced(name: str, kernel: str) -> Attend:
    """One kernel for every call, by its name: neither a nested function nor SDPBackend pickles."""
    return functools.partial(_attend_forced, name, kernel)


def _reason(call: Callable[[], object], error: RuntimeError) -> str:
    """What torch warns about while it refuses a call; its error where it warns of nothing.

    It tells of every kernel why it is not used, also of those that were not asked for.
    """
    once = not torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            with contextlib.suppress(RuntimeError):
                call()
    finally:
        torch.set_warn_always(not once)
    texts = [str(note.message).split(" (Triggered")[0].strip() for note in notes]
    causes = [text for text in texts if not text.endswith(NO_CAUSES)]
    return "torch: " + (causes or [str(error).splitlines()[0]])[0]


def _same(E: int, D: int) -> tuple[int, int]:
    return (width := max(E, D)), width


def _same_filled(E: int, D: int) -> tuple[int, int]:
    return (width := filled(max(E, D))), width


def _each_filled(E: int, D: int) -> tuple[int, int]:
    return filled(E), filled(D)


def _attend_fit(
    attend_fitting: Attend,
    widths: Callable[[int, int], tuple[int, int]],
    q: Array,
    k: Array,
    v: Array,
    **options: Any,
) -> tuple[Array, Array | None]:
    """Serve any E and D, and unusual innermost strides, by a kernel that takes certain `widths`.

    A call that the kernel takes as it is pays nothing.
    """
    D = v.shape[-1]
    E, wide = widths(q.shape[-1], D)
    out, _ = attend_fitting(fit(q, E), fit(k, E), fit(v, wide), **options)
    return out[..., :D], None


def _attend_on_cuda(
    name: str, attend_anyhow: Attend, q: Array, k: Array, v: Array, **options: Any
) -> tuple[Array, Array | None]:
    """Attend by fused kernels, which have batch and heads along two axes of their grid.

    Which of them cut a batch that is too large into pieces depends on torch's version.
    """
    try:
        return attend_anyhow(aligned(q), aligned(k), aligned(v), **options)
    except RuntimeError as error:
        if TOO_MANY.search(str(error)):
            require_grid(name, q.shape[0], q.shape[2])
        raise


def _refusals(attend: Attend, device: str) -> dict[str, str]:
    """Which dtypes and capabilities a kernel refuses on a device -> torch's reason.

    Asked by one tiny call each, since that depends on the device and on torch's version.
    """
    plain: dict[str, Any] = {
        "hidden": None,
        "causal": False,
        "scale": 0.5,
        "dropout": 0.0,
        "weights": False,
    }
    refusals: dict[str, str] = {}

    def attempt(capability: str, dtype: torch.dtype, **options: object) -> None:
        x = torch.ones((1, 8, 1, 8), dtype=dtype, device=device)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns why, and the reason is kept
                attend(x, x, x, **(plain | options))
        except UnsupportedError as error:
            refusals[capability] = error.reason

    for name in DTYPES:
        attempt(name, getattr(torch, name))
    taken = [name for name in DTYPES if name not in refusals]
    if taken:
        dtype = getattr(torch, taken[-1])
        hidden = torch.ones((1, 1, 8, 8), dtype=torch.bool, device=device).triu(1)
        attempt("mask", dtype, hidden=hidden)
        attempt("causal", dtype, causal=True)
        attempt("dropout", dtype, dropout=0.5)
    return refusals


def _any_kernel(dtype: str) -> Precision:
    return widest(flash(dtype), prescaled(dtype))


def _backend(
    name: str,
    device: str,
    attend: Attend,
    precision: Callable[[str], Precision],
    *,
    fused: bool = True,
    score_copies: ScoreCopies | None = None,
) -> Backend:
    torch_arrays.require_device(name, device)
    on_cuda = torch.device(device).type == "cuda"
    if fused and on_cuda:
        attend = functools.partial(_attend_on_cuda, name, attend)
    refusals = _refusals(attend, device)
    taken = [dtype for dtype in DTYPES if dtype not in refusals]
    if not taken:
        raise UnavailableError(name, next(iter(refusals.values())))
    return Backend(
        name=name,
        version=torch.__version__,
        attend=attend,
        arrays=torch_arrays.ARRAYS,
        device=device,
        seed=torch_arrays.seed,
        precision={dtype: precision(dtype) for dtype in taken},
        masked_rows="zero",
        score_copies=score_copies,
        lacks={
            "weights": NO_WEIGHTS,
            **({"double_backward": ONCE} if fused else {}),
            **({"deterministic_gradient": UNORDERED} if fused and on_cuda else {}),
            **refusals,
        },
        deviates={} if "mask" in refusals else {"N4": leak("torch"), "G3": CLEAN},
    )


def _copies_by_choice(sizes: Sizes, uses: Collection[str]) -> float:
    """Torch's flash kernel for CPUs, which takes no dropout and no D but E, holds none."""
    is_unfused = "dropout" in uses or sizes.E != sizes.D
    return SCORE_COPIES if is_unfused else 0.0


def backend(device: str) -> Backend:
    """Whichever kernel torch picks."""
    return _backend("torch-sdpa", device, attend, _any_kernel, score_copies=_copies_by_choice)


def math(device: str) -> Backend:
    """The unfused kernel."""
    name = "torch-sdpa-math"
    return _backend(name, device, _forced(name, "MATH"), prescaled, fused=False)


def flash_attention(device: str) -> Backend:
    """The flash kernel of the device."""
    name = "torch-sdpa-flash"
    widths = _same_filled if torch.device(device).type == "cuda" else _same
    kernel = functools.partial(_attend_fit, _forced(name, "FLASH_ATTENTION"), widths)
    return _backend(name, device, kernel, flash)


def efficient(device: str) -> Backend:
    """The memory-efficient kernel."""
    name = "torch-sdpa-efficient"
    kernel = functools.partial(_attend_fit, _forced(name, "EFFICIENT_ATTENTION"), _each_filled)
    return _backend(name, device, kernel, flash)


def cudnn(device: str) -> Backend:
    """CuDNN's kernel."""
    name = "torch-sdpa-cudnn"
    kernel = functools.partial(_attend_fit, _forced(name, "CUDNN_ATTENTION"), _each_filled)
    return _backend(name, device, kernel, flash)
