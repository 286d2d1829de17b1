"""A service that calls the fake provider, behind a proxy that counts its requests."""

import json
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio

from tests.support.agent_clients.processes import CountingProxy
from tests.support.fake_provider.client import FakeProvider
from tests.support.service import ServiceProcess, model_settings


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    module_database_url: str, running_provider: FakeProvider
) -> AsyncIterator[ServiceProcess]:
    claude = {"provider": "anthropic", "base_url": running_provider.url, "model": "fake-claude"}
    settings = {
        **model_settings(running_provider.openai_url),
        "MODELS_NAMED": json.dumps({"claude": {**claude, "api_key": "sk-x"}}),
    }
    async with ServiceProcess(module_database_url, settings=settings) as running:
        yield running


@pytest.fixture
async def proxy(service: ServiceProcess) -> AsyncIterator[CountingProxy]:
    at = urlsplit(service.url)
    async with CountingProxy((str(at.hostname), at.port or 0)) as opened:
        yield opened


@pytest.fixture
async def http(proxy: CountingProxy, provider: FakeProvider) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=proxy.url, trust_env=False, timeout=150) as opened:
        yield opened
