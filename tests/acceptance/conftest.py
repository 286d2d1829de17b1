"""A fake provider and a service that uses it, shared by the tests of a module."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.support.event_log import require_sound_events
from tests.support.fake_provider.client import FakeProvider
from tests.support.json_client import JsonClient
from tests.support.noting_tool import noting_settings
from tests.support.service import SETTLED, ServiceProcess, model_settings


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running_provider() -> AsyncIterator[FakeProvider]:
    """Run the fake model provider as a separate process."""
    async with FakeProvider() as running:
        yield running


@pytest.fixture
async def provider(running_provider: FakeProvider) -> FakeProvider:
    """Reset the provider; its arrival log is the oracle."""
    await running_provider.reset()
    return running_provider


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    """Return the settings of the service; a module may replace this fixture."""
    return model_settings(running_provider.openai_url) | SETTLED


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    module_database_url: str, service_settings: dict[str, str]
) -> AsyncIterator[ServiceProcess]:
    """Run one service process that uses the fake provider."""
    async with ServiceProcess(module_database_url, settings=service_settings) as running:
        yield running


@pytest.fixture
async def client(service: ServiceProcess) -> AsyncIterator[JsonClient]:
    """Return a client of the service."""
    async with service.client() as opened:
        yield opened


@pytest.fixture
async def http(service: ServiceProcess, provider: FakeProvider) -> AsyncIterator[httpx.AsyncClient]:
    """Return a plain HTTP client of the service; the provider has no record yet."""
    async with service.http() as opened:
        yield opened


@pytest.fixture
def sound_events(database_url: str) -> Iterator[None]:
    """Require a valid log of events of every run after the test."""
    yield
    require_sound_events(database_url)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Return the file to which the tool ``note`` writes."""
    return tmp_path / "notes"


@pytest.fixture
def settings(notes: Path) -> dict[str, str]:
    """Return the settings of a service with the tool ``note``; a module may replace this."""
    return noting_settings(notes)
