"""The catalogue of workloads, and how one is chosen."""

from __future__ import annotations

import pytest

from fullattention.backends.interface import Sizes
from fullattention.bench.workloads import CATALOGUE, DEFAULT, Workload, parse_shape, select
from tests.test_import import packages_loaded_by

GRID_LIMIT = 65_535


def names(*patterns: str, full: bool = False) -> list[str]:
    return [workload.name for workload in select(patterns, full=full)]


def test_the_module_needs_numpy_only() -> None:
    assert packages_loaded_by("import fullattention.bench.workloads") == {"fullattention"}


@pytest.mark.parametrize("workload", CATALOGUE.values(), ids=str)
def test_every_workload_is_a_call_that_the_layer_takes_and_says_whence(workload: Workload) -> None:
    assert min(workload.shape) >= 1
    assert workload.source
    assert workload.mask == "none" or workload.shape.L == workload.shape.S


def test_the_catalogue_reads_as_in_the_models() -> None:
    assert CATALOGUE["toy"].shape == Sizes(8, 6, 6, 2, 8, 8)
    assert CATALOGUE["tslib/patchtst/etth1/h8"].shape == Sizes(224, 12, 12, 8, 64, 64)
    assert CATALOGUE["tslib/patchtst/ili/h4"].shape == Sizes(224, 4, 4, 4, 512, 512)
    assert CATALOGUE["transformer/cross"].shape == Sizes(32, 144, 96, 8, 64, 64)
    assert CATALOGUE["transformer/decoder-self"].mask == "causal"
    assert CATALOGUE["crossformer/m4"].shape.E == 2


@pytest.mark.parametrize("name", names("hazard/grid/*"))
def test_the_grid_hazards_pass_the_limit(name: str) -> None:
    shape = CATALOGUE[name].shape
    assert shape.B * shape.H > GRID_LIMIT


def test_without_patterns_the_default_set_is_chosen_or_all() -> None:
    assert names() == list(DEFAULT)
    assert names(full=True) == list(CATALOGUE)


def test_patterns_are_names_or_globs_and_choose_each_workload_once() -> None:
    assert names("toy", "to*", "tslib/patchtst/etth1/*") == [
        "toy",
        "tslib/patchtst/etth1/h2",
        "tslib/patchtst/etth1/h8",
        "tslib/patchtst/etth1/h16",
    ]


def test_an_unknown_pattern_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(LookupError, match=r"'toi'.*toy, .*hazard/grid/h4"):
        select(["toy", "toi"])


def test_half_precision_variants_are_in_the_catalogue() -> None:
    assert CATALOGUE["long/2k/float16"].dtype == "float16"
    assert CATALOGUE["long/2k/float16"].shape == CATALOGUE["long/2k"].shape
    assert "transformer/encoder/float16" not in CATALOGUE


def test_a_workload_in_another_dtype_is_named_by_it_and_back_again() -> None:
    half = CATALOGUE["transformer/encoder"].in_dtype("bfloat16")
    assert (half.name, half.dtype) == ("transformer/encoder/bfloat16", "bfloat16")
    assert half.in_dtype("float16").name == "transformer/encoder/float16"
    assert half.in_dtype("float32") == CATALOGUE["transformer/encoder"]


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype is 'int8'"):
        CATALOGUE["toy"].in_dtype("int8")


def test_a_shape_becomes_a_workload() -> None:
    workload = parse_shape("32,96,97, 8,64,65")
    assert workload.shape == Sizes(32, 96, 97, 8, 64, 65)
    assert workload.name == "shape/32x96x97x8x64x65"


@pytest.mark.parametrize("text", ["", "1,2,3", "1,2,3,4,5,6,7", "1,2,3,4,5,x", "-1,2,3,4,5,6"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="six whole numbers"):
        parse_shape(text)


def test_an_empty_axis_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        parse_shape("1,2,0,4,5,6")
