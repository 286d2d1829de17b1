"""A TCP proxy that breaks connections in the ways networks and crashing servers do.

It sits between the service and Postgres or a model provider. It counts every fault, so a test can
show that its fault did happen.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.support.service import ServiceProcess

Upstream = tuple[str, int] | Path
"""The address of the real server: host and port, or a Unix socket."""

_CHUNK_BYTES = 65536


@dataclass(slots=True)
class FaultCounts:
    """Counts of the connections and faults so far."""

    accepted: int = 0
    refused: int = 0
    cut: int = 0
    answers_dropped: int = 0


@dataclass(slots=True, kw_only=True)
class _LostAnswer:
    """One request whose answer will be lost."""

    request: bytes
    answer: bytes


@dataclass(slots=True, eq=False)
class _Link:
    """One proxied connection; cutting it drops both sides without a shutdown."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    lost: _LostAnswer | None = None
    """Set once its request has passed: the answer is awaited and dropped."""
    tails: dict[bytes, bytes] = field(default_factory=dict)
    """The last bytes searched for each pattern, because a pattern may span two chunks."""

    def drop(self) -> None:
        self.client.transport.abort()
        self.server.transport.abort()

    def saw(self, pattern: bytes, data: bytes) -> bool:
        """Return whether ``pattern`` ended in this chunk."""
        seen = self.tails.get(pattern, b"") + data
        self.tails[pattern] = seen[-(len(pattern) - 1) :] if len(pattern) > 1 else b""
        return pattern in seen


class FaultProxy:
    """Forwards to ``upstream`` unless a fault is set: ``async with FaultProxy(up) as proxy``."""

    def __init__(self, upstream: Upstream, *, seed: int = 0) -> None:
        self._upstream = upstream
        self._random = random.Random(seed)
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._max_delay_seconds = 0.0
        self._cut_after_bytes: int | None = None
        self._cut_each_within = 0
        self._to_lose: list[_LostAnswer] = []
        self._server: asyncio.Server | None = None
        self.counts = FaultCounts()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.heal()
        self.cut()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=1)
            for task in late:
                task.cancel()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that clients connect to."""
        assert self._server is not None, "the proxy does not listen yet"
        host, port = self._server.sockets[0].getsockname()
        return host, port

    @property
    def open_connections(self) -> int:
        """The number of forwarded connections."""
        return len(self._links)

    def cut(self) -> int:
        """Drop every open connection and keep accepting new ones; return how many were dropped."""
        links = list(self._links)
        for link in links:
            link.drop()
        self.counts.cut += len(links)
        return len(links)

    def cut_each_within(self, server_bytes: int) -> None:
        """Drop every new connection after a random number of answer bytes, at most this number."""
        self._cut_each_within = server_bytes

    def lead_to(self, upstream: Upstream) -> None:
        """Forward new connections to another server."""
        self._upstream = upstream

    def refuse(self, refusing: bool = True) -> None:
        """Close new connections at once, like a server that is down."""
        self._refusing = refusing

    def silence(self) -> None:
        """Stop forwarding in both directions without closing connections."""
        self._flowing.clear()

    def resume(self) -> None:
        """End :meth:`silence`; forward the waiting data."""
        self._flowing.set()

    def delay(self, max_seconds: float) -> None:
        """Delay every chunk by a random time up to this; 0 ends the delay."""
        self._max_delay_seconds = max_seconds

    def lose_answer(self, request: bytes = b"COMMIT", answer: bytes = b"COMMIT") -> None:
        """Drop the connection instead of forwarding the answer to a request with ``request``.

        The request reaches the server, and the drop waits for an answer that contains ``answer``.
        The server has therefore executed the request, but the client cannot know.
        """
        self._to_lose.append(_LostAnswer(request=request, answer=answer))

    def lose_none(self) -> None:
        """Cancel all pending :meth:`lose_answer` calls."""
        self._to_lose.clear()

    def heal(self) -> None:
        """End every fault, including pending ones."""
        self.resume()
        self.refuse(False)
        self.delay(0)
        self.cut_each_within(0)
        self._cut_after_bytes = None
        self.lose_none()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._refusing:
            self.counts.refused += 1
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        await self._forward(reader, up_reader, _Link(writer, up_writer))

    async def _forward(
        self, reader: asyncio.StreamReader, up_reader: asyncio.StreamReader, link: _Link
    ) -> None:
        self._links.add(link)
        if self._cut_each_within:
            self._cut_after_bytes = self._random.randint(1, self._cut_each_within)
        self.counts.accepted += 1
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._pump(reader, link.server, link, self._to_server))
                directions.create_task(self._pump(up_reader, link.client, link, self._to_client))
        except BaseException:
            link.drop()
            raise
        finally:
            self._links.discard(link)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._upstream, Path):
            return await asyncio.open_unix_connection(self._upstream)
        return await asyncio.open_connection(*self._upstream)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        link: _Link,
        allow: Callable[[_Link, bytes], bytes],
    ) -> None:
        with suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                if self._max_delay_seconds:
                    await asyncio.sleep(self._random.uniform(0, self._max_delay_seconds))
                await self._flowing.wait()
                if allowed := allow(link, data):
                    sink.write(allowed)
                    await sink.drain()
        sink.close()  # flushes first; then the other direction ends as well

    def _to_server(self, link: _Link, data: bytes) -> bytes:
        for waiting in list(self._to_lose) if link.lost is None else ():
            if link.saw(waiting.request, data):
                self._to_lose.remove(waiting)
                link.tails.clear()
                link.lost = waiting
                break
        return data

    def _to_client(self, link: _Link, data: bytes) -> bytes:
        if link.lost is not None:
            if link.saw(link.lost.answer, data):
                self.counts.answers_dropped += 1
                link.drop()
            return b""
        if self._cut_after_bytes is None or len(data) < self._cut_after_bytes:
            if self._cut_after_bytes is not None:
                self._cut_after_bytes -= len(data)
            return data
        allowed = data[: self._cut_after_bytes]
        self._cut_after_bytes = None
        self.counts.cut += 1
        asyncio.get_running_loop().call_soon(link.drop)  # once these bytes are on their way
        return allowed


def address_of(service: ServiceProcess) -> Upstream:
    url = httpx.URL(service.url)
    assert url.port is not None
    return url.host, url.port


@asynccontextmanager
async def proxied(service: ServiceProcess, seed: int = 0) -> AsyncIterator[tuple[FaultProxy, str]]:
    """Yield a proxy in front of a service, and its URL."""
    async with FaultProxy(address_of(service), seed=seed) as proxy:
        host, port = proxy.address
        yield proxy, f"http://{host}:{port}"
