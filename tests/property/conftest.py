"""Random executions fail by the thousand, so their log events are dropped without rendering."""

from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
import structlog


def _drop(*_: Any) -> NoReturn:
    raise structlog.DropEvent


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    """Drop log events, whatever logging an earlier test has configured."""
    processors = structlog.get_config()["processors"]
    configured = list(processors)
    processors[:] = [_drop]
    yield
    processors[:] = configured
