"""A service that calls the fake provider, behind a proxy that counts its requests."""

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.agent_clients.processes import CountingProxy
from tests.support.fake_provider.client import FakeProvider
from tests.support.service import ServiceProcess, claude_settings, http_client, model_settings


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    return {
        **model_settings(running_provider.openai_url),
        **claude_settings(running_provider.url),
    }


@pytest.fixture
async def proxy(service: ServiceProcess) -> AsyncIterator[CountingProxy]:
    at = urlsplit(service.url)
    async with CountingProxy((str(at.hostname), at.port or 0)) as opened:
        yield opened


@pytest.fixture
async def http(proxy: CountingProxy, provider: FakeProvider) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(proxy.url) as opened:
        yield opened
