"""HTTP for model calls: a pool without an upper bound, and replies with one.

Two things about connection pools decide the shape of this module. A bounded pool can be poisoned
permanently by requests that are cancelled while they wait in it, so ours has no bound and calls
wait in a semaphore before it. And a pool looks at all its connections whenever a request begins
or ends, so ten thousand calls in one pool spend more time on book-keeping than on the wire; the
calls are therefore spread over pools of `_CALLS_PER_POOL`, which come and go with the load.
"""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import cast

import httpx2

from app.llm.ports import Delivery

MAX_REPLY_BYTES = 32 * 1024 * 1024
"""The longest reply that is read."""

MAX_COMPRESSED_BYTES = 64 * 1024
"""The longest compressed reply that is read. We ask for none; a thousandfold may hide in it."""

_CALLS_PER_POOL = 32
_KEEP_ALIVE_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_UNCOMPRESSED = frozenset({"", "identity"})
_KNOWN_COMPRESSIONS = frozenset({"gzip", "deflate"})


_DELIVERY: ContextVar[Delivery | None] = ContextVar("delivery", default=None)


@contextmanager
def noting_delivery(delivery: Delivery | None) -> Iterator[None]:
    """Note in ``delivery`` when a request that is made in the block is sent: not before."""
    if delivery is not None:
        delivery.sent = False
    token = _DELIVERY.set(delivery)
    try:
        yield
    finally:
        _DELIVERY.reset(token)


class ReplyRefusedError(Exception):
    """A reply that is too long to read, or packed in a way that could hide its length."""


def http_client() -> httpx2.AsyncClient:
    """A client for model calls; proxies of the environment are used, redirects are not followed.

    Only connecting has a time limit of its own: an attempt as a whole is limited by its caller.
    """
    tls = httpx2.create_ssl_context()
    return httpx2.AsyncClient(
        verify=tls,
        mounts={"all://": SpreadTransport(lambda: _pool(tls))},
        headers={"accept-encoding": "identity"},
        timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
        follow_redirects=False,
    )


def _pool(tls: ssl.SSLContext) -> httpx2.AsyncBaseTransport:
    limits = httpx2.Limits(max_connections=None, keepalive_expiry=_KEEP_ALIVE_SECONDS)
    return httpx2.AsyncHTTPTransport(verify=tls, limits=limits)


@dataclass(slots=True, eq=False)
class _Pool:
    transport: httpx2.AsyncBaseTransport
    calls: int = 0
    """Calls that have begun and whose reply is not yet read or given up."""


class SpreadTransport(httpx2.AsyncBaseTransport):
    """Sends each call through the first pool that has room, and bounds the reply.

    Calls fill the first pool first, so that a quiet service reuses its connections; a later pool
    is closed as soon as it is empty.
    """

    def __init__(
        self,
        open_pool: Callable[[], httpx2.AsyncBaseTransport],
        *,
        calls_per_pool: int = _CALLS_PER_POOL,
    ) -> None:
        self._open_pool = open_pool
        self._calls_per_pool = calls_per_pool
        self._pools = [_Pool(open_pool())]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; the place in the pool is held until the reply is closed."""
        delivery = _DELIVERY.get()
        if delivery is not None:
            request.stream = _Body(cast(httpx2.AsyncByteStream, request.stream), delivery)
        pool = self._pool_with_room()
        pool.calls += 1
        try:
            response = await pool.transport.handle_async_request(request)
        except BaseException:
            await self._leave(pool)
            raise
        limit = _byte_limit(response.headers.get("content-encoding", ""))
        stream = cast(httpx2.AsyncByteStream, response.stream)
        response.stream = _Reply(stream, limit, lambda: self._leave(pool))
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._pools:
            await pool.transport.aclose()

    def _pool_with_room(self) -> _Pool:
        for pool in self._pools:
            if pool.calls < self._calls_per_pool:
                return pool
        self._pools.append(_Pool(self._open_pool()))
        return self._pools[-1]

    async def _leave(self, pool: _Pool) -> None:
        pool.calls -= 1
        if pool.calls == 0 and pool is not self._pools[0]:
            self._pools.remove(pool)
            await pool.transport.aclose()


class _Body(httpx2.AsyncByteStream):
    """A request's body, which is read once there is a connection and its headers are sent."""

    def __init__(self, stream: httpx2.AsyncByteStream, delivery: Delivery) -> None:
        self._stream = stream
        self._delivery = delivery

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._delivery.sent = True
        async for part in self._stream:
            yield part


class _Reply(httpx2.AsyncByteStream):
    """A reply's bytes as they come from the wire, up to a limit."""

    def __init__(
        self, stream: httpx2.AsyncByteStream, limit: int, leave: Callable[[], Awaitable[None]]
    ) -> None:
        self._stream = stream
        self._limit = limit
        self._leave = leave
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for part in self._stream:
            received += len(part)
            if received > self._limit:
                raise ReplyRefusedError
            yield part

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._stream.aclose()
        finally:
            await self._leave()


def _byte_limit(encodings: str) -> int:
    named = [encoding.strip().lower() for encoding in encodings.split(",")]
    applied = [encoding for encoding in named if encoding not in _UNCOMPRESSED]
    if not applied:
        return MAX_REPLY_BYTES
    # Packed twice, or by a method with a higher ratio, even a short reply could explode.
    harmless = len(applied) == 1 and applied[0] in _KNOWN_COMPRESSIONS
    return MAX_COMPRESSED_BYTES if harmless else 0
