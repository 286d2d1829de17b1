"""The implementations that the contract suites run against."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psycopg
import pytest
import pytest_asyncio
from psycopg import Connection

from app.adapters.postgres.accept_and_cancel import StoreLimits
from app.adapters.postgres.engines import transaction
from app.adapters.postgres.workers import take_lost
from tests.support.api import Api, client_of
from tests.support.configured_cases import Configured
from tests.support.database import TestServer, delete_rows
from tests.support.fake_provider.client import FakeProvider
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

            async def lose() -> None:
                async with transaction(stores.engines.work) as connection:
                    await take_lost(connection, (), stale_seconds=0, max_attempts=1)

            yield Ports(stores.runs, stores.journal, stores.workers, lose)

    return on_postgres


@pytest.fixture
async def ports(opened: Open) -> AsyncIterator[Ports]:
    """An empty store without limits that matter."""
    async with opened() as ports:
        yield ports


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_api(module_database_url: str) -> AsyncIterator[Api]:
    """A process that serves requests; the tests of a module share its connections."""
    api = Api(module_database_url)
    async with api.opened():
        yield api


@pytest.fixture
def api(open_api: Api, module_database: Connection) -> Api:
    """The process of this module, on a database without rows."""
    delete_rows(module_database)
    return open_api


@pytest_asyncio.fixture(loop_scope="module")
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """A client on the same machine, without a credential."""
    async with client_of(api.app()) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running_provider() -> AsyncIterator[FakeProvider]:
    """A model provider as a process of its own."""
    async with FakeProvider() as running:
        yield running


@pytest.fixture(scope="module")
def module_database_url(postgres: TestServer) -> Iterator[str]:
    """A migrated database for a whole module."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="module")
def module_database(module_database_url: str) -> Iterator[Connection]:
    """A connection to the database of the module, past the service."""
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection


@pytest_asyncio.fixture(loop_scope="module")
async def configured(
    running_provider: FakeProvider, module_database_url: str, tmp_path: Path
) -> Configured:
    """The means to run cases with settings of one's own, and a provider without a past."""
    await running_provider.reset()
    return Configured(running_provider, module_database_url, tmp_path)
