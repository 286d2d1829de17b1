"""A real HTTP server on this machine, and HTTP tools as the configuration makes them."""

import asyncio
from datetime import UTC, datetime
from email import message_from_bytes
from typing import Any

from caseworker.main.plugins import Toolbox
from caseworker.settings.tools import ToolSettings
from caseworker.tools.ports import Tool, ToolContext

CONTEXT = ToolContext(
    run_id="r", timezone="UTC", now=datetime(2025, 1, 1, tzinfo=UTC), call_key="the-call"
)


class Api:
    """A server that notes requests as they arrive, and answers with prepared bytes."""

    def __init__(self) -> None:
        self.answer: bytes | None = reply(b"{}")
        """None gives no answer."""
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.arrived = asyncio.Event()
        self.closed = asyncio.Event()
        self.url = ""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append((head[0], headers, body))
        self.arrived.set()
        if self.answer is not None:
            writer.write(self.answer)
        else:
            await reader.read()
            self.closed.set()
        await writer.drain()


def reply(body: bytes, status: int = 200, kind: str = "application/json", *more: str) -> bytes:
    lines = (f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *more)
    return "\r\n".join((*lines, "Connection: close", "", "")).encode() + body


def http_tool(**configured: Any) -> Tool:
    """Return an HTTP tool as the configuration makes it."""
    values = {"http": {"it": {"description": "Returns it.", **configured}}}
    (tool,) = Toolbox(ToolSettings.model_validate(values), points=[]).tools
    return tool


def parts_in(kind: str, body: bytes) -> list[tuple[Any, ...]]:
    """Return name, file name, media type and content of the parts, read by the standard library."""
    message = message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
    return [
        (
            each.get_param("name", header="content-disposition"),
            each.get_filename(),
            each["content-type"],
            each.get_payload(decode=True),
        )
        for each in message.walk()
        if not each.is_multipart()
    ]
