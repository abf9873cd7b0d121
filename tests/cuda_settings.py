"""What the kernels are compiled for to serve the built-in workloads, and what each then uses.

`python -m tests.cuda_settings` compiles all of them and prints a table.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
from collections.abc import Iterator

from fullattention.backends.cupy_kernels.kernels import KERNELS, STANDARD, Setting, source
from fullattention.backends.cupy_kernels.launch import Limits, forward_kernel, plan
from fullattention.backends.interface import Sizes
from fullattention.bench.workloads import CATALOGUE
from fullattention.machine.hardware import usable_cores
from tests.nvrtc import Usage, compile_for

ARCHITECTURES = ("sm_80", "sm_90")

H200 = Limits(threads=1024, shared=227 * 1024, tensor_cores=True)


def usage(kernel: str, setting: Setting, arch: str) -> Usage:
    """Compile as CuPy does."""
    options = (STANDARD, *setting.macros, "-ftz=true")
    return compile_for(source(KERNELS[kernel]), arch, options)[kernel]


def setting_of(kernel: str, workload: str, *, extras: bool = False) -> Setting:
    """The setting that serves a workload."""
    chosen = CATALOGUE[workload]
    sizes = Sizes(*chosen.shape)
    return plan(kernel, chosen.dtype, sizes, H200, extras=extras).setting


def all_settings() -> Iterator[tuple[str, Setting]]:
    """Every kernel with every setting that some workload needs, once."""
    found: dict[tuple[str, Setting], None] = {}
    for (name, workload), extras in itertools.product(CATALOGUE.items(), (False, True)):
        sizes = Sizes(*workload.shape)
        kernels = [kernel for kernel, of in KERNELS.items() if of == "backward"]
        kernels.append(forward_kernel(workload.dtype, sizes, H200, extras=extras))
        for kernel in kernels:
            found[kernel, setting_of(kernel, name, extras=extras)] = None
    yield from found


def row(kernel: str, setting: Setting, arch: str) -> str:
    """What a kernel uses of a GPU with one setting."""
    used = usage(kernel, setting, arch)
    return (
        f"{kernel:20} {arch} {used.registers:4} registers {used.spilled:5} bytes spilled  "
        f"{' '.join(setting.macros)}"
    )


def main() -> None:
    """Print the table."""
    wanted = [(*one, arch) for one in all_settings() for arch in ARCHITECTURES]
    spawning = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(usable_cores(), spawning) as pool:
        for text in pool.map(row, *zip(*wanted, strict=True)):
            print(text, flush=True)


if __name__ == "__main__":
    main()
