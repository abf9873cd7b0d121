"""What the suite makes of a specimen or a mutant: the first thing that it holds against it."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import fullattention
from fullattention.backends.interface import Backend
from fullattention.backends.registry import load
from fullattention.conformance.ledger import is_conformant
from fullattention.conformance.subject import Subject, from_backend, load_subject
from fullattention.conformance.suite import judge_subject
from fullattention.records import Level, Result
from tests.mutation.mutants import Mutant, mutants
from tests.zoo.faulty.backends import FAULTY_BACKENDS
from tests.zoo.faulty.layers import FAULTY_LAYERS
from tests.zoo.judging import first_failure, torchs_own
from tests.zoo.valid import VALID

FAULTY = {specimen.name: specimen for specimen in (*FAULTY_BACKENDS, *FAULTY_LAYERS)}
RIGHT = {specimen.name: specimen for specimen in VALID}

OWN_RULES = (
    *("__init__", "__setattr__", "is_real", "check_library", "attn_mask_of"),
    *("check_scale", "SMALLEST", "_unequal"),
)
"""What the layer refuses beyond the contract, in our interface, and in which words:
tests/test_layer.py proves it."""

ON_SOME_CPUS = ("_apart", "leaking")
"""What torch's product on CPUs with AMX needs, and no other runs."""

FOLLOWED = ("follower",)
"""What changes no plain call, only those that torch follows: tests/test_torch_followers.py."""

MUTATED = {
    "backends.numpy_reference": (),
    "backends.numpy_matmul": (),
    "backends.numpy_arrays": ("draw_seed",),  # for kernels with a generator of their own
    "backends.torch_einsum": (*ON_SOME_CPUS, *FOLLOWED),
    "layer": OWN_RULES,
}
"""The modules, and the names in each that are left as they are."""

Alive = Callable[[], None]
"""Called now and then by what takes long."""


@functools.cache
def all_mutants() -> tuple[Mutant, ...]:
    """The mutants of every module."""
    return tuple(
        mutant
        for module, without in MUTATED.items()
        for mutant in mutants(module, source_of(module), without=without)
    )


def source_of(module: str) -> str:
    """The source of a module of the package."""
    folder = Path(fullattention.__file__).parent
    return folder.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")


class _Convicted(Exception):
    """Something failed: the rest need not be tried."""


def against_mutant(mutant: Mutant, alive: Alive) -> str:
    """What convicts a mutant; empty if it survives."""
    try:
        candidates = list(subjects(mutant))
    except Exception as error:  # noqa: BLE001 - it is not our code any more
        return f"does not load: {type(error).__name__}: {error}"
    # Quick kills nearly all; what is left goes through the standard level, in one candidate. The
    # layer's policy hardly depends on dtypes: one is enough, after one look at all.
    one = ("float32",) if mutant.module == "layer" else ()
    first = candidates[0]
    tries: list[tuple[Subject, Level, Sequence[str]]] = [
        *((candidate, "quick", one) for candidate in candidates),
        (first, "standard", one),
    ]
    if one:
        tries.insert(-1, (first, "quick", ()))
    for subject, level, dtypes in tries:
        found = conviction(subject, level, alive, dtypes=dtypes)
        if found:
            return found
    return ""


def conviction(
    subject: Subject,
    level: Level,
    alive: Alive,
    *,
    dtypes: Sequence[str] = (),
    excused: Callable[[Result], bool] = lambda _: False,
) -> str:
    """The first failure that the suite finds in a candidate; empty if it is conformant."""

    def stop(result: Result) -> None:
        alive()
        if result.status == "failed" and not excused(result):
            raise _Convicted(f"{result.check}: {result.detail}")

    try:
        verdict = judge_subject(subject, level=level, dtypes=dtypes, progress=stop)
    except _Convicted as found:
        return str(found)
    left = [result for result in verdict.results if not excused(result)]
    failed = [result.detail for result in left if result.status == "failed"]
    return "" if is_conformant(left) else "; ".join(failed) or "nothing could be compared"


def against_faulty(name: str, alive: Alive) -> str:
    """What convicts a planted fault of breaking a rule that it breaks; empty if nothing does."""
    specimen = FAULTY[name]
    failure = first_failure(load_subject(specimen.candidate), specimen.violates)
    return "" if failure is None else f"{failure.check}: {failure.detail}"


def against_valid(name: str, alive: Alive) -> str:
    """What the suite holds against a valid variant; empty if nothing."""
    subject = load_subject(RIGHT[name].candidate)
    return conviction(subject, "standard", alive, excused=lambda result: torchs_own(name, result))


def subjects(mutant: Mutant) -> Iterator[Subject]:
    """The candidates in which a mutant is at work; the suite's own code never runs it."""
    module = loaded(mutant)
    if mutant.module == "layer":
        for backend in under_the_layer():
            yield under(module, backend)
    elif mutant.module == "backends.numpy_arrays":
        user = loaded(Mutant("", "backends.numpy_matmul", "", source_of("backends.numpy_matmul")))
        vars(user)["numpy_arrays"] = module
        yield from_backend(user.backend("cpu"))
    else:
        yield from_backend(module.backend("cpu"))


def loaded(mutant: Mutant) -> ModuleType:
    """A module with the mutant's source that nothing else knows of."""
    module = ModuleType(f"fullattention.{mutant.module}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler sees some of the nonsense by itself
        code = compile(mutant.source, f"<{mutant.id}>", "exec")
    exec(code, vars(module))
    return module


def under(layer: ModuleType, backend: Backend) -> Subject:
    """A backend under another policy layer."""

    def build(**arguments: Any) -> Any:
        return layer.FullAttention(backend=backend, **arguments)

    return dataclasses.replace(from_backend(backend), build=build)


@functools.cache
def under_the_layer() -> tuple[Backend, ...]:
    """Backends that ask different things of the layer, in two libraries."""
    names = ("rows-zero", "by-the-letter", "strided-result", "fewest")
    chosen = [RIGHT[name].candidate for name in names]
    zoo = [candidate for candidate in chosen if isinstance(candidate, Backend)]
    return (load("numpy-matmul", "cpu"), *zoo, load("torch-einsum", "cpu"))
