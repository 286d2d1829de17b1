"""Reasons to fail in CI although every test passed."""

import re
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from tests.support.summary import FAST, Summary, known_ids

PROVEN = [(marker, each) for marker in ("req", "guarantee") for each in known_ids(marker)]


def config(keyword: str = "") -> Any:
    """Return the configuration of a run of all fast tests, or of a selection by keyword."""
    source = pytest.Config.ArgsSource
    return SimpleNamespace(
        ArgsSource=source,
        args_source=source.TESTPATHS,
        option=SimpleNamespace(keyword=keyword, markexpr=FAST),
        getoption=lambda name, default=None: default,
    )


def report(
    outcome: Literal["passed", "skipped"], *, proven: list[tuple[str, str]], why: str = ""
) -> pytest.TestReport:
    """Return the report of a test."""
    reason: Any = ("test_a.py", 1, f"Skipped: {why}") if why else None
    return pytest.TestReport(
        "test_a.py::test_b",
        ("test_a.py", 1, "test_b"),
        {},
        outcome,
        reason,
        "call",
        (),
        0,
        0,
        0,
        proven,
    )


def status_after(monkeypatch: pytest.MonkeyPatch, *reports: pytest.TestReport) -> int:
    """Return the exit status in CI of a run with these reports."""
    monkeypatch.setenv("CI", "1")
    summary = Summary()
    for each in reports:
        summary.pytest_runtest_logreport(each)
    session: Any = SimpleNamespace(config=config(), exitstatus=0)
    summary.pytest_sessionfinish(session)
    return int(session.exitstatus)


def test_a_run_that_proves_everything_passes_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """No requirement and no guarantee is missing, and no test was skipped."""
    assert status_after(monkeypatch, report("passed", proven=[*PROVEN])) == 0


def test_a_skip_fails_in_ci_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason for the skip is not on the allow-list."""
    skipped = report("skipped", proven=[], why="no browser is installed")
    summary = Summary()
    summary.pytest_runtest_logreport(skipped)

    assert status_after(monkeypatch, report("passed", proven=[*PROVEN]), skipped) == 1
    assert "no browser is installed" in next(iter(summary.complaints(config())))


def test_a_requirement_without_a_passing_test_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """A requirement whose only test is skipped fails in CI."""
    missing = report("skipped", proven=PROVEN[:1], why="it is on the list")
    monkeypatch.setattr("tests.support.summary.ALLOWED_SKIPS", (re.compile(".*"),))

    assert status_after(monkeypatch, report("passed", proven=PROVEN[1:]), missing) == 1


def test_a_selection_of_tests_may_leave_requirements_out() -> None:
    """The tables are not checked if -k selects tests."""
    assert list(Summary().complaints(config(keyword="budget"))) == []
    assert len(list(Summary().complaints(config()))) == 2
