"""What was measured, kept for good: a folder for each hardware, files that are only appended to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

from filelock import FileLock
from platformdirs import user_data_path

from fullattention.choosing.hardware_key import hardware_key
from fullattention.outputs import require_folder
from fullattention.records import (
    COMPARISONS,
    TIMINGS,
    Comparison,
    Timing,
    as_json,
    each,
)

FILES: dict[type[Timing] | type[Comparison], str] = {
    Timing: TIMINGS,
    Comparison: COMPARISONS,
}
"""Kind of record -> the file that holds it, in a store's folders as in those of a run."""

Kind = TypeVar("Kind", Timing, Comparison)


@dataclasses.dataclass(frozen=True)
class Held(Generic[Kind]):
    """What a file holds."""

    records: list[Kind]
    lost: list[str]
    """Why each other line is no whole record of this schema, with its place: it was cut off while
    it was written, or written by another version. Such lines stay where they are."""


@dataclasses.dataclass(frozen=True)
class Merged:
    """What came of a merge."""

    new: int
    """Records that were not kept before."""
    lost: list[str]
    """Why each line that could not be read is none, as in `Held`."""


class Store:
    """Records by hardware; writers may be many at a time, and may be cut off.

    Args:
        folder: where it lies; None: `results` in the platform's folder for the user's data.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or user_data_path("fullattention", appauthor=False) / "results"

    def require_usable(self) -> None:
        """Require that records can be kept in the folder.

        Raises:
            ValueError: they cannot; the message names the folder.
        """
        require_folder("store", self.folder)

    def hardware(self) -> list[str]:
        """The hardware that anything is kept for."""
        if not self.folder.is_dir():
            return []
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir())

    def timings(self, key: str) -> Held[Timing]:
        """Every timing on a hardware, those of the oldest run first."""
        return _by_run(read_whole(self.folder / key / FILES[Timing], Timing))

    def comparisons(self, key: str) -> Held[Comparison]:
        """Every comparison on a hardware, those of the oldest run first."""
        return _by_run(read_whole(self.folder / key / FILES[Comparison], Comparison))

    def add(self, records: Iterable[Timing | Comparison]) -> int:
        """Keep records that are not kept yet; returns how many those were."""
        lines: dict[Path, list[str]] = {}
        for record in records:
            place = self.folder / hardware_key(record.environment) / FILES[type(record)]
            lines.setdefault(place, []).append(as_json(record))
        return sum(_append(place, new) for place, new in lines.items())

    def merge(self, *folders: Path) -> Merged:
        """Keep what other stores or the folders of runs hold.

        Raises:
            FileNotFoundError: a folder is neither.
            OSError: the records cannot be kept; the message says where they stay.
        """
        found = [held for folder in folders for held in _records(folder)]
        try:
            new = sum(self.add(held.records) for held in found)
        except OSError as error:
            places = " ".join(map(str, folders))
            raise OSError(
                f"{error}: the records stay in {places}, until they can be kept by "
                f"`fullattention results merge {places}`"
            ) from error
        return Merged(new, [line for held in found for line in held.lost])


def existing(folder: Path | None) -> Store:
    """The store in a folder; None: the user's own, which need not be there yet.

    Raises:
        OSError: there is no such folder.
    """
    if folder is not None and not folder.is_dir():
        what = "that is a file" if folder.exists() else "there is no such folder"
        raise NotADirectoryError(f"store is {folder}: {what}")
    return Store(folder)


def _records(folder: Path) -> list[Held[Timing] | Held[Comparison]]:
    """What each file in a folder and in its folders holds.

    Raises:
        FileNotFoundError: there is none.
    """
    insides = (folder, *sorted(path for path in folder.iterdir() if path.is_dir()))
    found: list[Held[Timing] | Held[Comparison]] = []
    for inside in insides:
        if (path := inside / FILES[Timing]).exists():
            found.append(read_whole(path, Timing))
        if (path := inside / FILES[Comparison]).exists():
            found.append(read_whole(path, Comparison))
    if not found:
        raise FileNotFoundError(f"{folder} holds no {' or '.join(FILES.values())}")
    return found


def read_whole(path: Path, kind: type[Kind]) -> Held[Kind]:
    """The whole records of a file, and why other lines are none; nothing where there is no file."""
    held: Held[Kind] = Held([], [])
    for found in each(path, kind) if path.exists() else ():
        if isinstance(found, str):
            held.lost.append(found)
        else:
            held.records.append(found)
    return held


def _by_run(held: Held[Kind]) -> Held[Kind]:
    """The oldest run's records first, however late they were merged; a run's own in their order."""
    return Held(sorted(held.records, key=lambda record: record.environment.time), held.lost)


def _append(path: Path, lines: Iterable[str]) -> int:
    """Append those lines that the file does not hold, each whole, even after a cut-off one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")), path.open("a+b") as file:
        file.seek(0)
        held = file.read()
        known = set(held.splitlines())
        new = [line for line in dict.fromkeys(map(str.encode, lines)) if line not in known]
        start = b"\n" if held and not held.endswith(b"\n") else b""
        if new:
            file.write(start + b"\n".join(new) + b"\n")
        return len(new)
