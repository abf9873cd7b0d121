"""What the sessions of `noxfile.py` install; nox itself is none of the tests' libraries."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

NOXFILE = Path(__file__).parents[1] / "noxfile.py"


class FakeSession:
    """Notes what it is to install."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.installed: list[tuple[str, ...]] = []

    def install(self, *arguments: str) -> None:
        self.installed.append(arguments[2:])  # after the file of constraints


@pytest.fixture
def noxfile(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with as much of nox as its import and `install` need."""
    nox = ModuleType("nox")
    project = SimpleNamespace(
        load_toml=lambda path: {},
        dependency_groups=lambda pyproject, *groups: [f"of {group}" for group in groups],
    )
    nox.__dict__.update(
        Session=FakeSession, session=lambda run: run, options=SimpleNamespace(), project=project
    )
    monkeypatch.setitem(sys.modules, "nox", nox)
    spec = importlib.util.spec_from_file_location("noxfile", NOXFILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_session_installs_each_extra_and_group_once(noxfile: ModuleType) -> None:
    session = FakeSession("ci")
    noxfile.install(session, "torch", "suite", groups=("test",))
    noxfile.install(session, "suite", groups=("test",))
    assert session.installed == [("-e", ".[torch,suite]", "of test")]


def test_an_extra_is_no_group_of_the_same_name(noxfile: ModuleType) -> None:
    session = FakeSession("ci")
    noxfile.install(session, "triton")
    noxfile.install(session, groups=("triton",))
    assert session.installed == [("-e", ".[triton]"), ("of triton",)]
