"""What the tests of the verifier share."""

from datetime import UTC

import pytest

from app.nodes.case.verifier import Comparison
from app.tools.dates.reader import DateReader


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    """Compares with the real reader of dates."""
    return Comparison(DateReader(), UTC)
