"""Each check of the contract on each backend, as pytest runs it.

`pytest -p fullattention.pytest_plugin --pyargs fullattention.conformance --backend numpy-matmul`
"""

from __future__ import annotations

import functools

import pytest

from fullattention.backends import UnavailableError, names
from fullattention.conformance.catalogue import catalogue
from fullattention.conformance.check import Check
from fullattention.conformance.ledger import unobserved
from fullattention.conformance.subject import Subject, load_subject
from fullattention.conformance.trial import run_check
from fullattention.records import Result


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every check for every backend; a backend that cannot run here is one test that says why."""
    given = metafunc.config.getoption
    specs = given("backend")
    if not specs:
        raise pytest.UsageError("--backend is missing: a name, module:object, path.py or `all`")
    specs = names() if specs == ["all"] else specs
    found = {spec: _load(spec, given("device")) for spec in specs}
    if metafunc.function is test_backend_runs_here:
        metafunc.parametrize("subject", found.values(), ids=found.keys())
        return
    subjects = {spec: one for spec, one in found.items() if isinstance(one, Subject)}
    if metafunc.function is test_declared_deviations_are_observed:
        metafunc.parametrize("subject", subjects.values(), ids=subjects.keys())
        return
    dtypes = tuple(given("dtype"))
    trials = {
        f"{spec}-{check.id}": (subject, check)
        for spec, subject in subjects.items()
        for check in catalogue(dtypes or subject.dtypes, given("level"))
    }
    metafunc.parametrize(("subject", "check"), trials.values(), ids=trials.keys())


@functools.cache
def _load(spec: str, device: str) -> Subject | UnavailableError:
    try:
        return load_subject(spec, device)
    except UnavailableError as error:
        return error
    except (LookupError, TypeError, ValueError) as error:
        raise pytest.UsageError(error.args[0]) from error


def test_backend_runs_here(subject: Subject | UnavailableError) -> None:
    """The backend was found and loaded; one that cannot run here is skipped with its reason."""
    if isinstance(subject, UnavailableError):
        pytest.skip(subject.reason)


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
