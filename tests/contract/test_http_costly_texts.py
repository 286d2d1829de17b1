"""Texts that a caller chooses are redacted in bounded time."""

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from app.settings.models import ModelsSettings, SmallModelSettings
from tests.support.fake_provider.client import FakeProvider
from tests.support.tenants import Tenants, open_tenants

pytestmark = pytest.mark.asyncio(loop_scope="module")

ITEMS = 5


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tenants(
    module_database_url: str, running_provider: FakeProvider
) -> AsyncIterator[Tenants]:
    """A service that executes runs on a fake model."""
    small = SmallModelSettings(
        provider="openai", base_url=running_provider.openai_url, model="fake-small"
    )
    models = ModelsSettings(small=small)
    async with open_tenants(module_database_url, executes=True, models=models) as tenants:
        yield tenants


@pytest.mark.parametrize(
    "fragment", ["004 4 ", "(555) 00", "AB12 AB12 ", "4111 4111 ", "00 44 (0) 1 ", "DE89 37 "]
)
async def test_a_prompt_of_near_misses_is_redacted_in_bounded_time(
    tenants: Tenants, fragment: str
) -> None:
    """Beginnings of telephone, account and card numbers in every prompt of a map."""
    text = (fragment * 20_000)[:19_000]
    step = {"type": "llm", "data": {"prompt": text + "${default}"}}
    graph = {"steps": [{"id": "m", "type": "map", "data": {"step": step}}], "edges": []}
    body = {"kind": "graph", "graph": graph, "inputs": {"default": list(range(ITEMS))}}
    started = time.process_time()

    run = (await tenants.ask("a", "POST", "/runs", body, prefer="wait=30")).json()

    assert run["status"] == "completed", run
    assert (time.process_time() - started) / ITEMS < 0.3
