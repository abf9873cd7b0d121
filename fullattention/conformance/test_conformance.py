"""Each check of the contract on each backend, as pytest runs it.

`pytest -p fullattention.pytest_plugin --pyargs fullattention.conformance --backend numpy-matmul`
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

from fullattention.backends import UnavailableError, names
from fullattention.conformance.catalogue import catalogue
from fullattention.conformance.check import Check
from fullattention.conformance.ledger import EXECUTED, unobserved
from fullattention.conformance.subject import Subject, load_subject
from fullattention.conformance.trial import run_check
from fullattention.records import Result


@dataclass(frozen=True)
class Asked:
    """A backend that is to be checked."""

    subject: Subject | UnavailableError | LookupError | TypeError
    """Itself, or why there is none."""
    by_name: bool
    """Whether it was named, and is not just one of `all`."""
    checks: tuple[Check, ...] = ()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every check for every backend, and a test that says of each whether it can be tried."""
    given = metafunc.config.getoption
    specs = given("backend")
    if not specs:
        raise pytest.UsageError("--backend is missing: a name, module:object, path.py or `all`")
    by_name = specs != ["all"]
    asked = {spec: _ask(spec, given, by_name=by_name) for spec in (specs if by_name else names())}
    loaded = {spec: one for spec, one in asked.items() if isinstance(one.subject, Subject)}
    if not loaded and not by_name:
        raise pytest.UsageError(f"none of {len(asked)} backends runs on {given('device')!r}")
    if metafunc.function is test_backend_runs_here:
        metafunc.parametrize("asked", asked.values(), ids=asked.keys())
    elif metafunc.function is test_declared_deviations_are_observed:
        subjects = [one.subject for one in loaded.values()]
        metafunc.parametrize("subject", subjects, ids=loaded.keys())
    else:
        trials = _check_by_check(loaded)
        metafunc.parametrize(("subject", "check"), trials.values(), ids=trials.keys())


def _check_by_check(loaded: Mapping[str, Asked]) -> dict[str, tuple[Any, Check]]:
    """All trials by their ids: backends take turns, so that the oracle is asked once a case."""
    trials = [(spec, one.subject, check) for spec, one in loaded.items() for check in one.checks]
    places = {name: n for n, name in enumerate(dict.fromkeys(check.id for _, _, check in trials))}
    trials.sort(key=lambda trial: places[trial[2].id])
    return {f"{spec}-{check.id}": (subject, check) for spec, subject, check in trials}


def _ask(spec: str, given: Callable[[str], Any], *, by_name: bool) -> Asked:
    """A backend with its checks: of the dtypes asked for or, as one of all, of those it takes.

    Raises:
        UsageError: it is named, and there is no such backend.
    """
    subject = _load(spec, given("device"))
    if isinstance(subject, LookupError | TypeError) and by_name:
        raise pytest.UsageError(subject.args[0]) from subject
    if not isinstance(subject, Subject):
        return Asked(subject, by_name)
    dtypes = tuple(given("dtype")) or subject.dtypes
    if not by_name:
        dtypes = tuple(dtype for dtype in dtypes if dtype in subject.precision)
    return Asked(subject, by_name, catalogue(dtypes, given("level")) if dtypes else ())


@contextlib.contextmanager
def _staying() -> Iterator[None]:
    """Let `os._exit` raise: it would end pytest without a report, and by 0 as if all were well."""
    leave, here = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != here:  # a child that is forked ends so
            leave(status)
        raise SystemExit(f"os._exit({status}) would end the process")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "_exit", refuse)
        yield


@pytest.fixture(autouse=True)
def staying() -> Iterator[None]:
    """No backend ends pytest unseen."""
    with _staying():
        yield


@functools.cache
def _load(spec: str, device: str) -> Subject | UnavailableError | LookupError | TypeError:
    try:
        with _staying():
            return load_subject(spec, device)
    except (UnavailableError, LookupError, TypeError) as error:
        return error
    except ValueError as error:  # the device
        raise pytest.UsageError(error.args[0]) from error


def test_backend_runs_here(asked: Asked) -> None:
    """The backend is there, and some check can be tried on it.

    One of `all` is skipped with its reason where its library is missing, or takes no such dtype.
    """
    subject = asked.subject
    if isinstance(subject, UnavailableError) and not asked.by_name:
        pytest.skip(subject.reason)
    if not isinstance(subject, Subject):
        pytest.fail(str(subject), pytrace=False)
    if not asked.checks:
        pytest.skip(f"it takes {', '.join(subject.dtypes)}")
    if not any(run_check(subject, check).status in EXECUTED for check in asked.checks):
        pytest.fail("no check could be tried on it", pytrace=False)


def test_requirement(subject: Subject, check: Check) -> None:
    """The backend meets the requirement in this case."""
    _report(run_check(subject, check))


def test_declared_deviations_are_observed(subject: Subject) -> None:
    """Each deviation that the backend declares still shows in at least one check."""
    results = [
        run_check(subject, check)
        for check in catalogue(subject.dtypes, "standard")
        if check.requirement in subject.deviates
    ]
    for result in unobserved(subject, results):
        _report(result)


def _report(result: Result) -> None:
    match result.status:
        case "failed":
            pytest.fail(result.detail, pytrace=False)
        case "deviates":
            pytest.xfail(result.detail)
        case "unsupported" | "not run":
            pytest.skip(result.detail)
