"""Every check of the project, one session each: `python -m nox -l` lists them."""

import itertools
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping

import nox

nox.needs_version = ">=2025.2.9"
# Plain pip also finds a torch build that only pip's own configuration names; uv does not.
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests"]

PYPROJECT = nox.project.load_toml("pyproject.toml")
HYPOTHESIS = {"HYPOTHESIS_STORAGE_DIRECTORY": "results/cache/hypothesis"}

INSTALLED: dict[str, set[tuple[str, str]]] = {}
"""Extras and groups that this run of nox has installed, by the session, each as kind and name."""


def install(session: nox.Session, *extras: str, groups: tuple[str, ...] = ()) -> None:
    """Install the project with these extras and dependency groups, at the tested versions.

    Sessions that run as parts of another, as those of `ci`, share its environment: what is in there
    is not asked for again, which would build the project once more.
    """
    installed = INSTALLED.setdefault(session.name, set())
    wanted = {*(("extra", name) for name in extras), *(("group", name) for name in groups)}
    if installed >= wanted:
        return
    installed |= wanted
    project = ["-e", f".[{','.join(extras)}]"] if extras else []
    requirements = nox.project.dependency_groups(PYPROJECT, *groups)
    session.install("-c", "constraints.txt", *project, *requirements)


def pytest(session: nox.Session, *options: str, env: Mapping[str, str] | None = None) -> None:
    """Run pytest in two processes.

    Each begins with one half of the tests, in their order, and takes over what the other has not
    come to: tests of one file share what was compiled and computed for them.

    Threads that spin while they wait would take the cores from the other process, for most of the
    time where calls are small: OpenMP's are told to sleep, and OpenBLAS has one. Python may keep
    its bytecode, whatever the machine's setting: many tests start processes.
    """
    ours = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1"}
    ours["PYTHONDONTWRITEBYTECODE"] = ""
    command = ("python", "-m", "pytest", "-n", "2", "--dist", "worksteal")
    session.run(*command, *options, env=ours | dict(env or {}))


def check(
    session: nox.Session,
    backends: Iterable[str],
    *options: str,
    env: Mapping[str, str] | None = None,
) -> None:
    """Check backends against the contract, at the standard level unless an option says another."""
    pytest(
        session,
        *("--timeout", "600", "-p", "fullattention.pytest_plugin"),
        *("--pyargs", "fullattention.conformance"),
        *itertools.chain(*(("--backend", name) for name in backends)),
        *options,
        *session.posargs,
        env=env,
    )


CPU_EXTRAS = ("torch", "numba", "onnxruntime", "openvino", "jax")


def backend_extras() -> tuple[str, ...]:
    """Return the extras whose backends this machine's driver can run."""
    if not (nvidia_smi := shutil.which("nvidia-smi")):
        return CPU_EXTRAS
    status = subprocess.run([nvidia_smi], capture_output=True, text=True, check=False)
    version = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+)", status.stdout)
    if status.returncode or not version:
        return CPU_EXTRAS
    # The torch of PyPI is built for CUDA 13: it does not install beside cuda12, nor see its GPU.
    return (*CPU_EXTRAS, "cuda13") if int(version[1]) >= 13 else (*CPU_EXTRAS[1:], "cuda12")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and the direction of imports with ruff and import-linter."""
    install(session, groups=("lint",))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-cache", "--no-logo")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of the package and its tests with mypy."""
    install(session, *CPU_EXTRAS, "suite", groups=("test", "types"))
    session.run("mypy", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the suite's own tests on the CPU backends, in two processes."""
    install(session, *CPU_EXTRAS, "suite", groups=("test",))
    pytest(session, *session.posargs, env=HYPOTHESIS)


@nox.session
def proofs(session: nox.Session) -> None:
    """Run those of the suite's own tests that take minutes: marked `proof`, and in CI too."""
    install(session, *CPU_EXTRAS, "suite", groups=("test",))
    pytest(session, "-m", "proof", *session.posargs, env=HYPOTHESIS)


@nox.session
def coverage(session: nox.Session) -> None:
    """Run the suite's own tests in one process and report the lines and branches they miss."""
    install(session, *CPU_EXTRAS, "suite", groups=("test",))
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", *session.posargs, env=HYPOTHESIS)
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report")


@nox.session
def mutation(session: nox.Session) -> None:
    """Judge the suite: planted faults and mutants must be convicted, valid variants cleared."""
    install(session, "torch", "suite", groups=("test",))
    session.run("python", "-m", "tests.mutation", *session.posargs)


CPU_BACKENDS = (
    *("numpy-reference", "numpy-matmul", "torch-einsum", "torch-bmm"),
    *("torch-sdpa", "torch-sdpa-math", "torch-sdpa-flash"),
    *("numba-cpu", "numba-cpu-torch"),
    *("onnxruntime", "onnxruntime-attention", "openvino"),
)
COMPILING = ("torch-compile", "torch-flex", "jax", "jax-einsum")
"""Backends that compile for each new kind of call: the standard level takes them many minutes."""


@nox.session
def conformance(session: nox.Session) -> None:
    """Check every backend for the CPU against the contract; those that compile, quickly."""
    install(session, "suite", *CPU_EXTRAS, groups=("test",))
    check(session, CPU_BACKENDS)
    check(session, COMPILING, "--level", "quick", "--dtype", "float32")


@nox.session
def simulator(session: nox.Session) -> None:
    """Check Numba's CUDA kernels against the contract in its simulator, by tiles of few keys."""
    install(session, "torch", "suite", groups=("test",))
    simulated = {"NUMBA_ENABLE_CUDASIM": "1"}
    quick = ("--level", "quick", "--timeout", "900")
    check(session, ("numba-cuda", "numba-cuda-torch"), *quick, env=simulated)
    check(session, ("tests/zoo/numba_tiles.py",), *quick, "--dtype", "float32", env=simulated)


@nox.session
def ptx(session: nox.Session) -> None:
    """Compile Numba's CUDA kernels for the GPUs in use, by NVIDIA's compilers alone."""
    install(session, "suite", groups=("test", "ptx"))
    pytest(session, "--timeout", "600", *session.posargs, "tests/numba_ptx.py")


@nox.session
def triton(session: nox.Session) -> None:
    """Check our Triton kernels in its interpreter, and compile them for the GPUs in use."""
    install(session, "torch", "suite", groups=("test", "triton"))
    interpreted = {"TRITON_INTERPRET": "1"}
    quick = ("--level", "quick")
    check(session, ("triton",), *quick, env=interpreted)
    check(session, ("tests/zoo/triton_tiles.py",), *quick, "--dtype", "float32", env=interpreted)
    options = ("--timeout", "600", *session.posargs)
    pytest(session, *options, "tests/triton_interpreted.py", env=interpreted)
    pytest(session, *options, "tests/triton_ptx.py")


@nox.session
def fuzz(session: nox.Session) -> None:
    """Try a thousand random cases per dtype on the CPU backends, or on those given after --."""
    install(session, *CPU_EXTRAS, "suite")
    session.run("fullattention", "fuzz", *(session.posargs or CPU_BACKENDS))


EMULATED = ("numpy_first_to_last", "torch_last_to_first")
"""Both orders of threads, each through one library's arrays."""
EMULATED_QUICKLY = ("numpy_last_to_first", "torch_first_to_last")


@nox.session
def emulation(session: nox.Session) -> None:
    """Check our CUDA kernels on a CPU emulation (needs g++), and compile all of them for GPUs."""
    install(session, "torch", "suite", groups=("test",))
    for names, level in ((EMULATED, "standard"), (EMULATED_QUICKLY, "quick")):
        backends = [f"tests/emulation/backends.py:{name}" for name in names]
        check(session, backends, "--level", level)
    session.run("python", "-m", "tests.cuda_settings")


@nox.session
def ci(session: nox.Session) -> None:
    """Run all that CI does beside `lint` and `tests`, in one environment: installing takes time."""
    for part in (types, proofs, conformance, simulator, emulation, ptx, triton):
        part(session)


@nox.session
def bench(session: nox.Session) -> None:
    """Check and time every backend that this machine can run, on its GPU too, and report."""
    extras = backend_extras()
    install(session, "suite", *extras)
    devices = ("cpu",) if extras == CPU_EXTRAS else ("cpu", "cuda")
    if "--device" in session.posargs:
        session.run("fullattention", "bench", *session.posargs)
        return
    for device in devices:
        session.run("fullattention", "bench", "--device", device, *session.posargs)


@nox.session
def aa(session: nox.Session) -> None:
    """Measure how often the benchmarks' own verdicts are right; the tables go into the docs."""
    install(session, "torch", "numba", "suite")
    document = ("--write", "docs/measuring.md")
    session.run("python", "tools/aa.py", *document, *session.posargs)


@nox.session
def drop_in(session: nox.Session) -> None:
    """Measure what the drop-in costs a call, and gains; the tables go into the docs."""
    install(session, *CPU_EXTRAS, "suite", groups=("test",))
    document = ("--tune", "--write", "docs/choosing.md")
    session.run("python", "-m", "tools.drop_in", *document, *session.posargs)


@nox.session
def regret(session: nox.Session) -> None:
    """Measure the catalogue, choose for each shape by all the others, and write what that costs."""
    install(session, "suite", *backend_extras())
    kept = pathlib.Path(session.create_tmp(), "store")
    if kept.exists():
        shutil.rmtree(kept)  # an earlier session's timings are no part of this one's table
    store = ("--store", str(kept))
    measured = session.posargs or ("--workload", "*")
    session.run("fullattention", "bench", "--mode", "forward", *store, *measured)
    session.run("fullattention", "results", "regret", *store, "--write", "docs/choosing.md")
