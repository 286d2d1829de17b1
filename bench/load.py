"""A closed loop of HTTP requests: several connections, each with one request in flight.

The client is minimal, because it shares two cores with the measured process.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Final
from urllib.parse import urlsplit

from bench.figures import Samples

_LIMIT: Final = 2**20
_END: Final = b"\r\n0\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, sent repeatedly."""

    path: str
    body: bytes = b""
    """The body; ``%d`` is replaced by a unique number for each request."""
    method: str = "POST"
    content_type: str = "application/json"
    headers: str = ""
    """Further header lines, each ended by CRLF."""
    expect: tuple[int, ...] = (200,)
    holds: bytes = b""
    """Bytes that every answer must contain."""
    numbers: Iterator[int] = field(default_factory=lambda: count(1_000_000))


@dataclass(frozen=True, slots=True)
class Load:
    """The result of a load."""

    per_second: float
    milliseconds: Samples
    """Milliseconds of each request."""


async def put_load(url: str, request: Request, *, connections: int, requests: int) -> Load:
    """Send ``requests`` in total over ``connections``; every answer must be as expected.

    Raises:
        RuntimeError: An answer was different.
    """
    durations: list[float] = []
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            each = max(1, requests // connections)
            group.create_task(_lane(url, request, each, durations))
    seconds = time.perf_counter() - began
    return Load(len(durations) / seconds, Samples(tuple(1e3 * each for each in durations)))


@dataclass(frozen=True, slots=True)
class Connection:
    """An open connection to a server; open it with ``connected``."""

    host: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, request: Request) -> tuple[float, bytes]:
        """Send a request; return the seconds until the whole answer was there, and its body.

        Raises:
            RuntimeError: The answer was not as expected.
        """
        message = _encoded(self.host, request)
        began = time.perf_counter()
        self.writer.write(message)
        status, body = await _answer(self.reader)
        seconds = time.perf_counter() - began
        if status not in request.expect or request.holds not in body:
            raise RuntimeError(f"{self.host}{request.path} answered {status}: {body[:500]!r}")
        return seconds, body


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """Open a connection to a server during the block."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=_LIMIT)
    try:
        yield Connection(place.netloc, reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


async def _lane(url: str, request: Request, requests: int, durations: list[float]) -> None:
    async with connected(url) as connection:
        for _ in range(requests):
            seconds, _ = await connection.send(request)
            durations.append(seconds)


async def first_byte(url: str, request: Request, *, begins: bytes) -> float:
    """Return the milliseconds from a request to ``begins`` in its streamed answer.

    An equal request before it opens the connections that the server keeps.
    """
    async with connected(url) as connection:
        reader, writer = connection.reader, connection.writer
        writer.write(_encoded(connection.host, request))
        await reader.readuntil(begins)
        await reader.readuntil(_END)
        began = time.perf_counter()
        writer.write(_encoded(connection.host, request))
        await reader.readuntil(begins)
        took = time.perf_counter() - began
        await reader.readuntil(_END)
        return 1e3 * took


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head.split(b" ", 2)[1])
    if status == 204:
        return status, b""
    _, sized, rest = head.partition(b"content-length:")
    if sized:
        return status, await reader.readexactly(int(rest.split(b"\r\n", 1)[0]))
    chunks = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        chunks.append((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return status, b"".join(chunks)


def _encoded(host: str, request: Request) -> bytes:
    body = request.body.replace(b"%d", b"%d" % next(request.numbers))
    lines = (
        f"{request.method} {request.path} HTTP/1.1\r\n"
        f"Host: {host}\r\n"
        f"Content-Type: {request.content_type}\r\n"
        f"{request.headers}"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return lines.encode() + body
