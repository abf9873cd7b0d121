"""Judges answers to a pack."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fullattention.conformance import contract
from fullattention.conformance.case import Failed, compare
from fullattention.conformance.pack.layout import (
    CLASSES,
    INDEX,
    SCHEMA,
    STORAGE,
    from_storage,
    pack_id,
    sha256,
)
from fullattention.records import Result, Status

UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile)
"""What NumPy raises for a file that holds no arrays."""


class Place(NamedTuple):
    """Where an answer lies: a file, and the names of its arrays there."""

    path: Path
    out: str
    weights: str


@dataclass(frozen=True, kw_only=True)
class PackVerdict:
    """What a pack found for one implementation."""

    precision_class: str
    """The class that its errors were judged by."""
    pack: str
    """Its id; see `pack_id`."""
    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """Whether every case was answered, and rightly."""
        return all(result.status == "passed" for result in self.results)


def check_pack(
    folder: Path, results: Path, *, precision_class: str = "standard", dtypes: Sequence[str] = ()
) -> PackVerdict:
    """Judge the answers that lie in `results` by the pack in `folder`.

    Args:
        folder: the pack, whose hashes are verified first.
        results: a folder with a file for each case, NAME.npy with `out` or NAME.npz with `out` and
            `weights`; or one .npz with the arrays NAME and NAME.weights.
        precision_class: how the implementation rounds, a key of `CLASSES`.
        dtypes: which cases count; all of the pack if empty.

    Raises:
        ValueError: the pack is damaged or of another version; nothing is answered, or something
            that the pack does not ask; the class or a dtype is unknown.
    """
    if precision_class not in CLASSES:
        raise ValueError(f"class is {precision_class!r}: one of {', '.join(CLASSES)}")
    index = _verified_index(folder)
    cases = _chosen(index["cases"], dtypes)
    answers = _answers(results, {case["name"] for case in index["cases"]})
    judged = [_judge(folder, case, answers, precision_class) for case in cases]
    if all(result.status == "not run" for result in judged):
        raise ValueError(f"results {results}: none of the {len(judged)} cases is answered")
    return PackVerdict(precision_class=precision_class, pack=pack_id(folder), results=tuple(judged))


def _verified_index(folder: Path) -> dict[str, Any]:
    """The index of a pack whose files are all there and unchanged."""
    path = folder / INDEX
    if not path.is_file():
        raise ValueError(f"folder {folder} is no pack: it has no {INDEX}")
    try:
        index: dict[str, Any] = json.loads(path.read_bytes())
        versions = {name: index[name] for name in ("schema", "contract")}
        hashes = dict(index["files"])
        hashes |= {case["file"]: case["sha256"] for case in index["cases"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__qualname__}: {error}") from error
    known = {"schema": SCHEMA, "contract": contract.VERSION}
    if versions != known:
        raise ValueError(f"{path} has {_words(versions)}, this version judges {_words(known)}")
    for name, digest in hashes.items():
        if not (folder / name).is_file():
            raise ValueError(f"the pack is incomplete: {folder / name} is missing")
        if sha256(folder / name) != digest:
            raise ValueError(f"the pack is damaged: {folder / name} has another hash than {INDEX}")
    return index


def _words(versions: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _chosen(cases: Iterable[dict[str, Any]], dtypes: Sequence[str]) -> list[dict[str, Any]]:
    cases = list(cases)
    held = list(dict.fromkeys(case["dtype"] for case in cases))
    for dtype in dtypes:
        if dtype not in held:
            raise ValueError(f"dtype {dtype}: the pack has {', '.join(held)}")
    return [case for case in cases if case["dtype"] in (dtypes or held)]


def _answers(results: Path, names: set[str]) -> dict[str, Place]:
    """Case name -> where its answer lies."""
    if results.is_dir():
        found = _places(results)
    elif results.suffix == ".npz" and results.is_file():
        found = _places_within(results)
    else:
        raise ValueError(f"results {results}: neither a folder nor an .npz file")
    unknown = sorted(set(found) - names)
    if unknown:
        raise ValueError(f"results {results}: the pack has no case {', '.join(unknown[:3])}")
    return found


def _places(folder: Path) -> dict[str, Place]:
    """The answers of a folder with a file for each case."""
    found: dict[str, Place] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".npy", ".npz"):
            continue
        if path.stem in found:
            raise ValueError(f"results {folder}: {path.stem} is answered twice")
        found[path.stem] = Place(path, "out", "weights")
    return found


def _places_within(file: Path) -> dict[str, Place]:
    """The answers of one file for all cases."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            names = {key.removesuffix(".weights") for key in arrays}
    except UNREADABLE as error:
        raise ValueError(f"results {file} does not read: {error}") from error
    return {name: Place(file, name, f"{name}.weights") for name in names}


def _judge(
    folder: Path, case: Mapping[str, Any], answers: Mapping[str, Place], precision_class: str
) -> Result:
    status: Status = "passed"
    detail, ratio = "", None
    if case["name"] not in answers:
        status, detail = "not run", "not answered"
    else:
        try:
            answer = _read(answers[case["name"]])
            with np.load(folder / case["file"], allow_pickle=False) as truth:
                ratio = max(_ratios(answer, truth, case, precision_class))
        except Failed as error:
            status, detail, ratio = "failed", str(error), error.ratio
    return Result(
        check=case["name"],
        requirement=case["requirement"],
        section=contract.SECTION_OF[case["requirement"]],
        dtype=case["dtype"],
        status=status,
        detail=detail,
        ratio=ratio,
    )


def _read(place: Place) -> dict[str, np.ndarray]:
    """The answer to a case: `out` and, where given, `weights`.

    Raises:
        Failed: its file does not read, or holds no `out`.
    """
    try:
        # Opened here, since NumPy leaves a file open that turns out to be none of its own.
        with place.path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"out": loaded}
            keys = {"out": place.out, "weights": place.weights}
            found = {part: loaded[key] for part, key in keys.items() if key in loaded}
    except UNREADABLE as error:
        raise Failed(f"{place.path.name} does not read: {error}") from error
    if "out" not in found:
        raise Failed(f"{place.path.name} holds no {place.out!r}")
    return found


def _ratios(
    answer: Mapping[str, np.ndarray],
    truth: Mapping[str, np.ndarray],
    case: Mapping[str, Any],
    precision_class: str,
) -> Iterator[float]:
    """The largest error over its bound in each array of an answer.

    Raises:
        Failed: it exceeds 1, or an array has another shape or dtype than the case asks for.
    """
    dtype = STORAGE[case["dtype"]]
    for name, axes in (("out", "blhd"), ("weights", "bhls")):
        if name not in answer:
            continue
        got, want = answer[name], truth[name]
        if got.shape != want.shape:
            raise Failed(f"{name} has shape {got.shape}, expected {want.shape}")
        if got.dtype != dtype:
            raise Failed(f"{name} has dtype {got.dtype}, expected {dtype} for {case['dtype']}")
        bound = truth[f"{name}_bound_{precision_class}"]
        yield compare(name, axes, from_storage(got), want, bound)
