"""Fixtures of the verifier tests."""

from datetime import UTC

import pytest

from caseworker_cases.agent.verifier import Comparison
from caseworker_cases.tools.dates.reader import DateReader


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    """Compare answers with the real date reader."""
    return Comparison(DateReader(), UTC)
