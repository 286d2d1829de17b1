"""A service with prices and two tenants; a client of the first tenant."""

from collections.abc import AsyncIterator, Mapping

import httpx
import pytest
import pytest_asyncio

from tests.support.external import MAX_GATEWAY_KB
from tests.support.fake_provider.client import FakeProvider
from tests.support.service import ServiceProcess, claude_settings, model_settings
from tests.support.tenants import OPERATOR_KEY
from tests.support.usage_oracle import settings_of_prices


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    """Set prices, a small limit on bodies, and an operator's key."""
    prices = {"price_per_million_in_usd": 1, "price_per_million_out_usd": 2}
    return {
        **model_settings(running_provider.openai_url),
        **settings_of_prices("MODELS_SMALL"),
        **claude_settings(running_provider.url, **prices),
        "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY,
        "GATEWAY_MAX_BODY_KB": str(MAX_GATEWAY_KB),
        "RETRY_BASE_SECONDS": "0.02",
        "SERVER_TRUSTED_PROXIES": '["127.0.0.1"]',
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tenant_keys(service: ServiceProcess) -> dict[str, str]:
    """Return an admin key of each of two tenants."""
    operator = {"Authorization": f"Bearer {OPERATOR_KEY}"}
    keys = {}
    async with httpx.AsyncClient(base_url=service.url, trust_env=False) as http:
        for tenant in ("one", "two"):
            body = {"name": "robot", "scopes": ["admin"], "tenant": tenant}
            made = await http.post("/keys", json=body, headers=operator)
            keys[tenant] = made.raise_for_status().json()["key"]
    return keys


@pytest.fixture
async def http(
    service: ServiceProcess, tenant_keys: Mapping[str, str], provider: FakeProvider
) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the first tenant; the provider has no record yet."""
    async with service.http(tenant_keys["one"]) as opened:
        yield opened
