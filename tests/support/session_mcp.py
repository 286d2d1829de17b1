"""An MCP server over HTTP that keeps sessions, forgets them, and breaks connections on demand.

It is written without an SDK, because each SDK refuses an unknown session in only one way.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

from caseworker.tools.mcp.servers import McpServers
from caseworker.tools.ports import ToolResult
from tests.support.mcp_servers import CONTEXT, config

Refusal = tuple[int, str, str]
"""Status, media type and body of a refusal."""

NOT_FOUND: Refusal = (
    404,
    "application/json",
    '{"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "Session not found"}}',
)
_INFO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "sessions", "version": "1"},
}
_ANY = {"type": "object"}
_TOOLS = [
    {"name": "read", "inputSchema": _ANY, "annotations": {"readOnlyHint": True}},
    {"name": "put", "inputSchema": _ANY, "annotations": {"idempotentHint": True}},
    {"name": "write", "inputSchema": _ANY},
    {"name": "hold", "inputSchema": _ANY},
    {"name": "silent", "inputSchema": _ANY},
]


class SessionServer:
    """The server; ``break_next`` ends the connection of the next call in a given way."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.refusal: Refusal = NOT_FOUND
        self.refuse_calls: Refusal | None = None
        """How every call is refused, whatever its session."""
        self.forgets_at_call = False
        """Whether the server forgets the session of a call that it refuses."""
        self.breaks_lists = False
        """Whether the server closes the connection of each request for its tools."""
        self.initialized = 0
        self.calls: list[str] = []
        """Names of the executed tools."""
        self.messages: list[tuple[str, dict[str, Any]]] = []
        """Session and content of each message, in order."""
        self.break_next: str | None = None
        self.release = asyncio.Event()
        """Set to answer the calls of ``hold``."""
        self.changed = asyncio.Event()
        self.result: Callable[[str], dict[str, Any]] = text_result
        self.port = 0
        self._listening: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen on the port of before, if any; sessions of before are unknown."""
        self.sessions.clear()
        self._listening = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, reuse_address=True
        )
        self.port = self._listening.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Close the port and all connections."""
        assert self._listening is not None
        self._listening.close()
        for writer in self._writers:
            writer.transport.abort()

    async def until(self, is_true: Callable[[], object]) -> None:
        """Wait until a message makes ``is_true()`` true."""
        async with asyncio.timeout(60):
            while not is_true():
                self.changed.clear()
                await self.changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
                length = head.partition("content-length:")[2].partition("\r\n")[0]
                session = head.partition("mcp-session-id:")[2].partition("\r\n")[0].strip()
                body = await reader.readexactly(int(length or 0))
                message = json.loads(body) if body else {}
                self.messages.append((session, message))
                self.changed.set()
                await self._answer(message, session, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(
        self, message: dict[str, Any], session: str, writer: asyncio.StreamWriter
    ) -> None:
        method, number = message.get("method"), message.get("id")
        if method is None:
            _send(writer, (405, "text/plain", ""))
        elif method == "initialize":
            self.initialized += 1
            opened = uuid4().hex
            self.sessions.add(opened)
            _send(writer, _reply(number, _INFO), session=opened)
        elif method == "server/discover":
            error = {"code": -32601, "message": "Method not found"}
            body = json.dumps({"jsonrpc": "2.0", "id": number, "error": error})
            _send(writer, (200, "application/json", body))
        elif session not in self.sessions:
            _send(writer, self.refusal)
        elif number is None:
            _send(writer, (202, "text/plain", ""))
        elif method == "tools/list" and self.breaks_lists:
            writer.transport.abort()
        elif method == "tools/list":
            _send(writer, _reply(number, {"tools": _TOOLS}))
        elif self.refuse_calls is not None:
            _send(writer, self.refuse_calls)
            if self.forgets_at_call:
                self.sessions.discard(session)
        else:
            self.calls.append(message["params"]["name"])
            await self._call(message, writer)

    async def _call(self, message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        name, number = message["params"]["name"], message["id"]
        how, self.break_next = self.break_next, None
        reply = _reply(number, self.result(name))
        match how:
            case "closed":
                writer.transport.abort()
            case "cut":
                status, kind, body = reply
                _send(writer, (status, kind, body), missing=20)
                writer.close()
            case "event stream":
                head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: wait\n\n"
                writer.write(head.encode())
                writer.close()
            case "bad gateway":
                _send(writer, (502, "text/html", "<h1>502 Bad Gateway</h1>"))
            case "gateway timeout":
                _send(writer, (504, "text/html", "<h1>504 Gateway Timeout</h1>"))
            case "unavailable":
                _send(writer, (503, "text/plain", "upstream connect error"))
            case _:
                if name == "silent":
                    return
                if name == "hold":
                    with suppress(OSError):
                        await self.release.wait()
                _send(writer, reply)


def text_result(name: str) -> dict[str, Any]:
    """Return a result with one text."""
    return {"content": [{"type": "text", "text": f"did {name}"}]}


def _reply(number: Any, result: dict[str, Any]) -> Refusal:
    body = json.dumps({"jsonrpc": "2.0", "id": number, "result": result})
    return 200, "application/json", body


def _send(
    writer: asyncio.StreamWriter, reply: Refusal, *, session: str = "", missing: int = 0
) -> None:
    status, kind, body = reply
    more = f"mcp-session-id: {session}\r\n" if session else ""
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{more}content-length: {len(body)}"
    writer.write(f"{head}\r\n\r\n{body[: len(body) - missing]}".encode())


@asynccontextmanager
async def session_server(**more: Any) -> AsyncIterator[tuple[SessionServer, McpServers]]:
    """Run the server for the block; also yield the servers of a process that uses it as ``web``."""
    server = SessionServer()
    await server.start()
    servers = McpServers([config("web", url=f"http://127.0.0.1:{server.port}/mcp", **more)])
    try:
        yield server, servers
    finally:
        server.release.set()
        await servers.aclose()
        server.stop()
        await asyncio.sleep(0)  # connections end in the next iteration of the loop


async def call(servers: McpServers, tool: str) -> ToolResult:
    """Call a tool of the server ``web`` once."""
    found = await servers.find(f"web.{tool}")
    return await found.run({}, CONTEXT)
