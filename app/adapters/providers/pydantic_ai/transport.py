"""HTTP for model calls: a pool without an upper bound, and replies with one.

Two things about connection pools decide the shape of this module. A bounded pool can be poisoned
permanently by requests that are cancelled while they wait in it, so ours has no bound and calls
wait in a semaphore before it. And a pool looks at all its connections whenever a request begins
or ends, so ten thousand calls in one pool spend more time on book-keeping than on the wire; the
calls are therefore spread over pools of `_CALLS_PER_POOL`, which come and go with the load.
"""

import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import cast

import httpx2

from app.llm.ports import MAX_REPLY_BYTES, Delivery
from app.observability.trace_context import HEADER, current_traceparent

_CALLS_PER_POOL = 32
_KEEP_ALIVE_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_UNCOMPRESSED = frozenset({"", "identity"})
_KNOWN_COMPRESSIONS = frozenset({"gzip", "deflate"})
_EITHER_HEADER = zlib.MAX_WBITS | 32
_PIECE_BYTES = 64 * 1024


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


def http_client(max_reply_bytes: int = MAX_REPLY_BYTES) -> httpx2.AsyncClient:
    """A client for model calls; proxies of the environment are used, redirects are not followed.

    No more of a reply than ``max_reply_bytes`` is read, unfolded if it is compressed, which we ask
    providers not to do.
    Only connecting has a time limit of its own: an attempt as a whole is limited by its caller.
    """
    tls = _tls()
    return httpx2.AsyncClient(
        verify=tls,
        mounts={"all://": SpreadTransport(lambda: _pool(tls), max_reply_bytes)},
        headers={"accept-encoding": "identity"},
        timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
        follow_redirects=False,
    )


@cache
def _tls() -> ssl.SSLContext:
    """Return the context that all clients share: to read the certificates takes 20 ms each time."""
    return httpx2.create_ssl_context()


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
        max_reply_bytes: int = MAX_REPLY_BYTES,
        *,
        calls_per_pool: int = _CALLS_PER_POOL,
    ) -> None:
        self._open_pool = open_pool
        self._max_reply_bytes = max_reply_bytes
        self._calls_per_pool = calls_per_pool
        self._pools = [_Pool(open_pool())]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; the place in the pool is held until the reply is closed."""
        delivery = _DELIVERY.get()
        if delivery is not None:
            request.stream = _Body(cast(httpx2.AsyncByteStream, request.stream), delivery)
        if (span := current_traceparent()) is not None:
            request.headers[HEADER] = span
        pool = self._pool_with_room()
        pool.calls += 1
        try:
            response = await pool.transport.handle_async_request(request)
        except BaseException:
            await self._leave(pool)
            raise
        stream = cast(httpx2.AsyncByteStream, response.stream)
        unfold = _unfolding(response.headers.pop("content-encoding", ""))
        limit = self._max_reply_bytes
        response.stream = _Reply(stream, unfold, limit, lambda: self._leave(pool))
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


Unfold = Callable[[bytes], Iterator[bytes]]
"""Turns what comes from the wire into the reply, in pieces of a bounded size."""


class _Reply(httpx2.AsyncByteStream):
    """A reply's bytes as they come from the wire, unfolded, up to a limit."""

    def __init__(
        self,
        stream: httpx2.AsyncByteStream,
        unfold: Unfold,
        limit: int,
        leave: Callable[[], Awaitable[None]],
    ) -> None:
        self._stream = stream
        self._unfold = unfold
        self._limit = limit
        self._leave = leave
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for packed in self._stream:
            for part in self._unfold(packed):
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


def _unfolding(encodings: str) -> Unfold:
    """Return how a reply of a Content-Encoding is read; one that is packed twice is refused."""
    named = [encoding.strip().lower() for encoding in encodings.split(",")]
    applied = [encoding for encoding in named if encoding not in _UNCOMPRESSED]
    if not applied:
        return lambda part: iter((part,))
    if len(applied) > 1 or applied[0] not in _KNOWN_COMPRESSIONS:
        return _refuse
    decoder = zlib.decompressobj(_EITHER_HEADER)

    def unfold(packed: bytes) -> Iterator[bytes]:
        while packed:
            try:
                yield decoder.decompress(packed, _PIECE_BYTES)
            except zlib.error:
                raise ReplyRefusedError from None
            packed = decoder.unconsumed_tail

    return unfold


def _refuse(_: bytes) -> Iterator[bytes]:
    raise ReplyRefusedError
