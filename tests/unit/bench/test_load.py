"""The load generator and its checks."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from bench.load import Request, put_load


class Echo:
    """A server that returns each body, chunked on request, and records it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await self._head(reader):
            length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            body = await reader.readexactly(length)
            self.bodies.append(body)
            if head.startswith(b"post /chunked"):
                framing, body = (
                    b"Transfer-Encoding: chunked",
                    b"%x\r\n%s\r\n0\r\n\r\n" % (length, body),
                )
            else:
                framing = b"Content-Length: %d" % length
            writer.write(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n%s" % (framing, body))
        writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return (await reader.readuntil(b"\r\n\r\n")).lower()
        except asyncio.IncompleteReadError:
            return b""


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Echo, str]]:
    """Start an echo server; return it with its URL."""
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with server:
        yield echo, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("path", ["/sized", "/chunked"])
async def test_every_request_has_a_number_of_its_own(echo: tuple[Echo, str], path: str) -> None:
    """Each request has a unique number, so the server cannot answer from a cache."""
    server, url = echo
    request = Request(path=path, body=b"What is %d + 1?", holds=b"What is")

    load = await put_load(url, request, connections=2, requests=6)

    assert len(load.milliseconds.values) == 6
    assert sorted(server.bodies) == [b"What is %d + 1?" % n for n in range(1_000_000, 1_000_006)]


async def test_an_answer_that_lacks_what_it_must_hold_ends_the_measurement(
    echo: tuple[Echo, str],
) -> None:
    """A response without the expected content aborts the measurement."""
    request = Request(path="/sized", body=b'{"status":"failed"}', holds=b'"status":"completed"')

    with pytest.raises(ExceptionGroup, match="unhandled") as raised:
        await put_load(echo[1], request, connections=1, requests=1)

    assert "answered 200" in str(raised.value.exceptions[0])
