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

TICK = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 1 / 64
"""Seconds by which the system counts CPU time."""

BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
"""What a core's time goes to when it is not idle."""


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
    allowed, quota = len(_affinity()), _cpu_quota(cgroup)
    return allowed if quota is None else min(allowed, math.ceil(quota))


def thread_count(text: str) -> int:
    """The number of threads that a whole number stands for, or `all`: one for each usable core.

    Raises:
        ValueError: the text is neither.
    """
    if text == "all":
        return usable_cores()
    if not (text.isdecimal() and int(text)):
        raise ValueError(f"threads is {text!r}: a whole number from 1 on, or `all`")
    return int(text)


def _affinity() -> set[int]:
    """Numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


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


def others_on_gpus() -> int | None:
    """Processes that compute on NVIDIA GPUs, this one and its children aside, by nvidia-smi.

    None where it does not tell, or tells of none of us: in a container it may hide processes, or
    number them as its host does. So ask while one of us uses a GPU.
    """
    found = _output("nvidia-smi", "--query-compute-apps=pid", "--format=csv").splitlines()[1:]
    listed = {line.strip() for line in found}
    us = psutil.Process()
    ours = {str(one.pid) for one in (us, *us.children(recursive=True))}
    return len(listed - ours) if listed & ours else None


def load_average() -> float | None:
    """Processes that wanted to run over the last minute; None where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def others_cpu_seconds(cgroup: Path = CGROUP) -> float:
    """CPU time that others used since some moment of what this process may use.

    That is all other processes on the cores of its affinity, and what a hypervisor stole of them.
    Where a quota allows less than these cores, it is the other processes of its cgroup, as they
    alone share the quota: whether processes of other groups were in its way cannot be told from
    what they used, since they may have had the remaining cores.
    """
    own = psutil.Process().cpu_times()
    cores, quota = _affinity(), _cpu_quota(cgroup)
    used = None if quota is None or quota >= len(cores) else _group_cpu_seconds(cgroup)
    total = _busy_seconds(cores) if used is None else used
    return total - float(own.user + own.system)


def _busy_seconds(cores: set[int]) -> float:
    """What some cores were busy for; all, where a number is none that the system lists."""
    every = psutil.cpu_times(percpu=True)
    counted = [every[number] for number in cores] if max(cores) < len(every) else every
    return sum(float(getattr(core, kind, 0.0)) for core in counted for kind in BUSY)


def _group_cpu_seconds(cgroup: Path) -> float | None:
    """What all processes of the cgroup used; None where the system does not tell."""
    for name, microseconds in _lines(cgroup / "cpu.stat"):
        if name == "usage_usec":
            return int(microseconds) / 1e6
    nanoseconds = _words(cgroup / "cpuacct" / "cpuacct.usage")
    return int(nanoseconds[0]) / 1e9 if nanoseconds else None


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
