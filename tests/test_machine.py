"""What is read of the machine, from made-up files and programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
import threadpoolctl

from fullattention.machine import hardware
from fullattention.machine.blas import blas
from fullattention.machine.environment import environment
from fullattention.machine.threads import one_blas_thread, set_threads
from fullattention.records import Timing, write
from tests.conftest import threads_as_before


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_cpu_is_called_by_its_name(tmp_path: Path) -> None:
    put(tmp_path / "cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz: fast\n")
    assert hardware.cpu_model(tmp_path) == "Some CPU @ 3 GHz: fast"


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu.max": "1600000 100000"}, 8),
    ],
)
def test_cores_are_those_of_the_affinity_within_the_quota(
    tmp_path: Path, files: dict[str, str], cores: int
) -> None:
    for name, text in files.items():
        put(tmp_path / name, text)
    assert hardware.usable_cores(tmp_path) == cores


def test_cores_are_held_back_by_a_quota_or_to_cool(tmp_path: Path) -> None:
    assert hardware.throttlings(tmp_path, tmp_path) is None
    put(tmp_path / "cpu.stat", "usage_usec 5\nnr_periods 9\nnr_throttled 3\nthrottled_usec 7\n")
    assert hardware.throttlings(tmp_path, tmp_path) == 3
    for cpu in ("cpu0", "cpu1"):
        put(tmp_path / cpu / "thermal_throttle" / "core_throttle_count", "2\n")
    assert hardware.throttlings(tmp_path, tmp_path) == 7


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_memory_is_that_of_the_cgroup_where_it_has_less(tmp_path: Path, name: str) -> None:
    whole = hardware.memory_limit(tmp_path)
    put(tmp_path / name, "1000000")
    assert hardware.memory_limit(tmp_path) == 1_000_000 < whole
    assert hardware.memory_free(tmp_path) == 0  # this process alone has more


def test_memory_without_a_limit_is_the_machines(tmp_path: Path) -> None:
    whole = hardware.memory_limit(tmp_path)
    put(tmp_path / "memory.max", "max")
    assert hardware.memory_limit(tmp_path) == whole
    assert 0 < hardware.memory_free(tmp_path) <= whole


def fake_nvidia_smi(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!{sys.executable}\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.skipif(sys.platform == "win32", reason="the fake program is a script")
def test_gpus_are_those_that_nvidia_smi_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvidia_smi(tmp_path, 'print("NVIDIA X1, 570.10\\nNVIDIA X2, 570.10")', monkeypatch)
    assert hardware.gpu() == ("NVIDIA X1, NVIDIA X2", "570.10")
    fake_nvidia_smi(tmp_path, "raise SystemExit(9)", monkeypatch)
    assert hardware.gpu() == (None, None)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert hardware.gpu() == (None, None)


@pytest.mark.skipif(sys.platform == "win32", reason="the fake program is a script")
def test_others_on_gpus_are_those_that_nvidia_smi_lists_beside_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = os.getpid()

    def answering(text: str) -> int | None:
        body = f"import sys; print({{'--query-compute-apps=pid': {text!r}}}[sys.argv[1]])"
        fake_nvidia_smi(tmp_path, body, monkeypatch)
        return hardware.others_on_gpus()

    assert answering(f"pid\n17\n{ours}\n4711") == 2
    assert answering(f"pid\n{ours}") == 0
    assert answering("pid\n17") is None, "it numbers us otherwise"
    assert answering("pid") is None, "it hides us"
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert hardware.others_on_gpus() is None


class Core:
    """A core that others kept busy for 60 s, and a hypervisor for 5 s."""

    user, system, steal, idle = 40.0, 20.0, 5.0, 1000.0


@pytest.fixture
def busy_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 of them; this process used 10 s in all."""
    own = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=7.0, system=3.0))
    monkeypatch.setattr("psutil.cpu_times", lambda percpu: [Core()] * 64)
    monkeypatch.setattr("psutil.Process", lambda: own)


@pytest.mark.usefixtures("busy_cores")
@pytest.mark.parametrize(
    ("affinity", "seconds"),
    [(range(64), 64 * 65.0), ((3, 17), 2 * 65.0), ((3, 64), 64 * 65.0)],
    ids=["all", "two", "one that is not listed"],
)
def test_others_cpu_time_is_that_of_the_cores_one_may_use(
    affinity: Iterable[int], seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(affinity), raising=False)
    assert hardware.others_cpu_seconds(tmp_path) == seconds - 10.0


@pytest.mark.usefixtures("busy_cores", "eight_cores")
@pytest.mark.parametrize(
    ("files", "seconds"),
    [
        ({"cpu.max": "200000 100000", "cpu.stat": "usage_usec 25000000\nnr_periods 1\n"}, 25.0),
        (
            {
                "cpu/cpu.cfs_quota_us": "200000",
                "cpu/cpu.cfs_period_us": "100000",
                "cpuacct/cpuacct.usage": "25000000000\n",
            },
            25.0,
        ),
        ({"cpu.max": "200000 100000"}, 8 * 65.0),
        ({"cpu.max": "max 100000", "cpu.stat": "usage_usec 25000000\n"}, 8 * 65.0),
        ({"cpu.max": "800000 100000", "cpu.stat": "usage_usec 25000000\n"}, 8 * 65.0),
    ],
    ids=["quota", "quota of version 1", "usage not told", "no quota", "quota of all cores"],
)
def test_within_a_quota_others_are_those_that_share_it(
    files: dict[str, str], seconds: float, tmp_path: Path
) -> None:
    for name, text in files.items():
        put(tmp_path / name, text)
    assert hardware.others_cpu_seconds(tmp_path) == seconds - 10.0


@pytest.mark.usefixtures("threads_restored")
def test_set_threads_is_obeyed_by_every_loaded_library() -> None:
    pools = threadpoolctl.threadpool_info()
    assert pools, "NumPy brings a BLAS that can be told"
    for count in (2, 1):
        set_threads(count)
        assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info()} == {count}


@pytest.mark.usefixtures("threads_restored")
def test_set_threads_tells_torch_too_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(set_num_threads=told.append))
    set_threads(2)
    assert told == [2]
    monkeypatch.delitem(sys.modules, "torch")
    set_threads(1)
    assert "torch" not in sys.modules


def test_a_test_that_sets_threads_leaves_those_of_every_library_as_they_were() -> None:
    """Numba's is what threadpoolctl does not see."""
    libraries = [pytest.importorskip(name) for name in ("torch", "numba")]
    before = [library.get_num_threads() for library in libraries]
    if before[1] == 1:
        pytest.skip("numba has one thread: there are no fewer")
    with threads_as_before():
        set_threads(1)
        assert [library.get_num_threads() for library in libraries] == [1, 1]
    assert [library.get_num_threads() for library in libraries] == before


def blas_threads() -> set[int]:
    """Threads of NumPy's library; a test before may have loaded another one, of SciPy."""
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    return {pool["num_threads"] for pool in pools if "numpy" in pool["filepath"]}


@pytest.mark.usefixtures("threads_restored")
def test_one_blas_thread_is_for_as_long_as_it_says() -> None:
    set_threads(2)
    with one_blas_thread():
        assert blas_threads() == {1}
    assert blas_threads() == {2}


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="threads is 0"):
        set_threads(0)


def test_a_blas_is_told_with_version_and_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = [
        {"prefix": "libopenblas", "version": "0.3.31", "architecture": "Haswell"},
        {"prefix": "libgomp", "version": None},
        {"prefix": "libgomp", "version": None},
    ]
    monkeypatch.setattr("threadpoolctl.threadpool_info", lambda: pools)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert blas() == ("libgomp", "libopenblas 0.3.31 Haswell")


def test_the_blas_inside_torch_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "- Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 1 for"
    torch = SimpleNamespace(
        __config__=SimpleNamespace(show=lambda: shown),
        backends=SimpleNamespace(cpu=SimpleNamespace(get_cpu_capability=lambda: "AVX2")),
    )
    monkeypatch.setattr("threadpoolctl.threadpool_info", list)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert blas() == ("torch's MKL 2024.2, AVX2",)


def test_the_environment_names_what_figures_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HOME_OF_NOBODY", "x")
    found = environment(3)
    assert found.threads == 3
    assert found.variables["OMP_NUM_THREADS"] == "3"
    assert "HOME_OF_NOBODY" not in found.variables
    assert "numpy" in found.libraries
    assert "cupy-cuda12x" not in found.libraries or found.libraries["cupy-cuda12x"]
    assert found.cores >= 1


def test_the_environment_is_strict_json(tmp_path: Path) -> None:
    timing = Timing(
        backend="x",
        library_version="",
        device="cpu",
        workload="toy",
        shape=(8, 6, 6, 2, 8, 8),
        dtype="float32",
        mask="none",
        status="not run",
        environment=environment(1),
    )
    write(tmp_path / "timings.jsonl", [timing])
    (line,) = (tmp_path / "timings.jsonl").read_text().splitlines()
    assert json.loads(line)["environment"]["threads"] == 1
