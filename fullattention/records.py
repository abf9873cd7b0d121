"""What outlives a process: immutable, versioned records, written as strict JSON lines.

Writing needs the standard library alone; reading validates with msgspec (extra `suite`).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from fullattention.outputs import require_folder

SCHEMA = 3
"""Version of the record format; a reader refuses any other."""

TIMINGS = "timings.jsonl"
COMPARISONS = "comparisons.jsonl"
CEILINGS = "ceilings.jsonl"
VERDICTS = "verdicts.jsonl"
"""Files in the folder of a run; a store's folders have the first two."""

RUNS = Path("results")
"""Where runs get a folder each, unless another is asked for."""

BASELINE = "torch-sdpa"
"""The backend that all others are compared with, wherever it was timed."""

ALLOWANCE = 0.1
"""Cores that other processes may keep busy beyond the spare ones: no system is ever idle."""

CLOCK_DRIFT = 0.1
"""Share by which the time of a fixed piece of work may change during a contest."""

SKIPPED = "skipped: "
"""How the detail of a check begins that was not to be run."""

Status = Literal["passed", "failed", "unsupported", "deviates", "expected", "not run"]
"""What comes of a check; "deviates" and "expected" are failures that were announced."""

Level = Literal["quick", "standard", "full"]
"""How much is tried; each level holds all checks of those before it."""

Mode = Literal["forward", "weights", "training", "host"]
"""What a timed call does: attend; return the weights too; forward and backward pass with dropout;
attend from host arrays to host arrays, transfers included."""

Mask = Literal["none", "causal", "padding"]
"""What a timed call hides: nothing; the keys after a query's own position; each batch entry's last
keys, by an array (B, 1, 1, S)."""

Speed = Literal["faster", "slower", "tie", "not settled"]
"""What a comparison finds of a backend."""

Basis = Literal[
    "measured",
    "interpolated",
    "unknown",
    "unavailable",
    "unsupported",
    "not conformant",
    "wrong",
    "void",
    "not run",
]
"""What an option's time rests on, or why it has none."""

Record = TypeVar("Record", "Verdict", "Timing", "Comparison", "Ceilings")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Everything about the machine and its libraries that a figure depends on."""

    time: str
    """Start, ISO 8601 in UTC."""
    suite: str
    """Version of fullattention."""
    python: str
    platform: str
    cpu: str
    cores: int
    """Cores this process may use."""
    memory_gib: float
    gpu: str | None
    gpu_driver: str | None
    threads: int
    """Threads that the libraries were told to use."""
    load: float | None
    """Load average over the last minute before the start, where the system tells."""
    libraries: Mapping[str, str]
    """Name -> version."""
    blas: tuple[str, ...]
    """Each BLAS or OpenMP in use: name, version, architecture it dispatched to."""
    variables: Mapping[str, str]
    """Environment variables that change speed, as they are set."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one check found for one backend."""

    check: str
    """Id of the check, enough to run it again alone."""
    requirement: str
    """Id in the contract, such as "M5"."""
    section: str
    dtype: str
    """Empty where no check ran: what was declared or expected is out of date."""
    status: Status
    detail: str = ""
    """Why it failed, deviates or did not run; begins with `SKIPPED` where it was not to run."""
    ratio: float | None = None
    """Largest error over its bound; None where the check compares no numbers with a bound."""
    bits: float | None = None
    """Effective bits, where a check measures them."""
    warning: str = ""
    """What is suspicious, though the check passed."""
    output: str = ""
    """The end of what the candidate printed meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """What all checks of one requirement come to."""

    requirement: str
    status: Status
    reason: str = ""
    checks: int = 0
    """How many were tried."""
    worst_ratio: float | None = None
    worst_check: str = ""
    """Id of the check with the largest error over its bound; of those that failed, if any did."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the conformance suite found for one backend on one device."""

    backend: str
    spec: str = ""
    """What loads it: a name, `module:object` or `path.py[:object]`; empty for an object."""
    dtypes: tuple[str, ...] = ()
    """The dtypes that were asked for; empty: all that it takes."""
    only: str = ""
    """Beginning of the ids of the checks that were asked for; empty: all."""
    library: str
    library_version: str
    device: str
    level: Level
    contract: int
    suite: str
    conformant: bool
    precision: Mapping[str, Mapping[str, float | bool]] = dataclasses.field(default_factory=dict)
    """The declared precision, by dtype and field."""
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    deviates: Mapping[str, str] = dataclasses.field(default_factory=dict)
    environment: Environment | None = None
    """None where the libraries that read it are not installed."""
    diagnosis: tuple[str, ...] = ()
    """What a candidate that failed computes instead, or where it is wrong, a sentence each."""
    requirements: tuple[Requirement, ...] = ()
    results: tuple[Result, ...]
    offered: int = 0
    """How many checks there are of all dtypes that it takes; at every level, if `only` is set."""
    seconds: float
    schema: int = SCHEMA

    @property
    def judged(self) -> bool:
        """Whether any check could be tried."""
        return any(result.status not in ("unsupported", "not run") for result in self.results)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long one backend took for one workload, and how right it was while it did.

    Times are seconds per call. A timing that was not made has no times and says why in `reason`.
    """

    backend: str
    library: str = ""
    """Import name of the library whose arrays it takes; empty: not told."""
    library_version: str
    """Empty where the backend could not be loaded, or was not."""
    device: str
    workload: str
    shape: tuple[int, int, int, int, int, int]
    """B, L, S, H, E, D."""
    dtype: str
    mask: Mask
    mode: Mode = "forward"
    status: Literal["timed", "wrong", "void", "incomplete", "not run"]
    """Only "timed" is ranked; "wrong" was timed, and its output broke the bound; "void" was faster
    than the machine can be, or had far more or far fewer cores than it was told to use;
    "incomplete" was timed until its run was ended, and not checked to the end."""
    reason: str = ""
    """Why it is not "timed", or lacks what a GPU tells."""
    verdict_level: str | None = None
    conformant: bool | None = None
    """The verdict of the process that took the times; None: none was reached."""
    error_over_bound: float | None = None
    """Largest error of sampled timed outputs over its bound."""
    first_call: float | None = None
    """Of the last process, which made no call of this workload before; None where that is the first
    process, which was judged. It may find on disk what another process compiled."""
    median: float | None = None
    """Of the turns of all processes, as are the quartiles and the minimum; a turn's time is the
    median of it."""
    lower_quartile: float | None = None
    upper_quartile: float | None = None
    minimum: float | None = None
    processes: int | None = None
    """Warm ones with this backend; verdict, peak memory and figures of a GPU are the first's."""
    blocks: int | None = None
    """In each of which every process took one turn; a turn begins with calls that are not timed, so
    that what fits the caches lies in them."""
    calls_per_turn: int | None = None
    device_median: float | None = None
    """As `median`, by the device's own clock; None where it has none."""
    peak_bytes: int | None = None
    """The most memory that one call held beyond its inputs, on the device where it has its own;
    None: not measured."""
    graph_seconds: float | None = None
    """By the device's own clock, where calls are replayed as a CUDA graph, so that launching them
    costs nothing; None: not on CUDA, or they cannot be captured."""
    cold_seconds: float | None = None
    """Of a single call by the device's own clock, after the L2 cache was overwritten; all other
    times are of calls that find in the caches what fits. None: not on CUDA."""
    joules: float | None = None
    """Of a call: all energy that the GPU takes while calls follow each other, by NVML's counter;
    None: not measured."""
    flop: int | None = None
    """By formula, of the visible part."""
    bytes_moved: int | None = None
    """Each input read once and each result written once."""
    floor: Literal["copy", "matmul", "exp"] | None = None
    """Which ceiling of the machine allows the least speed for this call; None: not measured."""
    share: float | None = None
    """Time at that ceiling over the median."""
    other_load: float | None = None
    """Cores that other processes kept busy meanwhile, on average. It is a lower bound: what may
    come from the ticks by which the system counts time is taken off."""
    own_load: float | None = None
    """Cores that the backend's own process kept busy in its turns, on average."""
    throttlings: int | None = None
    """How often the cores were held back meanwhile, by a quota or to cool; None: not told."""
    clock_drift: float | None = None
    """Share by which a core took longer for a fixed piece of work after the contest than before;
    None: not told."""
    gpu_others: int | None = None
    """Other processes that computed on the GPUs; None: not told, or none was used."""
    seed: int | None = None
    """Of the random inputs."""
    environment: Environment
    schema: int = SCHEMA

    @property
    def crowding(self) -> float:
        """Cores that others took of those that the backend was told to use."""
        spare = self.environment.cores - self.environment.threads + ALLOWANCE
        return max(0.0, (self.other_load or 0.0) - spare)

    @property
    def disturbed(self) -> bool:
        """Whether others wanted the cores or the GPU meanwhile, or the cores' speed changed."""
        changed = bool(self.throttlings) or abs(self.clock_drift or 0.0) > CLOCK_DRIFT
        return self.crowding > 0 or changed or bool(self.gpu_others)

    @property
    def oversubscribed(self) -> bool:
        """Whether the backend kept more cores busy than it was told to use."""
        return self.own_load is not None and self.own_load > self.environment.threads + ALLOWANCE


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One backend's time over another's for one workload, taken block by block.

    The two took their turns in the same blocks, so what slows the machine for a while slows both.
    Interval and verdict allow for what differs between processes of one backend.
    """

    workload: str
    shape: tuple[int, int, int, int, int, int]
    """B, L, S, H, E, D."""
    dtype: str
    mask: Mask
    mode: Mode = "forward"
    device: str
    backend: str
    against: str
    ratio: float
    """Time of `backend` over that of `against`."""
    low: float
    """The ratio's 95 % interval, from here..."""
    high: float
    """... to here."""
    verdict: Speed
    """Of `backend`."""
    smallest_difference: float
    """A difference from 1 that such turns show nine times in ten."""
    blocks: int
    processes: int
    """Of each backend; in a block each takes one turn."""
    process_difference: float
    """What two processes of one backend usually differ by here, as a share of their time; the
    scatter of their turns is in it."""
    environment: Environment
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The best speeds of simple operations, as measured on this machine in the same run."""

    device: str
    copy: Mapping[str, float]
    """Size of the array in bytes -> bytes read and written per second by copying it."""
    matmul: float
    """FLOP per second of a float32 matrix product."""
    exp: float
    """float32 exponentials per second."""
    environment: Environment
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class Option:
    """One backend in a choice: its time, or why it has none; times are seconds per call."""

    backend: str
    basis: Basis
    seconds: float | None = None
    low: float | None = None
    """Lower quartile where it was measured, else the lower end of what the model says."""
    high: float | None = None
    ratio: float | None = None
    """To the fastest's time."""
    tied: bool = False
    """Whether it may be as fast as the fastest."""
    error_over_bound: float | None = None
    model_error: float | None = None
    """Root mean square of the logarithmic errors that the model makes on shapes it was not told."""
    measured: str = ""
    """When, ISO 8601 in UTC: the start of the run."""
    workload: str = ""
    """Under which name."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The backends for one call, the fastest first, those without a time last."""

    shape: tuple[int, int, int, int, int, int]
    """B, L, S, H, E, D."""
    dtype: str
    mask: Mask
    mode: Mode
    device: str
    threads: int
    timed_threads: int | None = None
    """Those of the timings that it rests on, where there are none with as many as the call has."""
    hardware: str
    """Key of the hardware whose timings it rests on."""
    options: tuple[Option, ...]
    environment: Environment
    schema: int = SCHEMA

    @property
    def backend(self) -> str:
        """The fastest."""
        return self.options[0].backend


def as_json(
    record: Verdict | Timing | Comparison | Ceilings | Choice, indent: int | None = None
) -> str:
    """A record as strict JSON; what UTF-8 cannot encode in a candidate's words becomes an escape.

    Raises:
        ValueError: it holds NaN or an infinity, which JSON has no word for.
    """
    return json.dumps(_encodable(dataclasses.asdict(record)), allow_nan=False, indent=indent)


def _encodable(value: object) -> object:
    """The value with all text such that UTF-8 can encode it."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case Mapping():
            return {_encodable(key): _encodable(one) for key, one in value.items()}
        case list() | tuple():
            return [_encodable(one) for one in value]
    return value


POSITIVE: Mapping[type[Timing] | type[Comparison], tuple[str, ...]] = {
    Timing: ("first_call", "median", "lower_quartile", "upper_quartile", "minimum"),
    Comparison: ("ratio", "low", "high"),
}
"""Fields that are above 0 where they are known."""


def require_unused(name: str, folder: Path) -> None:
    """Require that a run's records can be written in a folder, and that it holds no other run's.

    Args:
        name: of the argument that it was given as.
        folder: which need not exist.

    Raises:
        ValueError: they cannot, or it does; the message names the argument.
    """
    require_folder(name, folder)
    if (folder / TIMINGS).exists():
        raise ValueError(f"{name} is {folder}: it holds the timings of another run")


def write(path: Path, records: Iterable[Verdict | Timing | Comparison | Ceilings]) -> None:
    """Append records to a file, one JSON object a line.

    Raises:
        ValueError: a record holds NaN or an infinity, which JSON has no word for.
    """
    with path.open("a", encoding="utf-8") as file:
        for record in records:
            file.write(as_json(record) + "\n")


def read(path: Path, kind: type[Record]) -> list[Record]:
    """The records of one kind in a file.

    Raises:
        ValueError: a line is not such a record, or of another schema; the message names the line.
    """
    return [_require(found) for found in each(path, kind)]


def each(path: Path, kind: type[Record]) -> Iterator[Record | str]:
    """What each line of a file holds: a record of one kind, or else a sentence why it is none."""
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line:
            yield _decoded(line, kind, f"{path}, line {number}")


def read_one(path: Path, kind: type[Record]) -> Record:
    """The record that a file holds alone.

    Raises:
        ValueError: it holds no such record, or one of another schema.
    """
    return _require(_decoded(path.read_bytes(), kind, str(path)))


def _decoded(text: bytes, kind: type[Record], place: str) -> Record | str:
    import msgspec

    try:
        record = msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        return f"{place}: no {kind.__name__} record: {error}"
    if record.schema != SCHEMA:
        return f"{place}: schema {record.schema}, this version reads {SCHEMA}"
    if nonsense := _nonsense(record):
        return f"{place}: no {kind.__name__} record: {nonsense}"
    return record


def _nonsense(record: Verdict | Timing | Comparison | Ceilings) -> str:
    """Which value of a well-formed record cannot be; empty where all can."""
    if not isinstance(record, Timing | Comparison):
        return ""
    if min(record.shape) < 1:
        return f"shape is {record.shape}: every size must be at least 1"
    if record.environment.threads < 1:
        return f"threads is {record.environment.threads}: at least 1"
    for name in POSITIVE[type(record)]:
        value = getattr(record, name)
        if value is not None and not 0 < value < math.inf:
            return f"{name} is {value}: it must be above 0, and finite"
    if isinstance(record, Timing) and record.status == "timed" and record.median is None:
        return "it is timed, and has no median"
    return ""


def _require(found: Record | str) -> Record:
    if isinstance(found, str):
        raise ValueError(found)
    return found
