"""One service with a story and one browser, for all tests of the viewer."""

from collections.abc import AsyncIterator

import httpx
import pytest_asyncio
from playwright.async_api import Browser

from tests.support.browser import opened_browser
from tests.support.database import TestServer
from tests.support.fake_provider.client import FakeProvider
from tests.support.service import ServiceProcess, model_settings
from tests.viewer.reader import KEY, Reader
from tests.viewer.story import tell

PATIENT = {
    "MODELS_SMALL_TIMEOUT_SECONDS": "900",
    "MODELS_BIG_TIMEOUT_SECONDS": "900",
    "BUDGET_MAX_SECONDS": "3600",
}
"""Settings that keep running runs alive while the tests look at them."""


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Open a browser."""
    async with opened_browser() as opened:
        yield opened


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def http(browser: Browser, postgres: TestServer) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a service with a key, a model provider and some runs."""
    with postgres.database() as url:
        async with FakeProvider() as provider:
            settings = model_settings(provider.openai_url) | PATIENT | {"AUTH_BOOTSTRAP_KEY": KEY}
            async with (
                ServiceProcess(url, settings=settings) as service,
                httpx.AsyncClient(
                    base_url=service.url,
                    headers={"Authorization": f"Bearer {KEY}"},
                    timeout=600,
                    trust_env=False,
                ) as client,
            ):
                await tell(client, provider)
                yield client


@pytest_asyncio.fixture(loop_scope="session")
async def reader(browser: Browser, http: httpx.AsyncClient) -> AsyncIterator[Reader]:
    """A signed-in reader; any complaint of the browser fails the test."""
    async with Reader.signed_in(browser, str(http.base_url)) as opened:
        yield opened
    assert opened.complaints == []
