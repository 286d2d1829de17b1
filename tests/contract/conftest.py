"""The implementations that the contract suites run against."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.adapters.postgres.runs import StoreLimits
from tests.support.ports import NO_LIMITS, Open, Ports, in_memory
from tests.support.stores import (
    open_stores,
)


@pytest.fixture(params=["memory", "postgres"])
def opened(request: pytest.FixtureRequest) -> Open:
    """Opens an empty store."""
    if request.param == "memory":
        return in_memory
    url = request.getfixturevalue("database_url")

    @asynccontextmanager
    async def on_postgres(limits: StoreLimits = NO_LIMITS) -> AsyncIterator[Ports]:
        async with open_stores(url, limits) as stores:
            yield Ports(stores.runs, stores.journal, stores.workers)

    return on_postgres


@pytest.fixture
async def ports(opened: Open) -> AsyncIterator[Ports]:
    """An empty store without limits that matter."""
    async with opened() as ports:
        yield ports
