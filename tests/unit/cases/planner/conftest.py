"""Asking the offline planner and carrying out what it plans."""

import pytest

from tests.unit.cases.planner.desk import Desk


@pytest.fixture(scope="session")
def desk() -> Desk:
    """One desk for all questions; its tools keep nothing between calls."""
    return Desk()
