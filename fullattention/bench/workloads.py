"""The workloads: shapes that public time-series and vision models really run, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType

from fullattention.backends.interface import Sizes
from fullattention.backends.precision import DTYPES
from fullattention.records import Mask, Mode


@dataclass(frozen=True)
class Workload:
    """One call of the layer, as some model makes it.

    The batch axis holds batch * variates where a model treats each variate by itself.
    """

    name: str
    shape: Sizes
    source: str
    """Where the shape comes from."""
    mask: Mask = "none"
    dtype: str = "float32"
    mode: Mode = "forward"

    def __str__(self) -> str:
        return self.name

    @property
    def title(self) -> str:
        """The name, and after it the mask and the mode where they are not `none` and `forward`."""
        mask = [self.mask] if self.mask != "none" else []
        mode = [self.mode] if self.mode != "forward" else []
        return "/".join([self.name, *mask, *mode])

    def in_dtype(self, dtype: str) -> Workload:
        """The same workload in another dtype; its name ends in every dtype but float32.

        Raises:
            ValueError: no backend may declare such a dtype.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}: one of {', '.join(DTYPES)}")
        base = self.name.removesuffix(f"/{self.dtype}")
        name = base if dtype == "float32" else f"{base}/{dtype}"
        return dataclasses.replace(self, name=name, dtype=dtype)


def _square(B: int, L: int, H: int, E: int) -> Sizes:
    """Self-attention: as many keys as queries, as many columns as features."""
    return Sizes(B, L, L, H, E, E)


def _by_heads(
    name: str, source: str, *, B: int, L: int, d_model: int, heads: Sequence[int]
) -> Iterator[Workload]:
    """One workload for each number of heads that a model of this width is trained with."""
    for H in heads:
        yield Workload(f"{name}/h{H}", _square(B, L, H, d_model // H), f"{source}, {H} heads")


def _tslib_patchtst() -> Iterator[Workload]:
    """PatchTST in Time-Series-Library: 96 steps make 12 patches, 36 steps make 4."""
    source = "Time-Series-Library, PatchTST"
    series = "tslib/patchtst"
    etth1, ettm = f"{source} on ETTh1: 32 x 7 variates", f"{source} on ETTm: 128 x 7 variates"
    weather = f"{source} on Weather: 128 x 21 variates"
    yield from _by_heads(f"{series}/etth1", etth1, B=224, L=12, d_model=512, heads=(2, 8, 16))
    yield from _by_heads(f"{series}/ettm", ettm, B=896, L=12, d_model=512, heads=(2, 4, 8, 16))
    yield from _by_heads(f"{series}/weather", weather, B=2688, L=12, d_model=512, heads=(4, 16))
    yield Workload(
        f"{series}/ecl", _square(5136, 12, 8, 64), f"{source} on Electricity: 16 x 321 variates"
    )
    yield Workload(
        f"{series}/traffic", _square(3448, 12, 8, 64), f"{source} on Traffic: 4 x 862 variates"
    )
    ili = f"{source} on ILI: 32 x 7 variates"
    yield from _by_heads(f"{series}/ili", ili, B=224, L=4, d_model=2048, heads=(4,))
    yield from _by_heads(f"{series}/ili", ili, B=224, L=4, d_model=1024, heads=(16,))


def _patchtst() -> Iterator[Workload]:
    """PatchTST in its authors' repository: 336 steps make 42 patches, 512 make 64."""
    source = "PatchTST"
    yield Workload(
        "patchtst/etth1", _square(896, 42, 4, 4), f"{source} on ETTh1: 128 x 7 variates, width 16"
    )
    yield Workload(
        "patchtst/weather", _square(2688, 42, 16, 8), f"{source} on Weather: 128 x 21 variates"
    )
    for L in (42, 64):
        yield Workload(
            f"patchtst/traffic/l{L}",
            _square(20688, L, 16, 8),
            f"{source} on Traffic: 24 x 862 variates, {L} patches",
        )


def _tslib() -> Iterator[Workload]:
    """Other models of Time-Series-Library, with its defaults: batch 32, width 512, 8 heads."""
    yield Workload(
        "itransformer/ecl",
        _square(16, 325, 8, 64),
        "iTransformer on Electricity: 321 variates and 4 time marks are the tokens",
    )
    yield Workload(
        "itransformer/traffic",
        _square(16, 866, 8, 64),
        "iTransformer on Traffic: 862 variates and 4 time marks are the tokens",
    )
    yield Workload("transformer/encoder", _square(32, 96, 8, 64), "Transformer, encoder: 96 steps")
    yield Workload(
        "transformer/decoder-self",
        _square(32, 144, 8, 64),
        "Transformer, decoder over itself: 48 known steps and a horizon of 96",
        mask="causal",
    )
    yield Workload(
        "transformer/cross",
        Sizes(32, 144, 96, 8, 64, 64),
        "Transformer, decoder over encoder: 144 steps see 96",
    )
    yield Workload(
        "timexer/cross",
        Sizes(32, 7, 11, 8, 64, 64),
        "TimeXer: 7 variates see 7 variates and 4 time marks",
    )
    yield Workload(
        "timexer/cross/ms",
        Sizes(32, 1, 10, 8, 64, 64),
        "TimeXer with one target: it sees 6 other variates and 4 time marks",
    )
    yield Workload(
        "crossformer/m4", _square(256, 8, 8, 2), "Crossformer on M4: width 16, so 2 features"
    )


def _elsewhere() -> Iterator[Workload]:
    """Attention outside time series, whose kernels the same backends are built for."""
    yield Workload("vit/b16", _square(64, 197, 12, 64), "ViT-B/16: 196 patches and a class token")
    yield Workload("long/2k", _square(1, 2048, 8, 64), "one long sequence")
    yield Workload("long/8k", _square(1, 8192, 8, 64), "one very long sequence")
    yield Workload("decode", Sizes(32, 1, 4096, 8, 128, 128), "decoding: one query, many keys")


def _hazards() -> Iterator[Workload]:
    """B * H just past 65 535, the most blocks that CUDA allows along a grid's y and z axes."""
    yield Workload("hazard/grid/h1", _square(65_536, 4, 1, 8), "B * H past CUDA's grid limit")
    yield Workload("hazard/grid/h4", _square(16_384, 4, 4, 8), "B * H past CUDA's grid limit")


def _catalogue() -> Iterator[Workload]:
    yield Workload("toy", _square(8, 6, 2, 8), "the layer's own worked example")
    yield from _tslib_patchtst()
    yield from _patchtst()
    yield from _tslib()
    for workload in _elsewhere():
        yield workload
        yield workload.in_dtype("float16")
        yield workload.in_dtype("bfloat16")
    yield from _hazards()


CATALOGUE: Mapping[str, Workload] = MappingProxyType({w.name: w for w in _catalogue()})
"""Every workload by name."""

DEFAULT = (
    "toy",
    "tslib/patchtst/etth1/h8",
    "tslib/patchtst/weather/h16",
    "patchtst/etth1",
    "crossformer/m4",
    "timexer/cross",
    "transformer/encoder",
    "transformer/decoder-self",
    "transformer/cross",
    "itransformer/ecl",
    "long/2k",
    "hazard/grid/h4",
)
"""What is run unless something else is asked for: each kind once, sized for two CPU cores."""


def select(patterns: Iterable[str] = (), *, full: bool = False) -> list[Workload]:
    """The workloads that names or globs (`patchtst/*`) stand for, each once, in their order.

    Without patterns: all of them if `full`, else the default set.

    Raises:
        LookupError: a pattern fits no workload; the message lists the names.
    """
    patterns = tuple(patterns) or (tuple(CATALOGUE) if full else DEFAULT)
    chosen: dict[str, Workload] = {}
    for pattern in patterns:
        fitting = [name for name in CATALOGUE if fnmatchcase(name, pattern)]
        if not fitting:
            raise LookupError(f"no workload fits {pattern!r}; there are {', '.join(CATALOGUE)}")
        chosen.update((name, CATALOGUE[name]) for name in fitting)
    return list(chosen.values())


def the_one(name: str) -> Workload:
    """The workload of a name.

    Raises:
        LookupError: there is none; the message lists the names.
    """
    if name not in CATALOGUE:
        raise LookupError(f"no workload is called {name!r}; there are {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def parse_shape(text: str) -> Workload:
    """The workload of a shape written as `B,L,S,H,E,D`.

    Raises:
        ValueError: the text is not six positive whole numbers joined by commas.
    """
    parts = text.split(",")
    if len(parts) != len(Sizes._fields) or not all(p.strip().isdecimal() for p in parts):
        raise ValueError(f"shape is {text!r}: six whole numbers B,L,S,H,E,D joined by commas")
    shape = Sizes(*map(int, parts))
    if 0 in shape:
        raise ValueError(f"shape is {text!r}: every size must be at least 1")
    return Workload("shape/" + "x".join(map(str, shape)), shape, "given by --shape")
