"""Backends are found by name, by module:object and by file, and are refused with a reason."""

from __future__ import annotations

import ast
import copy
import importlib.util
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest

from fullattention import Backend, InvalidInputError, UnavailableError, load, names
from fullattention.backends import extras, registry
from fullattention.backends.listing import listing
from fullattention.backends.registry import BUILT_IN, load_object, split_file

MINIMAL = """
    from fullattention.backends import Backend, numpy_arrays, numpy_matmul, standard

    {name} = Backend(
        name="{label}",
        attend=numpy_matmul.attend,
        arrays=numpy_arrays.ARRAYS,
        precision={{"float32": standard("float32")}},
    )
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to write candidates to; what their import adds to sys.path is taken back."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def write(path: Path, text: str, **words: str) -> str:
    path.write_text(dedent(text).format(**words) if words else dedent(text), encoding="utf-8")
    return str(path)


# Names.


def test_the_names_are_the_built_in_and_the_planned_ones() -> None:
    assert set(names()) >= {*BUILT_IN}
    assert len(names()) == len(set(names()))
    assert {"numpy-reference", "numpy-matmul", "torch-einsum", "torch-sdpa"} <= set(names())


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_name_loads_under_that_name_or_says_why_not(name: str) -> None:
    found = loaded(name)
    if isinstance(found, UnavailableError):
        assert found.backend == name
        assert found.reason
        assert name in str(found)
    else:
        assert found.name == name
        assert found.device == "cpu"
        assert load(name) is found


def loaded(name: str) -> Backend | UnavailableError:
    try:
        return load(name)
    except UnavailableError as error:
        return error


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(LookupError, match=r"no backend is called 'numpy'.*numpy-matmul.*path\.py"):
        load("numpy")


@pytest.mark.parametrize("name", ["numpy-matmul", "numpy-reference"])
def test_numpy_runs_on_the_cpu_only(name: str) -> None:
    with pytest.raises(UnavailableError, match=f"'{name}' is unavailable: .*'cuda'"):
        load(name, "cuda")


def test_a_device_that_torch_does_not_have_is_refused_with_torchs_reason() -> None:
    with pytest.raises(UnavailableError, match=r"torch .* device nowhere: "):
        load("torch-einsum", "nowhere")


# Modules and files.


def test_module_and_object_load() -> None:
    spec = "fullattention.backends.numpy_matmul:backend"
    assert load(spec).name == "numpy-matmul"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("fullattention.nowhere:backend", "no module 'fullattention.nowhere'"),
        ("no_such_package.part:backend", "no module 'no_such_package'"),
        ("fullattention.backends.numpy_matmul:forward", "has no 'forward'"),
        ("no/such/file.py", "no file"),
        ("no/such/file.py:backend", "no file"),
    ],
)
def test_what_is_not_there_is_a_lookup_error(spec: str, words: str) -> None:
    with pytest.raises(LookupError, match=words):
        load(spec)


def test_a_file_named_without_its_ending_is_hinted_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("backend = None")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LookupError, match=r"no backend is called 'mine'; there is a file mine.py;"):
        load("mine")


@pytest.mark.parametrize("spec", ["math:pi", "fullattention:FullAttention"])
def test_what_is_no_backend_is_a_type_error(spec: str) -> None:
    with pytest.raises(TypeError, match=f"'{spec}' is a \\w+: neither a Backend nor a function"):
        load(spec)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            "math:sqrt",
            "'math:sqrt' is no function of a device, nor one of q, k and v: .* raised TypeError",
        ),
        ("json:dumps", "not a Backend"),
    ],
)
def test_what_makes_no_backend_is_a_type_error(spec: str, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        load(spec)


@pytest.mark.parametrize("error", ["RuntimeError", "TypeError", "ValueError"])
def test_a_backend_that_fails_to_load_says_what_it_raised(error: str, folder: Path) -> None:
    text = f"""
        def backend(device):
            raise {error}("driver too old")
    """
    words = f"called with 'cpu' it raised {error}: driver too old"
    with pytest.raises(UnavailableError, match=words):
        load(write(folder / "failing.py", text))


def test_a_function_without_an_argument_is_no_function_of_a_device(folder: Path) -> None:
    with pytest.raises(
        TypeError,
        match=r"is no function of a device, nor one of q, k and v: .* 0 positional arguments",
    ):
        load(write(folder / "nullary.py", "def backend(): ..."))


@pytest.mark.parametrize("device", ["cuda:x", "cuda:-1", "cuda:", "", "CUDA", "cuda:01", ":0"])
def test_what_is_no_device_is_refused_by_name(device: str) -> None:
    """Whether or not the backend would look at it."""
    for name in ("numba-cuda", "numpy-matmul"):
        with pytest.raises(InvalidInputError, match=f"device is '{device}': a kind"):
            load(name, device)


def test_a_file_stands_for_its_only_backend(folder: Path) -> None:
    found = load(write(folder / "mine.py", MINIMAL, name="anything", label="my-own"))
    assert isinstance(found, Backend)
    assert found.name == "my-own"


@pytest.mark.parametrize("place", ["a b:c/mine.py", "co/a:b.py", "x.py:y/mine.py"])
def test_a_path_may_hold_colons(place: str, folder: Path) -> None:
    path = folder / place
    path.parent.mkdir()
    write(path, MINIMAL, name="mine", label="mine")
    assert load(str(path)).name == "mine"
    assert load(f"{path}:mine").name == "mine"
    with pytest.raises(LookupError, match="has no 'other'"):
        load(f"{path}:other")


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("x.py", ("x.py", "")),
        ("x.py:y", ("x.py", "y")),
        ("C:\\x.py:y", ("C:\\x.py", "y")),
        ("package:x", ("", "")),
        ("package.python:x", ("", "")),
    ],
)
def test_a_file_is_told_from_its_object(spec: str, parts: tuple[str, str]) -> None:
    assert split_file(spec) == parts


def test_a_files_functions_are_told_where_it_has_no_backend(folder: Path) -> None:
    text = """
        from math import sqrt
        def attend(q, k, v): ...
    """
    with pytest.raises(LookupError, match=r"as path\.py:object, such as attend$"):
        load(write(folder / "mine.py", text))


def test_an_error_whose_message_raises_is_told_by_its_kind(folder: Path) -> None:
    text = """
        class Odd(Exception):
            def __str__(self):
                raise ValueError
        raise Odd
    """
    with pytest.raises(LookupError, match="does not import: Odd, whose message raises ValueError"):
        load(write(folder / "mine.py", text))


def test_an_object_of_a_file_is_chosen_by_name(folder: Path) -> None:
    path = folder / "both.py"
    first = dedent(MINIMAL).format(name="first", label="the-first")
    second = dedent(MINIMAL).format(name="second", label="the-second")
    path.write_text(first + second, encoding="utf-8")
    assert load(f"{path}:second").name == "the-second"
    with pytest.raises(LookupError, match=r"path\.py:object"):
        load(str(path))
    with pytest.raises(LookupError, match="has no 'third'"):
        load(f"{path}:third")


def test_a_files_backend_goes_before_its_others(folder: Path) -> None:
    path = folder / "named.py"
    other = dedent(MINIMAL).format(name="other", label="other")
    main = dedent(MINIMAL).format(name="backend", label="main")
    path.write_text(other + main, encoding="utf-8")
    assert load(str(path)).name == "main"


def test_a_files_function_of_a_device_is_called_with_the_device(folder: Path) -> None:
    text = """
        from fullattention.backends import UnavailableError

        def backend(device):
            raise UnavailableError("picky", f"not on {device}")
    """
    with pytest.raises(UnavailableError, match="not on cpu"):
        load(write(folder / "picky.py", text))


def test_what_a_file_imports_is_not_its_backend(folder: Path) -> None:
    text = "from fullattention.backends.numpy_matmul import backend"
    with pytest.raises(LookupError, match="no Backend"):
        load(write(folder / "borrows.py", text))


def test_a_file_with_the_layers_class_stands_for_it(folder: Path) -> None:
    path = write(folder / "layer.py", "class FullAttention: ...")
    found = load_object(path)
    assert isinstance(found, type)
    assert found.__name__ == "FullAttention"


def test_a_file_may_import_its_neighbour(folder: Path) -> None:
    write(folder / "neighbour_of_candidate.py", "LABEL = 'neighbourly'")
    text = dedent(MINIMAL).format(name="backend", label="placeholder")
    text = "from neighbour_of_candidate import LABEL\n" + text.replace('"placeholder"', "LABEL")
    assert load(write(folder / "candidate.py", text)).name == "neighbourly"


def test_two_files_of_one_name_are_two_backends(folder: Path) -> None:
    specs = []
    for label in ("left", "right"):
        (folder / label).mkdir()
        specs.append(write(folder / label / "same.py", MINIMAL, name="backend", label=label))
    assert [load(spec).name for spec in specs] == ["left", "right"]


def test_a_backend_object_runs_on_its_own_device_only(folder: Path) -> None:
    spec = write(folder / "fixed.py", MINIMAL, name="backend", label="fixed")
    with pytest.raises(UnavailableError, match="runs on device 'cpu' only, not 'cuda'"):
        load(spec, "cuda")


def test_a_file_that_does_not_import_says_what_it_raised(folder: Path) -> None:
    spec = write(folder / "broken.py", "raise RuntimeError('half written')")
    with pytest.raises(LookupError, match="does not import: RuntimeError: half written"):
        load(spec)


# Libraries that are missing.


def test_a_missing_library_names_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment without torch: its import fails, whatever was imported before."""
    for module in [name for name in sys.modules if name.startswith("fullattention.backends.torch")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        UnavailableError, match=r"torch is not installed: pip install 'fullattention\[torch\]'"
    ):
        registry._loaded.__wrapped__("torch-einsum", "cpu")  # noqa: SLF001 - anew


def missing(library: str) -> str:
    return f"import {library}\n" + dedent(MINIMAL).format(name="backend", label="mine")


@pytest.mark.parametrize(
    ("library", "words"),
    [
        ("a_library_nobody_has", "a_library_nobody_has is not installed"),
        ("cupy", r"cupy is not installed: pip install 'fullattention\[cuda13\]', or .*cuda12\]'"),
    ],
)
def test_a_file_that_needs_a_missing_library_is_unavailable(
    library: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UnavailableError, match=words):
        load(write(folder / "needy.py", missing(library)))


@pytest.mark.parametrize("library", [*extras.EXTRAS, *extras.BY_DRIVER])
def test_what_installs_a_library_names_extras_that_there_are(library: str) -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r"pip install 'fullattention\[(.*?)\]'", extras.command(library))
    assert named
    assert set(named) <= set(tomllib.loads(project)["project"]["optional-dependencies"])


def test_a_missing_library_that_begins_like_the_file_is_no_missing_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file called after the library it needs, loaded by a relative path."""
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "cupy", None)
    write(folder / "cupy_attention.py", missing("cupy"))
    with pytest.raises(UnavailableError, match="cupy is not installed"):
        load("cupy_attention.py")


def test_a_library_that_fails_to_import_says_why(folder: Path) -> None:
    text = """
        def backend(device):
            raise ImportError("libcudart.so.13: cannot open shared object file", name="cupy")
    """
    with pytest.raises(UnavailableError, match="cupy"):
        load(write(folder / "half_installed.py", text))


# Entry points.


DISTRIBUTION = {
    "third_party_attention.py": dedent(MINIMAL).format(name="backend", label="third-party"),
    "third_party-1.0.dist-info/METADATA": (
        "Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n"
    ),
    "third_party-1.0.dist-info/entry_points.txt": (
        "[fullattention.backends]\nthird-party = third_party_attention:backend\n"
    ),
}

PROBE = """
from fullattention import load, names
print("third-party" in names(), load("third-party").name)
"""


def test_an_installed_package_registers_a_backend_by_an_entry_point(tmp_path: Path) -> None:
    for name, text in DISTRIBUTION.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    probe = f"import sys; sys.path.append({str(tmp_path)!r}){PROBE}"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "third-party"]


def test_a_broken_entry_point_is_named_but_breaks_only_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_entry_points", lambda: {"broken": "no_such_package:backend"})
    assert "broken" in names()
    with pytest.raises(LookupError, match="'broken': there is no module 'no_such_package'"):
        registry._loaded.__wrapped__("broken", "cpu")  # noqa: SLF001 - anew
    assert load("numpy-matmul").name == "numpy-matmul"


@pytest.mark.parametrize("broken", ["no_such_package:backend", "math:pi"])
def test_a_broken_one_is_listed_with_the_reason(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fullattention.backends.listing.names", lambda: [broken, "numpy-matmul"])
    refused, right = listing(["cpu"])
    assert broken in refused.reasons["cpu"]
    assert (refused.devices, right.devices) == ((), ("cpu",))


def test_an_entry_point_does_not_replace_a_built_in_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_entry_points", lambda: {"numpy-matmul": "math:pi"})
    anew = registry._loaded.__wrapped__("numpy-matmul", "cpu")  # noqa: SLF001
    assert anew.name == "numpy-matmul"
    assert names().count("numpy-matmul") == 1


def test_every_built_in_target_exists_whether_its_library_does_or_not() -> None:
    for target in BUILT_IN.values():
        place, _, attribute = target.partition(":")
        spec = importlib.util.find_spec(place)
        assert spec is not None
        assert spec.origin is not None
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert attribute in functions, target


def test_a_backend_is_pickled_and_copied_by_what_it_was_loaded_by() -> None:
    backend = load("fullattention.backends.numpy_matmul:backend")
    assert backend is not load("numpy-matmul")
    assert pickle.loads(pickle.dumps(backend)) is copy.deepcopy(backend) is backend


def test_a_backend_is_built_once_however_its_device_is_named() -> None:
    class Named:
        def __str__(self) -> str:
            return "cpu"

    assert load("numpy-matmul") is load("numpy-matmul", "cpu") is load("numpy-matmul", Named())
