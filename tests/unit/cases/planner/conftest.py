"""Fixtures that ask the offline planner and execute its plans."""

import pytest

from tests.unit.cases.planner.desk import Desk


@pytest.fixture(scope="session")
def desk() -> Desk:
    """Share one desk; its tools keep no state between calls."""
    return Desk()
