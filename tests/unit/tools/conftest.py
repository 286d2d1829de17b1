"""Fixtures of the tests of the tools."""

from datetime import UTC, datetime

import pytest

from caseworker.tools.ports import ToolContext
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.calendar import Calendar


@pytest.fixture(scope="session")
def calculator() -> Calculator:
    """Return the calculator, which has no state."""
    return Calculator()


@pytest.fixture(scope="session")
def calendar() -> Calendar:
    """Return the calendar, created once because loading its date parser takes time."""
    return Calendar()


@pytest.fixture
def context() -> ToolContext:
    """Return the context of a run in New York at an hour when Greenwich has the next day."""
    return ToolContext(
        run_id="run-1",
        timezone="America/New_York",
        now=datetime(2025, 1, 15, 3, 0, tzinfo=UTC),
    )
