"""GET /tools shows which calls need an approval, whatever requires it."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.support.api import Api, client_of
from tests.support.limits import SETTINGS

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASKING = ("calculator", "respond")


@pytest_asyncio.fixture(loop_scope="module")
async def client(module_database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a service that requires approvals for two tools."""
    tools = SETTINGS.tools.model_copy(update={"requires_approval": ASKING})
    api = Api(module_database_url, SETTINGS.model_copy(update={"tools": tools}))
    async with api.opened(), client_of(api.app()) as client:
        yield client


async def test_a_tool_shows_that_the_configuration_requires_approvals(
    client: httpx.AsyncClient,
) -> None:
    """Its own specification requires none."""
    tools = (await client.get("/tools")).json()["tools"]

    assert {one["name"] for one in tools if one["requires_approval"]} == {*ASKING}
    assert len(tools) > len(ASKING)
