"""What the machine is, and how much of it this process may use."""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
CPUS = Path("/sys/devices/system/cpu")
PROC = Path("/proc")
GIB = 2**30


def cpu_model(proc: Path = PROC) -> str:
    """The CPU's own name, or the best that the system tells."""
    if (cpuinfo := proc / "cpuinfo").exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Hardware", "cpu model"):
                return value.strip()
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    return platform.processor() or platform.machine()


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Cores that the scheduler gives this process: its affinity, within its cgroup's quota."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    quota = _cpu_quota(cgroup)
    return allowed if quota is None else min(allowed, math.ceil(quota))


def _cpu_quota(cgroup: Path) -> float | None:
    """CPU seconds per second that the cgroup allows; None where it sets no limit."""
    if both := _words(cgroup / "cpu.max"):
        quota, period = both
    else:
        (quota,) = _words(cgroup / "cpu" / "cpu.cfs_quota_us") or ["-1"]
        (period,) = _words(cgroup / "cpu" / "cpu.cfs_period_us") or ["1"]
    return None if quota in ("max", "-1") else int(quota) / int(period)


def memory_limit(cgroup: Path = CGROUP) -> int:
    """Bytes of memory that this process may use at most."""
    return min(int(psutil.virtual_memory().total), _memory_quota(cgroup))


def memory_free(cgroup: Path = CGROUP) -> int:
    """Bytes of memory that this process may still take."""
    room = _memory_quota(cgroup) - int(psutil.Process().memory_info().rss)
    return max(0, min(int(psutil.virtual_memory().available), room))


def _memory_quota(cgroup: Path) -> int:
    places = (cgroup / "memory.max", cgroup / "memory" / "memory.limit_in_bytes")
    limits = [int(word) for place in places for word in _words(place) if word != "max"]
    return min(limits, default=sys.maxsize)


def gpu() -> tuple[str | None, str | None]:
    """Names of the NVIDIA GPUs and version of their driver, as nvidia-smi tells; else None."""
    lines = _output(
        "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"
    ).splitlines()
    if not lines:
        return None, None
    pairs = [tuple(part.strip() for part in line.rsplit(",", 1)) for line in lines]
    return ", ".join(name for name, _ in pairs), pairs[0][1]


def load_average() -> float | None:
    """Processes that wanted to run over the last minute; None where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def others_cpu_seconds() -> float:
    """CPU time that all but this process used since some moment; what a hypervisor stole too."""
    all_cores, own = psutil.cpu_times(), psutil.Process().cpu_times()
    busy = ("user", "nice", "system", "irq", "softirq", "steal")
    total = sum(getattr(all_cores, kind, 0.0) for kind in busy)
    return float(total - own.user - own.system)


def throttlings(cgroup: Path = CGROUP, cpus: Path = CPUS) -> int | None:
    """How often since some moment cores were held back, by the cgroup's quota or to cool.

    None where the system tells neither.
    """
    counts = [int(line[1]) for line in _lines(cgroup / "cpu.stat") if line[0] == "nr_throttled"]
    for counter in sorted(cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")):
        counts += map(int, _words(counter))
    return sum(counts) if counts else None


def _lines(path: Path) -> list[list[str]]:
    if not path.is_file():
        return []
    return [line.split() for line in path.read_text(encoding="ascii").splitlines()]


def _words(path: Path) -> list[str]:
    return path.read_text(encoding="ascii").split() if path.is_file() else []


def _output(program: str, *arguments: str) -> str:
    """What a program prints; nothing where it is missing or fails."""
    if (found := shutil.which(program)) is None:
        return ""
    done = subprocess.run([found, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
