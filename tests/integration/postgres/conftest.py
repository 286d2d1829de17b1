"""The stores of one process on a new database, and a direct connection."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.postgres.expiring import ExpiringRuns
from tests.support.stores import Oracle, Stores, open_oracle, open_stores


@pytest.fixture
async def stores(database_url: str) -> AsyncIterator[Stores]:
    """Open the stores of one process."""
    async with open_stores(database_url) as stores:
        yield stores


@pytest.fixture
async def oracle(database_url: str) -> AsyncIterator[Oracle]:
    """Open a separate connection for assertions."""
    async with open_oracle(database_url) as oracle:
        yield oracle


@pytest.fixture
def expiring(stores: Stores, oracle: Oracle) -> ExpiringRuns:
    """Return the finished runs of these stores."""
    return ExpiringRuns(stores, oracle)


@pytest.fixture
async def pair(database_url: str) -> AsyncIterator[tuple[Stores, Stores]]:
    """Open the stores of two processes on one database."""
    async with open_stores(database_url) as one, open_stores(database_url) as other:
        yield one, other
