"""MCP servers over HTTP that are down, break off, or answer without an end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from caseworker.tools.mcp.servers import McpServers
from caseworker.tools.ports import ToolResult
from caseworker.tools.servers import Credentials, ServerUnavailableError
from tests.support.mcp_servers import CONTEXT, config
from tests.support.session_mcp import call

INFO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "h", "version": "1"},
}
TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}}
    for name in ("echo", "large", "stream", "cut", "packed", "slow", "moved", "forgotten")
]


class HttpServer:
    """A server that implements just enough HTTP and MCP to violate both."""

    def __init__(self) -> None:
        self.cancelled: list[Any] = []
        self.headers: list[str] = []
        self.initialized = 0
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        """The heads of the requests that end a session."""
        self.writers: list[asyncio.StreamWriter] = []
        self.port = 0
        self.elsewhere = ""
        """The URL that the tool ``moved`` redirects to."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.headers.append(head.decode().lower())
                if self.headers[-1].startswith("delete"):
                    self.ended.put_nowait(self.headers[-1])
                length = self.headers[-1].partition("content-length:")[2].partition("\r\n")[0]
                body = await reader.readexactly(int(length or 0))
                await self._answer(json.loads(body) if body else {}, writer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def _answer(self, message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        method, number = message.get("method"), message.get("id")
        params = message.get("params") or {}
        if method == "initialize":
            self.initialized += 1
            _send(writer, 200, number, result=INFO)
        elif method == "tools/list":
            _send(writer, 200, number, result={"tools": TOOLS})
        elif method == "tools/call":
            await self._call(params["name"], number, writer)
        elif method is None:
            writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
        elif number is None:
            if method == "notifications/cancelled":
                self.cancelled.append(params["requestId"])
            writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
        else:
            _send(writer, 200, number, error={"code": -32601, "message": "none"})
        await writer.drain()

    async def _call(self, name: str, number: Any, writer: asyncio.StreamWriter) -> None:
        match name:
            case "echo":
                content = [{"type": "text", "text": "hello"}]
                _send(writer, 200, number, result={"content": content})
            case "large" | "stream":
                kind = b"application/json" if name == "large" else b"text/event-stream"
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\n\r\ndata: ")
                while True:
                    writer.write(b"x" * 65536)
                    await writer.drain()
            case "cut":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(b"content-length: 1000\r\n\r\n{")
                writer.close()
            case "packed":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(b"content-encoding: gzip\r\ncontent-length: 1\r\n\r\nx")
            case "slow":
                return
            case "moved":
                head = f"HTTP/1.1 307 Moved\r\nlocation: {self.elsewhere}\r\n"
                writer.write(f"{head}content-length: 0\r\n\r\n".encode())
            case _:
                writer.write(b"HTTP/1.1 404 Gone\r\ncontent-length: 0\r\n\r\n")


def _send(writer: asyncio.StreamWriter, status: int, number: Any, **members: Any) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": number, **members}).encode()
    head = f"HTTP/1.1 {status} OK\r\ncontent-type: application/json\r\n"
    session = "mcp-session-id: s\r\n" if "protocolVersion" in members.get("result", {}) else ""
    writer.write(f"{head}{session}content-length: {len(body)}\r\n\r\n".encode() + body)


@asynccontextmanager
async def running(
    credentials: Credentials | None = None, **more: Any
) -> AsyncIterator[tuple[HttpServer, McpServers]]:
    server = HttpServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{server.port}/mcp"
    servers = McpServers([config("web", url=url, **more)], credentials)
    try:
        yield server, servers
    finally:
        await servers.aclose()
        listening.close()
        for writer in server.writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # connections end in the next iteration of the loop


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ("large", "too_large"),
        ("stream", "too_large"),
        ("cut", "outcome_unknown"),
        ("packed", "outcome_unknown"),
        ("slow", "timeout"),
    ],
)
async def test_an_answer_that_cannot_be_read_costs_its_call_alone(tool: str, code: str) -> None:
    """An unreadable answer fails its call, and the session continues for other calls."""
    async with running(timeout_seconds=3.0) as (server, servers):
        other = asyncio.create_task(call(servers, "echo"))
        result = await call(servers, tool)

        assert result["code"] == code, result
        assert await other == {"text": "hello"}
        assert await call(servers, "echo") == {"text": "hello"}
        assert server.initialized == 1


async def test_a_server_that_forgets_each_session_fails_only_its_calls() -> None:
    """A call is repeated in one new session; the next call opens another one."""
    async with running() as (server, servers):
        assert (await call(servers, "forgotten"))["code"] == "server_lost"
        assert await call(servers, "echo") == {"text": "hello"}
        assert server.initialized == 3


async def test_a_server_gets_the_headers_that_are_configured() -> None:
    """Every request has the headers, and none asks for compression."""
    async with running(headers={"Authorization": "Bearer abc"}) as (server, servers):
        await call(servers, "echo")

    posts = [head for head in server.headers if head.startswith("post")]
    assert all("authorization: bearer abc" in head for head in posts)
    assert all("accept-encoding: identity" in head for head in posts)


@pytest.mark.parametrize("host", ["http://127.0.0.1:{other}", "http://localhost:{own}", "//[::1]"])
async def test_a_server_cannot_send_a_call_and_its_credentials_elsewhere(host: str) -> None:
    """Redirects to another port or host are refused; the call fails, the session continues."""
    secret = {"Authorization": "Bearer abc"}
    async with running() as (other, _), running(headers=secret) as (server, servers):
        server.elsewhere = f"{host.format(other=other.port, own=server.port)}/mcp"
        await call(servers, "echo")
        before = len(server.headers)
        result = await call(servers, "moved")

        assert result["code"] == "tool_error"
        assert "not followed" in str(result["error"])
        assert len(server.headers) == before + 1
        assert other.headers == []
        assert await call(servers, "echo") == {"text": "hello"}


async def test_a_server_that_is_not_there_says_so() -> None:
    """No process listens on the server's port."""
    servers = McpServers([config("web", url="http://127.0.0.1:9/mcp")])
    with pytest.raises(ServerUnavailableError, match="cannot be reached"):
        await servers.tools("web")
    assert (await call(servers, "echo"))["code"] == "server_lost"
    await servers.aclose()


@pytest.mark.parametrize("later", [{"authorization": "new"}, {"x-other": "old"}, {}])
async def test_a_session_ends_when_the_credentials_of_its_tenant_change(
    later: dict[str, str],
) -> None:
    """The server forgets the old credentials; the next call uses the new or the usual ones."""
    stored = {"acme": {"authorization": "old"}, "other": {"authorization": "same"}}

    async def credentials(tenant: str, _: str) -> dict[str, str]:
        return stored[tenant]

    async def calls(servers: McpServers, tenant: str) -> ToolResult:
        return await (await servers.find("web.echo", tenant)).run({}, CONTEXT)

    async with running(credentials, headers={"x-usual": "1"}) as (server, servers):
        for tenant in ("acme", "other", "acme"):
            assert await calls(servers, tenant) == {"text": "hello"}
        assert server.initialized == 2
        stored["acme"] = later
        assert await calls(servers, "acme") == {"text": "hello"}
        async with asyncio.timeout(60):
            ended = await server.ended.get()
        assert "authorization: old" in ended
        assert await calls(servers, "other") == {"text": "hello"}
        assert (server.initialized, server.ended.qsize()) == (3, 0)


async def test_the_session_of_the_tenant_that_waited_longest_ends_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant that calls again gets a new one."""
    monkeypatch.setattr("caseworker.tools.mcp.servers.MAX_TENANT_SERVERS", 2)

    async def credentials(tenant: str, _: str) -> dict[str, str]:
        return {"authorization": f"of-{tenant}"}

    async with running(credentials) as (server, servers):
        for tenant in ("first", "second", "first", "third"):
            await servers.tools("web", tenant)
        async with asyncio.timeout(60):
            ended = await server.ended.get()
        assert "authorization: of-second" in ended
        assert (server.initialized, server.ended.qsize()) == (3, 0)


async def test_a_tenant_that_calls_many_servers_closes_its_own_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the tenant with the most, the least recently used session is closed."""
    monkeypatch.setattr("caseworker.tools.mcp.servers.MAX_TENANT_SERVERS", 3)

    async def credentials(tenant: str, _: str) -> dict[str, str]:
        return {"x-key": f"of {tenant}"}

    configs = [config(name, url="http://127.0.0.1:9/mcp") for name in ("one", "two", "three")]
    servers = McpServers(configs, credentials)
    for tenant, name in [("b", "one"), ("a", "one"), ("a", "two"), ("a", "three")]:
        await servers.find(f"{name}.echo", tenant)

    assert sorted(servers._of_tenants) == [("a", "three"), ("a", "two"), ("b", "one")]
    await servers.aclose()
