"""A closed loop of HTTP requests: so many connections, each with one request in flight.

The client is as lean as it can be, for it shares two cores with what it measures.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from bench.figures import Samples

_LIMIT: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, sent again and again."""

    path: str
    body: bytes
    headers: str = ""
    """Further header lines, each ended by CRLF."""
    expect: tuple[int, ...] = (200,)


@dataclass(frozen=True, slots=True)
class Load:
    """What came of a load."""

    per_second: float
    milliseconds: Samples
    """Per request."""


async def put_load(url: str, request: Request, *, connections: int, requests: int) -> Load:
    """Send ``requests`` in all over ``connections``; every answer must be as expected.

    Raises:
        RuntimeError: an answer had another status.
    """
    message = _message(url, request)
    durations: list[float] = []
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            count = max(1, requests // connections)
            group.create_task(_lane(url, request, message, count, durations))
    seconds = time.perf_counter() - began
    return Load(len(durations) / seconds, Samples(tuple(1e3 * each for each in durations)))


async def _lane(
    url: str, request: Request, message: bytes, count: int, durations: list[float]
) -> None:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=_LIMIT)
    try:
        for _ in range(count):
            began = time.perf_counter()
            writer.write(message)
            status = await _answer(reader)
            durations.append(time.perf_counter() - began)
            if status not in request.expect:
                raise RuntimeError(f"{url}{request.path} answered {status}")
    finally:
        writer.close()
        await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> int:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, _, rest = head.partition(b"content-length:")
    await reader.readexactly(int(rest.split(b"\r\n", 1)[0]))
    return int(head.split(b" ", 2)[1])


def _message(url: str, request: Request) -> bytes:
    lines = (
        f"POST {request.path} HTTP/1.1\r\n"
        f"Host: {urlsplit(url).netloc}\r\n"
        "Content-Type: application/json\r\n"
        f"{request.headers}"
        f"Content-Length: {len(request.body)}\r\n\r\n"
    )
    return lines.encode() + request.body
