"""Stores on a fresh database for tests of workers without heartbeats."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.queue.stale import StaleRuns
from tests.support.stores import open_oracle, open_stores


@pytest.fixture
async def stale_runs(database_url: str) -> AsyncIterator[StaleRuns]:
    async with open_stores(database_url) as stores, open_oracle(database_url) as oracle:
        yield StaleRuns(stores, oracle)
