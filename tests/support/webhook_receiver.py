"""A webhook receiver that records requests and answers as scripted."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

OK = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
FAILED = b"HTTP/1.1 500 Sorry\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class Arrival:
    """One completely received request."""

    target: str
    headers: dict[str, str]
    """Headers by lower-case name."""
    body: bytes

    @property
    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.body)
        return message

    @property
    def webhook_id(self) -> str:
        return self.headers["webhook-id"]


@dataclass
class Receiver:
    """The receiver of webhooks.

    ``answers`` are used in order, and the last one is repeated. An answer of None is never sent:
    the connection stays open.
    """

    port: int = 0
    scheme: str = "http"
    answers: list[bytes | Callable[["Arrival"], bytes] | None] = field(default_factory=lambda: [OK])
    arrivals: list[Arrival] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    _arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook?token=t"

    def answer(self, *answers: bytes | Callable[[Arrival], bytes] | None) -> None:
        """Use this answer from now on."""
        self.answers[:] = answers

    async def wait_for(self, count: int, *, seconds: float = 150) -> Sequence[Arrival]:
        """Return the arrivals once there are ``count``.

        Raises:
            TimeoutError: Fewer requests arrived in time.
        """
        async with asyncio.timeout(seconds), self._arrived:
            await self._arrived.wait_for(lambda: len(self.arrivals) >= count)
        return tuple(self.arrivals)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.split(": ", 1) for line in head[1:] if line)
            headers = {name.lower(): value for name, value in headers.items()}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            arrival = Arrival(head[0].split(" ")[1], headers, body)
            async with self._arrived:
                self.arrivals.append(arrival)
                self._arrived.notify_all()
            if answer is None:
                await reader.read()
            else:
                writer.write(answer if isinstance(answer, bytes) else answer(arrival))
                await writer.drain()
        writer.close()


def json_answer(document: Any) -> bytes:
    """Return an answer that is JSON."""
    body = json.dumps(document).encode()
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """Listen on this machine during the block."""
    receiver = Receiver(scheme="http" if tls is None else "https")
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for writer in receiver.writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # connections end in the next iteration of the loop
