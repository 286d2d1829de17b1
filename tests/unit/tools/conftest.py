"""What the tests of the tools share."""

from datetime import UTC, datetime

import pytest

from caseworker.tools.ports import ToolContext
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.calendar import Calendar


@pytest.fixture(scope="session")
def calculator() -> Calculator:
    """The calculator; it keeps nothing between calls."""
    return Calculator()


@pytest.fixture(scope="session")
def calendar() -> Calendar:
    """The calendar, made once, because warming its date parser takes time."""
    return Calendar()


@pytest.fixture
def context() -> ToolContext:
    """A run in New York, at an hour at which it is the next day in Greenwich already."""
    return ToolContext(
        run_id="run-1",
        timezone="America/New_York",
        now=datetime(2025, 1, 15, 3, 0, tzinfo=UTC),
    )
