"""What the tests of the verifier share."""

from datetime import UTC

import pytest

from caseworker_cases.agent.verifier import Comparison
from caseworker_cases.tools.dates.reader import DateReader


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    """Compares with the real reader of dates."""
    return Comparison(DateReader(), UTC)
