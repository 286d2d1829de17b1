"""Tenants call an MCP server with credentials of their own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import psycopg
import pytest
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

from tests.support.external import start
from tests.support.external_tools import ENCRYPTION_KEY, tools_of
from tests.support.service import ServiceProcess
from tests.support.tenants import OPERATOR_KEY

TENANTS = ("one", "two", "three")


async def who(context: Any, _: Any) -> CallToolResult:
    """Return the credentials with which the server is called."""
    sent = context.request.headers.get("authorization", "")  # masked, unless written backwards
    return CallToolResult(
        content=[TextContent(text="called")], structured_content={"sent": sent[::-1]}
    )


async def listed(_: Any, __: Any) -> ListToolsResult:
    return ListToolsResult(tools=[Tool(name="who", input_schema={"type": "object"})])


@asynccontextmanager
async def mcp_server() -> AsyncIterator[str]:
    """Run an MCP server that shows who calls it; yields its URL."""
    server: Server[Any] = Server("who", on_list_tools=listed, on_call_tool=who)
    manager = StreamableHTTPSessionManager(server, stateless=True)
    app = StreamableHTTPASGIApp(manager)
    config = uvicorn.Config(app, port=0, lifespan="off", log_level="error")
    serving = uvicorn.Server(config)
    async with manager.run(), asyncio.TaskGroup() as group:
        group.create_task(serving.serve())
        while not serving.started:  # noqa: ASYNC110 - the library has no event
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{serving.servers[0].sockets[0].getsockname()[1]}/mcp"
        serving.should_exit = True


@asynccontextmanager
async def service_of(url: str, database_url: str, **settings: str) -> AsyncIterator[ServiceProcess]:
    servers = {
        "who": {"url": url, "headers": {"Authorization": "USUAL"}},
        "program": {"command": "true"},
    }
    usual = {
        "TOOLS_MCP_SERVERS": json.dumps(servers),
        "USUAL": "usual",
        "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY,
    }
    async with ServiceProcess(database_url, settings={**usual, **settings}) as running:
        yield running


@asynccontextmanager
async def clients(service: ServiceProcess) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """Yield a client with an admin key of each tenant."""
    operator = {"Authorization": f"Bearer {OPERATOR_KEY}"}
    opened = {}
    async with (
        service.http() as http,
        AsyncExitStack() as stack,
    ):
        for tenant in TENANTS:
            body = {"name": "robot", "scopes": ["admin"], "tenant": tenant}
            key = (await http.post("/keys", json=body, headers=operator)).json()["key"]
            headers = {"Authorization": f"Bearer {key}"}
            client = httpx.AsyncClient(
                base_url=service.url, headers=headers, trust_env=False, timeout=150
            )
            opened[tenant] = await stack.enter_async_context(client)
        yield opened


async def credentials_sent(http: httpx.AsyncClient) -> Any:
    """Return the credentials with which a run of a tenant calls the server."""
    agent = await start(http, tools=[{"mcp": "who"}])
    async with tools_of(agent) as client:
        result = await client.call_tool("who_who", {})
    return result.structured_content["structured"]["sent"][::-1]


async def put(http: httpx.AsyncClient, value: str, server: str = "who") -> httpx.Response:
    body = {"headers": {"authorization": value}}
    return await http.put(f"/mcp-credentials/{server}", json=body)


async def test_each_tenant_calls_a_server_with_its_own_credentials(database_url: str) -> None:
    """A tenant without credentials uses the configured ones, also after they were deleted."""
    async with (
        mcp_server() as url,
        service_of(url, database_url, SECRETS_ENCRYPTION_KEY=ENCRYPTION_KEY) as service,
        clients(service) as https,
    ):
        stored = [await put(https[tenant], f"secret-of-{tenant}") for tenant in ("one", "two")]
        sent = {tenant: await credentials_sent(https[tenant]) for tenant in TENANTS}
        await put(https["one"], "another-secret")
        changed = await credentials_sent(https["one"])
        shown = [(await https[each].get("/mcp-credentials")).json() for each in TENANTS]
        with psycopg.connect(database_url) as connection:
            rows = connection.execute("SELECT * FROM mcp_credentials").fetchall()
        await https["one"].delete("/mcp-credentials/who")
        deleted = await credentials_sent(https["one"])
        logged = service.child.stderr

    assert [each.status_code for each in stored] == [204, 204]
    assert sent == {"one": "secret-of-one", "two": "secret-of-two", "three": "usual"}
    assert changed == "another-secret"
    assert deleted == "usual"
    names = [[each["server"] for each in one["credentials"]] for one in shown]
    assert names == [["who"], ["who"], []]
    assert len(rows) == 2
    assert "secret" not in json.dumps([shown, rows], default=str)
    assert "secret-of" not in logged


async def test_credentials_are_refused_without_a_key_and_unusable_with_another_one(
    database_url: str,
) -> None:
    """A tenant whose credentials cannot be decrypted does not use the configured ones."""
    async with mcp_server() as url:
        async with (
            service_of(url, database_url, SECRETS_ENCRYPTION_KEY=ENCRYPTION_KEY) as service,
            clients(service) as https,
        ):
            await put(https["one"], "secret")
        async with service_of(url, database_url) as service, clients(service) as https:
            refused = await put(https["one"], "secret")
            agent = await start(https["one"], tools=[{"mcp": "who"}])
            async with tools_of(agent) as client:
                with pytest.raises(Exception, match="cannot be decrypted"):
                    await client.list_tools()
            usual = await credentials_sent(https["two"])

    assert refused.status_code == 409
    assert refused.json()["type"] == "urn:caseworker:problem:encryption-key-missing"
    assert usual == "usual"


@pytest.mark.parametrize(
    ("server", "headers"),
    [
        ("unknown", {"authorization": "x"}),
        ("program", {"authorization": "x"}),
        ("who", {"Host": "other"}),
        ("who", {"content-type": "x"}),
        ("who", {"x": "a\r\nb: c"}),
        ("who", {}),
    ],
)
async def test_invalid_credentials_are_refused(
    refusing: dict[str, httpx.AsyncClient], server: str, headers: dict[str, str]
) -> None:
    """The server must have a URL, and the protocol sets some headers itself."""
    refused = await refusing["one"].put(f"/mcp-credentials/{server}", json={"headers": headers})

    assert refused.status_code == 422, refused.text
    assert "a\r\nb" not in refused.text


@pytest.fixture
async def refusing(database_url: str) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """Run a service with an encryption key."""
    async with (
        service_of(
            "http://127.0.0.1:9/mcp", database_url, SECRETS_ENCRYPTION_KEY=ENCRYPTION_KEY
        ) as service,
        clients(service) as https,
    ):
        yield https
