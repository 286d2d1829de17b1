"""The implementations that the contract suites run against."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text

from caseworker.models.ports import ModelProvider
from caseworker.platform.postgres.engines import transaction
from caseworker.runs.execute.postgres.runs import StoreLimits
from caseworker.runs.recover.postgres import take_lost
from tests.support.configured_cases import Configured
from tests.support.fake_provider.client import FakeProvider
from tests.support.model_line import FLAVOURS, Flavour, Line
from tests.support.ports import NO_LIMITS, Open, Ports, in_memory
from tests.support.stores import (
    open_stores,
)
from tests.support.tenants import Tenants, open_tenants


@pytest.fixture(params=["memory", "postgres"])
def opened(request: pytest.FixtureRequest) -> Open:
    """Return a function that opens an empty store."""
    if request.param == "memory":
        return in_memory
    url = request.getfixturevalue("database_url")

    @asynccontextmanager
    async def on_postgres(limits: StoreLimits = NO_LIMITS) -> AsyncIterator[Ports]:
        async with open_stores(url, limits) as stores:

            async def lose() -> None:
                async with transaction(stores.engines.work) as connection:
                    await take_lost(connection, (), stale_seconds=0, max_attempts=1)
                    await connection.execute(text("UPDATE runs SET queued_at = now()"))

            yield Ports(stores.runs, stores.journal, stores.workers, lose)

    return on_postgres


@pytest.fixture
async def ports(opened: Open) -> AsyncIterator[Ports]:
    """Open an empty store with high limits."""
    async with opened() as ports:
        yield ports


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running_provider() -> AsyncIterator[FakeProvider]:
    """Run the fake model provider as a separate process."""
    async with FakeProvider() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def configured(
    running_provider: FakeProvider, module_database_url: str, tmp_path: Path
) -> Configured:
    """Run cases with settings of the test; the provider starts without requests."""
    await running_provider.reset()
    return Configured(running_provider, module_database_url, tmp_path)


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeProvider]:
    """Share one fake provider between the tests of a module; each test uses its own markers."""
    provider = asyncio.run(FakeProvider().start())
    yield provider
    provider.stop()


@pytest.fixture(params=FLAVOURS, ids=lambda flavour: flavour.name)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Return each protocol in turn."""
    chosen: Flavour = request.param
    return chosen


@pytest.fixture
async def provider(fake: FakeProvider, flavour: Flavour) -> AsyncIterator[ModelProvider]:
    """Yield the model provider under test and close it afterwards."""
    built = flavour.build(fake)
    yield built
    await built.aclose()


@pytest.fixture
def line(fake: FakeProvider, provider: ModelProvider, flavour: Flavour) -> Line:
    """Return a new conversation."""
    return Line(fake, provider, flavour)


@pytest.fixture(scope="module")
def sections() -> Mapping[str, Any]:
    """Return sections of the settings of ``tenants``; a module may replace this fixture."""
    return {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tenants(module_database_url: str, sections: Mapping[str, Any]) -> AsyncIterator[Tenants]:
    """Run a service that executes runs."""
    async with open_tenants(module_database_url, executes=True, **sections) as tenants:
        yield tenants
