"""What a failing candidate does instead is named in one line, and never wrongly."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import time
from typing import Any

import numpy as np
import pytest
import torch

from fullattention import records
from fullattention.backends import Backend, standard, torch_leak
from fullattention.backends.interface import Array, Sizes
from fullattention.backends.torch_arrays import ARRAYS
from fullattention.cli import main
from fullattention.conformance import check
from fullattention.conformance.case import Case
from fullattention.conformance.conditions import nearest
from fullattention.conformance.diagnosis import SEEDS, diagnose
from fullattention.conformance.dialects import DIALECTS, rounded
from fullattention.conformance.explanation import Explanation
from fullattention.conformance.facts import whereabouts
from fullattention.conformance.observation import observations
from fullattention.conformance.probes import Probe, probes
from fullattention.conformance.steps import RIGHT
from fullattention.conformance.subject import Subject, load_subject
from tests.zoo.attending import Call, Plain, Result, Tiled, hide, right, softmax
from tests.zoo.faulty.backends import FAULTY_BACKENDS
from tests.zoo.faulty.layers import FAULTY_LAYERS
from tests.zoo.faulty.making import on_out, then
from tests.zoo.layers import NumpyLayer, UpstreamLayer
from tests.zoo.reported import entries_in_turn
from tests.zoo.specimen import backend, tiled
from tests.zoo.valid import VALID

ZOO = {specimen.name: specimen.candidate for specimen in (*FAULTY_BACKENDS, *FAULTY_LAYERS)}

FRESH = (31, 32)
"""Seeds of draws that no diagnosis has seen."""


def lines_of(candidate: Any) -> list[str]:
    """The diagnosis without its figures."""
    subject = candidate if isinstance(candidate, Subject) else load_subject(candidate)
    return [without_figures(line) for line in diagnose(subject)]


def without_figures(line: str) -> str:
    line = re.sub(r" \(max error [^()]*\)$", "", line)
    return line.removeprefix("equals FullAttention with ").removeprefix("and with ")


def float32(method: Any, **fields: Any) -> Backend:
    return backend("own", method, dtypes=("float32",), **fields)


# Faults that the zoo does not hold.


class CausalAlways(NumpyLayer):
    def hidden(self, attn_mask: Any, L: int, S: int) -> Array | None:
        if not self.mask_flag and attn_mask is None:
            return self.causal(L, S)
        return super().hidden(attn_mask, L, S)


class OneKeyForOneQuery(NumpyLayer):
    def causal(self, L: int, S: int) -> Array | None:
        return np.triu(np.ones((L, L if L > 1 else S), bool), 1)


class LengthsIgnored(NumpyLayer):
    def causal(self, L: int, S: int) -> Array | None:
        return super().causal(L, S) if L == S else None


class InverseOfE(NumpyLayer):
    def factor_on_scores(self, E: int, unused: dict[str, Any]) -> float:
        return self.scale or 1 / E


class RootOfD(UpstreamLayer):
    def forward(self, *arguments: Any, **named: Any) -> Any:
        given, self.scale = self.scale, self.scale or 1 / math.sqrt(arguments[2].shape[-1])
        try:
            return super().forward(*arguments, **named)
        finally:
            self.scale = given


class HeadsInsteadOfTime(UpstreamLayer):
    """Forgets to transpose: attention runs over heads at each position."""

    def forward(self, *arguments: Any, **named: Any) -> Any:
        q, k, v, mask = arguments
        if q.shape[1] != k.shape[1] or mask is not None:
            raise ValueError("lengths or mask do not fit")
        flag, self.mask_flag = self.mask_flag, False
        out, a = super().forward(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None)
        self.mask_flag = flag
        return out.transpose(1, 2).contiguous(), a


class RealReplacement(NumpyLayer):
    """Several of the mistakes that replacements of the layer were released with."""

    def given(self, attn_mask: Any) -> Array:
        return ~attn_mask.mask

    def causal(self, L: int, S: int) -> Array | None:
        return super().causal(L, S) if L != S else None

    def factor_on_scores(self, E: int, unused: dict[str, Any]) -> float:
        return 1 / math.sqrt(E) if self.scale is None else self.scale

    def dropout(self) -> float:
        return 0.0


class EveryCallRaises(NumpyLayer):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise NotImplementedError("later")


def mean_in_hidden_rows(call: Call) -> Result:
    def filled(z: Array) -> Array:
        return np.where(np.isneginf(z).all(-1, keepdims=True), z.dtype.type(0), z)

    return Plain(softmax=lambda z: softmax(filled(z)))(call)


def in_float16(x: Array) -> Array:
    return x.swapaxes(1, 2).astype(np.float16).astype(np.float32)


def keys_until(limit: int) -> Plain:
    def hidden(z: Array, given: Array | None) -> Array:
        late = np.arange(z.shape[-1]) >= limit
        return hide(z, late if given is None else given | late)

    return Plain(hide=hidden)


def features_until(limit: int) -> Plain:
    return Plain(scores=lambda q, k: q[..., :limit] @ k[..., :limit].swapaxes(-1, -2))


def last_tile_added(call: Call) -> Result:
    """An online softmax that does not rescale its output for a last tile that is not full."""

    whole = call.k.shape[1] // 16
    tiles = itertools.count()

    def rescaled(out: Array, correction: Array) -> Array:
        return out if next(tiles) == whole > 0 else out * correction

    return Tiled(rescale_out=rescaled)(call)


def scale_for_exp2(call: Call) -> Result:
    """log2(e) is folded into the scale, which is kept in bfloat16."""
    factor = torch.tensor(call.scale * math.log2(math.e), dtype=torch.bfloat16)
    return right(call.but(scale=float(factor) * math.log(2)))


def scale_after(call: Call) -> Result:
    """Both mistakes are in every call: none explains one alone."""
    return right(call.but(k=np.roll(call.k, -1, axis=2), scale=call.scale**2))


NAMED: dict[str, tuple[Any, list[str]]] = {
    # Masks.
    "polarity": (ZOO["PolarityInverted"], ["the mask inverted: True shows instead of hides"]),
    "causal-dropped": (
        ZOO["causal-ignored"],
        ["nothing hidden when no mask is given: no causal mask"],
    ),
    "flag-ignored": (ZOO["FlagIgnored"], ["the mask applied although mask_flag is off"]),
    "causal-always": (CausalAlways, ["a causal mask although mask_flag is off"]),
    "causal-strict": (
        ZOO["causal-strict"],
        ["the causal diagonal hidden: a query does not see its own position"],
    ),
    "bottom-right": (
        ZOO["CausalBottomRight"],
        ["L != S answered without a mask, causal from the bottom right"],
    ),
    "top-left": (
        ZOO["LengthsAnswered"],
        ["L != S answered without a mask, causal from the top left"],
    ),
    "lengths-ignored": (
        LengthsIgnored,
        ["L != S answered without a mask, nothing hidden"],
    ),
    "one-query": (OneKeyForOneQuery, ["key 0 only visible where L = 1"]),
    "mask-added": (ZOO["mask-added"], ["a boolean mask added to the scores as 1.0"]),
    "mask-after-softmax": (
        ZOO["mask-after-softmax"],
        ["the mask after the softmax, without renormalising"],
    ),
    "head-0": (ZOO["mask-of-head-0"], ["head 0's mask for every head"]),
    "batch-0": (ZOO["mask-of-batch-0"], ["batch entry 0's mask for every entry"]),
    "entries-in-turn": (
        float32(then(entries_in_turn)),
        ["the masks of the batch entries repeated in turn, not each for the heads of its entry"],
    ),
    "transposed": (ZOO["mask-transposed"], ["a square mask transposed"]),
    "fill-1e9": (ZOO["FiniteFill"], ["a finite number such as -1e9 in place of -infinity"]),
    "fill-1e4": (ZOO["mask-minus-1e4"], ["a finite number such as -1e4 in place of -infinity"]),
    "fill-lowest": (
        ZOO["mask-finfo-min"],
        ["fully hidden rows the mean of V, as a finite number in place of -infinity makes them"],
    ),
    "rows-mean": (
        float32(mean_in_hidden_rows),
        ["fully hidden rows the mean of V, as a finite number in place of -infinity makes them"],
    ),
    "rows-zero": (ZOO["HiddenRowsZero"], ["fully hidden rows 0 instead of NaN"]),
    "rows-nan": (float32(right, masked_rows="zero"), ["fully hidden rows NaN instead of 0"]),
    # Scale.
    "scale-0": (ZOO["ZeroLiteral"], ["scale = 0 taken literally"]),
    "scale-ignored": (ZOO["ScaleIgnored"], ["scale ignored"]),
    "scale-twice": (ZOO["scale-inverse-e"], ["the scale applied twice"]),
    "inverse-of-e": (InverseOfE, ["1 / E for 1 / sqrt(E)"]),
    "no-scale": (ZOO["no-scale"], ["no scale"]),
    "root-of-d": (RootOfD, ["1 / sqrt(D) for 1 / sqrt(E)"]),
    "sign": (ZOO["scale-absolute"], ["the sign of a negative scale lost"]),
    # Softmax and layout.
    "over-queries": (ZOO["softmax-over-queries"], ["the softmax over queries instead of keys"]),
    "no-maximum": (
        float32(Plain(softmax=lambda z: np.exp(z) / np.exp(z).sum(-1, keepdims=True))),
        ["no maximum subtracted before exp: large scores overflow"],
    ),
    "memory-heads-first": (
        ZOO["heads-as-time"],
        ["heads and time swapped: the memory of (B, L, H, E) read as (B, H, L, E)"],
    ),
    "keys-as-values": (ZOO["keys-as-values"], ["K used as V"]),
    "next-head": (ZOO["keys-of-next-head"], ["keys of the previous head"]),
    "keys-until": (float32(keys_until(33)), ["keys from 33 on never read"]),
    "features-until": (
        float32(features_until(5)),
        ["features of q and k from 5 on never read"],
    ),
    "features-by-8": (
        ZOO["features-tail-dropped"],
        ["features of q and k after the last whole block of 8 never read"],
    ),
    "mean": (
        ZOO["toy-shape-only"],
        ["the mean of V returned, whatever q and k are", "dropout ignored in training"],
    ),
    "zeros": (ZOO["zeros"], ["zeros returned", "dropout ignored in training"]),
    # Dropout and weights.
    "dropout-ignored": (ZOO["DropoutIgnored"], ["dropout ignored in training"]),
    "dropout-in-eval": (ZOO["DropoutInEval"], ["dropout active in eval"]),
    "dropout-not-rescaled": (
        ZOO["dropout-not-rescaled"],
        ["dropped weights not made up for by 1 / (1 - p)"],
    ),
    "weights-before": (ZOO["weights-before-dropout"], ["the weights before dropout returned"]),
    "output-attention": (
        ZOO["WeightsChangeV"],
        ["the mask ignored where output_attention is on"],
    ),
    # Precision.
    "tf32": (ZOO["tf32-everywhere"], ["q, k, v rounded to 11 bits (TF32 has as many)"]),
    "bfloat16": (ZOO["bfloat16-inside"], ["q, k, v rounded to 8 bits (bfloat16 has as many)"]),
    "float16": (
        float32(Plain(read=in_float16)),
        ["q, k, v rounded to float16, its range included"],
    ),
    "exp2": (
        float32(scale_for_exp2),
        ["the scale times log2(e) rounded to 8 bits (bfloat16 has as many)"],
    ),
    # Some at once.
    "pair": (
        float32(scale_after),
        ["the scale applied twice", "keys of the next head"],
    ),
    "several": (
        RealReplacement,
        [
            "the mask inverted: True shows instead of hides",
            "nothing hidden when no mask is given: no causal mask",
            "dropout ignored in training",
            "scale = 0 taken literally",
        ],
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_known_mistake_is_named_in_one_line_and_nothing_else_is(name: str) -> None:
    candidate, expected = NAMED[name]
    assert sorted(lines_of(candidate)) == sorted(expected)


REPLACEMENTS = {
    "polarity": "M3",
    "causal-dropped": "M2",
    "flag-ignored": "M1",
    "scale-0": "S2",
    "scale-ignored": "S4",
    "dropout-ignored": "P2",
    "one-query": "M2",
    "top-left": "M2",
    "bottom-right": "M2",
    "lengths-ignored": "M2",
    "output-attention": "C2",
}
"""What released replacements of the layer got wrong, and the requirement that each breaks."""


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_what_replacements_got_wrong_is_one_line_of_the_verdict(name: str) -> None:
    candidate, expected = NAMED[name]
    verdict = check(candidate, only=f"{REPLACEMENTS[name]}:", dtypes=("float32",))
    assert not verdict.conformant
    assert [without_figures(line) for line in verdict.diagnosis] == expected


def test_the_command_prints_each_mistake_of_a_replacement_on_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = f"{__name__}:{RealReplacement.__name__}"
    assert main(["check", spec, "--only", "S2:", "--dtype", "float32"]) == 1
    printed = capsys.readouterr().out.splitlines()
    for words in NAMED["several"][1]:
        assert sum(words in line for line in printed) == 1, words


def test_heads_in_place_of_time_is_named() -> None:
    named, *_ = lines_of(HeadsInsteadOfTime)
    assert named == "heads and time swapped: (B, L, H, E) read as (B, H, L, E)"


def test_silent_broadcasting_is_named_where_sizes_must_be_refused() -> None:
    upstream = load_subject(UpstreamLayer)
    lacks = {need: why for need, why in upstream.lacks.items() if need != "strict_sizes"}
    strict = dataclasses.replace(upstream, lacks=lacks)
    assert "axes of size 1 broadcast silently" in lines_of(strict)


def test_a_line_says_how_well_it_fits() -> None:
    (line,) = diagnose(load_subject(ZOO["PolarityInverted"]))
    found = re.fullmatch(
        r"equals FullAttention with the mask inverted: True shows instead of hides "
        r"\(max error (\S+)\)",
        line,
    )
    assert found
    assert float(found[1]) < 1e-5


def test_the_second_mistake_continues_the_sentence() -> None:
    first, *others = diagnose(load_subject(RealReplacement))
    assert first.startswith("equals FullAttention with ")
    assert all(line.startswith("and with ") for line in others)


# What has no name.


FACTS = {
    "float64-as-float32": [
        "wrong only where the dtype is float64",
        "they are computed in float32",
    ],
    "top-16": ["wrong only where S > 12 (right at S = 16, wrong at S = 17)"],
    "query-block-offset": [
        "wrong only where L > 70 (right at L = 128, wrong at L = 129)",
        "only at l >= 128",
    ],
    "NegativeScaleRefused": ["raises only where scale is negative: ValueError: scale must be"],
    "FactorUsed": ["wrong only where `factor` is not 5"],
    "weights-of-another-call": ["only where output_attention is on", "V is right"],
    "weights-never": ["output_attention=True returned weights None"],
    "SqueezesOneQuery": ["V has shape (2, 3, 8), expected (2, 1, 3, 8), only where L = 1"],
    "right-20-times": ["gives the same call another answer after other calls"],
    "noise": ["about 13 bits are right"],
    "hidden-rows-spread": ["only where a query has every key hidden", "V is NaN"],
    "SwallowsErrors": [
        "answers instead of refusing where no mask is given and mask_flag is on and L != S"
    ],
}


@pytest.mark.parametrize("name", FACTS)
def test_an_unknown_mistake_is_described_by_where_it_shows(name: str) -> None:
    text = " | ".join(diagnose(load_subject(ZOO[name])))
    assert "FullAttention with" not in text
    for words in FACTS[name]:
        assert words in text


def test_what_is_wrong_here_and_there_is_described_by_what_it_has_in_common() -> None:
    candidate = float32(last_tile_added, precision=tiled(16))
    line, *_ = check(candidate, level="quick").diagnosis
    assert re.match(
        r"wrong in \d+ of \d+ kinds of calls tried where S > \d+, and nowhere else", line
    )


def test_what_most_right_calls_have_in_common_as_well_is_not_said() -> None:
    shapes = [Sizes(B, B, S, 1, E, 2) for E in (1, 2, 4) for B in (1, 2, 4) for S in (1, 2)]
    calls = [Probe(case=Case(shape=shape, dtype="float32"), requirement="C1") for shape in shapes]
    wrong = [one for one in calls if one.case.shape in {shapes[6], shapes[17]}]
    right_ones = [one for one in calls if one not in wrong]
    assert nearest(wrong, right_ones) == ("E > 1", 10)
    assert whereabouts(wrong, right_ones) == "in 2 of 18 kinds of calls tried"


def test_what_is_left_besides_a_known_mistake_is_said() -> None:
    lines = diagnose(load_subject(ZOO["FusedZeroLiteral"]))
    assert any("scale = 0 taken literally" in line for line in lines)
    assert lines[-1] == "beyond that, output_attention=True returned weights None"


def test_failed_checks_say_where_else_to_look() -> None:
    candidate = ZOO["hidden-value-unread"]
    assert diagnose(load_subject(candidate)) == []
    verdict = check(candidate, level="standard", dtypes=("float32",))
    (line,) = diagnose(load_subject(candidate), verdict.results)
    assert "only where" in line
    assert "nan-in-last-value" in line


def test_a_fault_that_no_number_shows_is_left_to_its_check() -> None:
    candidate = ZOO["one-buffer"]
    verdict = check(candidate, only="C11", dtypes=("float32",))
    (line,) = diagnose(load_subject(candidate), verdict.results)
    assert re.fullmatch(r"right in \d+ kinds of calls tried; what fails is C11", line)


def test_where_no_check_failed_there_is_nothing_to_say() -> None:
    stale = check(float32(right, deviates={"C1": "no more"}), level="standard")
    assert [result.check for result in stale.results if result.status == "failed"] == [
        "C1: declared deviation"
    ]
    assert stale.diagnosis == ()


# Nothing false.


@pytest.mark.parametrize("specimen", VALID, ids=str)
def test_what_is_right_gets_no_line(specimen: Any) -> None:
    assert diagnose(load_subject(specimen.candidate)) == []


@pytest.mark.parametrize(
    "name",
    [
        *("numpy-matmul", "torch-einsum", "torch-sdpa"),
        pytest.param("numba-cpu", marks=pytest.mark.proof),  # compiles for every dtype
    ],
)
def test_a_built_in_backend_gets_no_line(name: str) -> None:
    assert diagnose(load_subject(name)) == []


STEADY = [s for s in FAULTY_BACKENDS if s.kind in ("scale", "mask", "softmax", "layout")]


@pytest.mark.parametrize("specimen", STEADY[::4], ids=str)
def test_what_is_named_holds_for_numbers_that_were_not_seen(specimen: Any) -> None:
    subject = load_subject(specimen.candidate)
    with np.errstate(all="ignore"):
        explanation = Explanation(list(observations(subject, probes(subject), SEEDS)))
        explanation.search()
        explained = [explanation.asked[i] for i in explanation.explained]
        for fresh in observations(subject, explained, FRESH):
            assert explanation.explains(fresh), fresh.probe


@pytest.mark.parametrize(
    "candidate",
    [
        EveryCallRaises,
        float32(lambda call: ("text", None)),
        float32(lambda call: None),
        float32(lambda call: (call.v * np.float32(np.nan), None)),
        backend("own", on_out(lambda out: out * np.nan)),
    ],
    ids=["raises", "text", "nothing", "nan", "right-but-nan"],
)
def test_rubbish_is_survived_and_described(candidate: Any) -> None:
    lines = diagnose(load_subject(candidate))
    assert lines
    assert not any("FullAttention" in line for line in lines)


def test_names_of_mistakes_are_distinct_and_each_replaces_something() -> None:
    assert len({dialect.text for dialect in DIALECTS}) == len(DIALECTS)
    assert all(dialect.within(RIGHT) is not None for dialect in DIALECTS)


def test_rounding_to_bits_is_that_of_the_hardware_formats() -> None:
    x = np.random.default_rng(0).standard_normal(10_000)
    half = x.astype(np.float16).astype(np.float64)
    normal = abs(half) > 2.0**-14
    assert np.array_equal(rounded(x, 11)[normal], half[normal])
    brain = torch.from_numpy(x).to(torch.bfloat16).to(torch.float64).numpy()
    assert np.array_equal(rounded(x, 8), brain)


def test_it_takes_two_seconds_at_most() -> None:
    start = time.process_time()
    diagnose(load_subject(ZOO["PolarityInverted"]))
    assert time.process_time() - start < 2


def test_a_machine_whose_torch_misplaces_nan_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = records.Result(
        check="N4: shape=2,5,7,3,11,13 dtype=bfloat16 poison=nan-in-key",
        requirement="N4",
        section="numerics",
        dtype="bfloat16",
        status="failed",
        detail="V: 3 of 30 elements wrong; first at b=0: got nan, expected 0.5",
    )
    subject = load_subject(UpstreamLayer)
    for leaks in (True, False):
        monkeypatch.setattr(torch_leak, "leaks", lambda leaks=leaks: leaks)
        said = "\n".join(diagnose(subject, [failed]))
        assert ("carries NaN from row to row on this CPU" in said) == leaks


def torch_backend(**fields: Any) -> Backend:
    def attend(q: Any, k: Any, v: Any, *, hidden: Any, scale: float, **_: Any) -> Result:
        z = scale * torch.einsum("blhe,bshe->bhls", q, k)
        a = (z if hidden is None else z.masked_fill(hidden, -torch.inf)).softmax(-1)
        return torch.einsum("bhls,bshd->blhd", a, v), None

    lacks = dict.fromkeys(("causal", "weights", "dropout"), "not written yet")
    precision = {"float32": standard("float32")}
    return Backend(
        name="own", attend=attend, arrays=ARRAYS, precision=precision, lacks=lacks, **fields
    )


@pytest.mark.parametrize("rows", [None, "zero", "nan"])
def test_rows_that_the_layer_fills_are_told_where_a_gradient_lacks_their_nan(rows: Any) -> None:
    verdict = check(torch_backend(masked_rows=rows), only="G3", dtypes=("float32",))
    told = any("declare masked_rows='nan'" in line for line in verdict.diagnosis)
    assert told == (rows != "nan")
    assert verdict.conformant == (rows == "nan")


def test_what_is_raised_meanwhile_is_a_line_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def probes_end(subject: Subject) -> Any:
        raise MemoryError("nothing left")

    monkeypatch.setattr("fullattention.conformance.diagnosis.probes", probes_end)
    verdict = check(ZOO["PolarityInverted"], only="M3", dtypes=("float32",))
    assert not verdict.conformant
    said = "none: while it was sought, MemoryError was raised: nothing left"
    assert verdict.diagnosis == (said,)
