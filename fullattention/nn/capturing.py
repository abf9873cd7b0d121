"""Records which calls of FullAttention a model makes, as workloads to benchmark."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from fullattention.bench.workloads import Workload
from fullattention.nn.call import call_of
from fullattention.nn.module import FullAttention
from fullattention.nn.replacing import missing, require_module, takes_attention


@contextlib.contextmanager
def capture(model: torch.nn.Module) -> Iterator[list[Workload]]:
    """Collect the workloads that a model runs within the `with` block.

    Every layer counts that has the signature of FullAttention and keeps its settings, whatever it
    computes. `bench.workload_files.write_workloads` writes them for `bench --workloads FILE`.

    A workload tells how keys are hidden, not which; not the scale; of a call in training neither
    the probability of dropout, nor whether weights are returned. Calls that differ in no more than
    that are one workload.

    Yields:
        The workloads so far, each once, named after the layer that ran it first.

    Raises:
        InvalidInputError: the model is no module.
    """
    require_module(model)
    workloads: list[Workload] = []
    source = f"captured from {type(model).__qualname__}"

    def note(path: str, layer: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        bound = inspect.signature(layer.forward).bind(*given, **named).arguments
        q, k, v = (bound[name] for name in ("queries", "keys", "values"))
        call = call_of(layer, q, k, v, bound.get("attn_mask"))
        name = f"captured/{path}/{len(workloads)}"
        new = Workload(name, call.shape, source, mask=call.mask, dtype=call.dtype, mode=call.mode)
        known = (dataclasses.replace(one, name=name) for one in workloads)
        if 0 not in call.shape and new not in known:
            workloads.append(new)

    with contextlib.ExitStack() as hooks:
        for path, layer in model.named_modules():
            if isinstance(layer, FullAttention) or (takes_attention(layer) and not missing(layer)):
                hook = layer.register_forward_pre_hook(
                    functools.partial(note, path or "model"), with_kwargs=True
                )
                hooks.callback(hook.remove)
        yield workloads
