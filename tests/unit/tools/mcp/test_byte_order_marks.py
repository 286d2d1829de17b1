"""A byte order mark before a message of an MCP server is no part of the message."""

import asyncio
import json
import sys
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from caseworker.tools.mcp.servers import McpServers
from tests.support.mcp_servers import config
from tests.support.session_mcp import call

Pieces = Callable[[bytes], list[bytes]]
"""Returns the parts in which a JSON text is sent."""

EVENTS = "text/event-stream"
JSON = "application/json"
FORMS: dict[str, tuple[str, Pieces]] = {
    "JSON": (JSON, lambda text: [BOM_UTF8 + text]),
    "JSON after the mark": (JSON, lambda text: [BOM_UTF8, text]),
    "JSON, mark in bytes": (JSON, lambda text: [*(bytes([each]) for each in BOM_UTF8), text]),
    "JSON, mark in two parts": (JSON, lambda text: [BOM_UTF8[:2], BOM_UTF8[2:] + text]),
    "event": (EVENTS, lambda text: [BOM_UTF8 + b"data: " + text + b"\n\n"]),
    "event after the mark": (EVENTS, lambda text: [BOM_UTF8, b"data: " + text + b"\r\n\r\n"]),
    "event, mark in bytes": (
        EVENTS,
        lambda text: [*(bytes([each]) for each in BOM_UTF8), b"data: " + text + b"\n\n"],
    ),
    "named event": (
        EVENTS,
        lambda text: [BOM_UTF8 + b"event: message\ndata: " + text + b"\n\n"],
    ),
}
PLAIN: dict[str, tuple[str, Pieces]] = {
    "JSON in bytes": (JSON, lambda text: [bytes([each]) for each in text]),
    "event in two parts": (EVENTS, lambda text: [b"da", b"ta: " + text + b"\n\n"]),
}
_INFO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "marks", "version": "1"},
}
_RESULTS = {
    "initialize": _INFO,
    "tools/list": {"tools": [{"name": "read", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "\ufeffdone"}]},
}
_PROGRAM = """
import json, sys
results, before, each = json.loads(sys.argv[1]), *map(bytes.fromhex, sys.argv[2:])
out = sys.stdout.buffer
for byte in before:
    out.write(bytes([byte]))
    out.flush()
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        unknown = {"error": {"code": -32601, "message": "unknown"}}
        result = results.get(message["method"])
        body = {"result": result} if result else unknown
        text = json.dumps({"jsonrpc": "2.0", "id": message["id"], **body})
        out.write(each + text.encode() + b"\\n")
        out.flush()
"""


@asynccontextmanager
async def http_server(
    media_type: str, pieces: Pieces, answer: Mapping[str, Any] | None = None
) -> AsyncIterator[McpServers]:
    """Run a server that sends each message as ``pieces`` returns it, each in its own chunk.

    ``answer`` is the result of each call of its tool.
    """
    results = _RESULTS if answer is None else {**_RESULTS, "tools/call": dict(answer)}
    writers = list[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
                length = head.partition("content-length:")[2].partition("\r\n")[0]
                body = await reader.readexactly(int(length or 0))
                await reply(json.loads(body) if body else {}, writer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def reply(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        number = message.get("id")
        if number is None:
            status = 202 if message else 405
            writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n".encode())
            return
        error = {"error": {"code": -32601, "message": "unknown"}}
        result = results.get(message["method"])
        body = error if result is None else {"result": result}
        text = json.dumps({"jsonrpc": "2.0", "id": number, **body}).encode()
        head = f"HTTP/1.1 200 X\r\ncontent-type: {media_type}\r\ntransfer-encoding: chunked"
        writer.write(f"{head}\r\n\r\n".encode())
        for piece in (*pieces(text), b""):
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    servers = McpServers([config("web", url=f"http://127.0.0.1:{port}/mcp")])
    try:
        yield servers
    finally:
        await servers.aclose()
        listening.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # connections end in the next iteration of the loop


@pytest.mark.parametrize(
    ("media_type", "pieces"), [*FORMS.values(), *PLAIN.values()], ids=[*FORMS, *PLAIN]
)
async def test_a_body_may_begin_with_a_byte_order_mark(media_type: str, pieces: Pieces) -> None:
    """The tools are listed and called; a mark inside a text is kept."""
    async with http_server(media_type, pieces) as servers:
        assert await call(servers, "read") == {"text": "\ufeffdone"}


MARK = BOM_UTF8.hex()


@pytest.mark.parametrize(
    ("before", "each"),
    [
        (MARK, ""),
        (MARK + b"\n".hex(), ""),
        (MARK + b"\r\n".hex(), ""),
        ("", MARK),
        (b"Started.\n".hex(), MARK),
        (MARK + b" ".hex(), ""),
    ],
)
async def test_a_program_may_write_byte_order_marks(before: str, each: str) -> None:
    """A mark is dropped at the beginning of the output and of each line."""
    command = (sys.executable, "-c", _PROGRAM, json.dumps(_RESULTS), before, each)
    servers = McpServers([config("web", command=command, start_timeout_seconds=20.0)])
    try:
        assert await call(servers, "read") == {"text": "\ufeffdone"}
    finally:
        await servers.aclose()
