"""An MCP server over HTTP that sends its messages in chunks."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from caseworker.tools.mcp.servers import McpServers
from tests.support.mcp_servers import config

Pieces = Callable[[bytes], list[bytes]]
"""Returns the parts in which a JSON text is sent."""

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
