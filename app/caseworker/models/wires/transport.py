"""HTTP transport for model calls: unlimited connections, and replies of limited size.

Requests that are cancelled while they wait in a bounded pool can block it permanently. This pool is
therefore unbounded, and callers wait for a semaphore instead.
"""

import asyncio
import ssl
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx2
from aiohttp.abc import AbstractStreamWriter
from multidict import istr

from caseworker.models.ports import MAX_REPLY_BYTES
from caseworker.platform.logs.trace_context import HEADER, current_traceparent

_ACCEPT_ENCODING = istr("accept-encoding")
_KEEP_ALIVE_SECONDS = 4.0
"""Less than the usual idle timeout of servers (five seconds).

A request on a connection that the server is closing is lost.
"""
_CONNECT_SECONDS = 10.0
_HEADER_BYTES = 64 * 1024
_UNCOMPRESSED = frozenset({"", "identity"})
_KNOWN_COMPRESSIONS = frozenset({"gzip", "deflate"})
_EITHER_HEADER = zlib.MAX_WBITS | 32
_PIECE_BYTES = 64 * 1024
_EVENT_BYTES = 1024
"""Overhead allowed per event of a streamed reply: its JSON repeats IDs and names."""
_MAX_FRAMING = 15
"""Maximum overhead of all events, as a multiple of the limit."""
_NOT_ADDED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that aiohttp would otherwise add by default."""
_FAILURES = (aiohttp.ClientError, OSError, ValueError)


class WireError(Exception):
    """No reply arrived, or the reply was rejected."""

    words = "the connection failed or was cut"
    retryable = False


class ConnectionFailedError(WireError):
    """The connection could not be opened, or was lost."""

    retryable = True


class ReplyRefusedError(WireError):
    """The reply is too long, or is compressed in a way that could hide its size."""

    words = "the reply is too long or compressed"


class ProxyUnusableError(WireError):
    """The environment configures a proxy that does not use HTTP."""

    words = "the proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names must be one of http://"


class WireReply(Protocol):
    """An HTTP reply whose status and headers have arrived."""

    @property
    def status(self) -> int:
        """The HTTP status code."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers by lower-case name. If a header is repeated, the last value."""
        ...

    def parts(self) -> AsyncGenerator[bytes]:
        """Yield the decompressed body as it arrives.

        Raises:
            ConnectionFailedError: the connection was lost.
            ReplyRefusedError: the body is too long, or has an unknown compression.
        """
        ...

    def close(self) -> None:
        """Close the connection, unless the reply was read to its end."""
        ...


class Wire(Protocol):
    """Sends HTTP requests to an endpoint."""

    async def post(
        self, url: str, headers: Mapping[str, str], content: bytes, note_sent: Callable[[], None]
    ) -> WireReply:
        """Send one request and return its reply; call ``note_sent`` just before the body is sent.

        Raises:
            ConnectionFailedError: the connection could not be opened, or was lost.
            TimeoutError: connecting took too long.
            ProxyUnusableError: the environment configures a proxy that does not use HTTP.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


class ModelTransport:
    """A `Wire` that reads at most ``max_reply_bytes`` of a reply, counted after decompression.

    A streamed reply may be longer, because most of it is JSON repeated around each piece of text.

    Proxies from the environment are used; redirects are not followed. Providers are asked not to
    compress replies. Only connecting has its own time limit. The caller limits the duration of the
    attempt as a whole.
    """

    def __init__(
        self,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        max_bytes_by_path: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """``max_bytes_by_path`` are the limits of replies to APIs, by the ends of their paths."""
        self._max_reply_bytes = max_reply_bytes
        self._max_bytes_by_path = max_bytes_by_path
        self._tls = _tls()
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, url: str, headers: Mapping[str, str], content: bytes, note_sent: Callable[[], None]
    ) -> WireReply:
        """Send one request and return the reply, whose body has not been read yet.

        Raises:
            ConnectionFailedError: no reply was received.
        """
        if self._session is None:
            self._session = self._open_session()
        all_headers = {**headers, _ACCEPT_ENCODING: "identity"}
        if (span := current_traceparent()) is not None:
            all_headers[HEADER] = span
        target = urlsplit(url)
        sending = self._session.post(
            url,
            headers=all_headers,
            data=_Body(content, note_sent),
            allow_redirects=False,
            proxy=_proxy_for(target.scheme, target.hostname or "", target.netloc),
        )
        ends = self._max_bytes_by_path.items()
        max_bytes = (size for end, size in ends if target.path.endswith(end))
        limit = next(max_bytes, self._max_reply_bytes)
        del headers, content, all_headers, target  # else kept until the reply arrives
        try:
            response = await sending
        except TimeoutError:
            raise
        except _FAILURES as error:
            raise ConnectionFailedError from error
        return _Reply(response, limit)

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, ssl=self._tls, keepalive_timeout=_KEEP_ALIVE_SECONDS
            ),
            timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NOT_ADDED,
            auto_decompress=False,
            max_field_size=_HEADER_BYTES,
        )


Unfold = Callable[[bytes], Iterator[bytes]]
"""Function that decompresses received bytes and yields them in pieces of limited size."""


class _Body(aiohttp.BytesPayload):
    """A request body that reports when it is sent, after the connection and the headers."""

    def __init__(self, content: bytes, note_sent: Callable[[], None]) -> None:
        super().__init__(content)
        self._note_sent = note_sent

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        self._note_sent()
        transport = getattr(writer, "transport", None)  # the writer drops it on close
        try:
            await super().write_with_length(writer, content_length)
            self._value = b""  # a POST is not repeated
        except BaseException:
            _drop(transport)
            raise


class _Reply:
    """A decompressed reply body of limited size."""

    def __init__(self, response: aiohttp.ClientResponse, limit: int) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self._response = response
        self._limit = limit

    async def parts(self) -> AsyncGenerator[bytes]:
        wire, received, limit = 0, 0, self._limit
        streamed = self._response.content_type == "text/event-stream"
        unfold = _unfolding(",".join(self._response.headers.getall("content-encoding", ())))
        try:
            async for packed in self._response.content.iter_any():
                wire += len(packed)
                for part in unfold(packed):
                    received += len(part)
                    if streamed:
                        framing = _EVENT_BYTES * part.count(b"data:")
                        limit = min(limit + framing, (1 + _MAX_FRAMING) * self._limit)
                    if received > limit:
                        yield part[: limit - received]  # the part within the limit
                        raise ReplyRefusedError
                    yield part
                if wire > limit:  # compressed data larger than its content
                    raise ReplyRefusedError
        except _FAILURES as error:
            raise ConnectionFailedError from error

    def close(self) -> None:
        if (connection := self._response.connection) is not None:
            _drop(connection.transport)
        self._response.close()


def _drop(transport: asyncio.Transport | None) -> None:
    """Abort the connection and discard unsent data, which a normal close would still send."""
    if transport is not None:
        transport.abort()


@cache
def _tls() -> ssl.SSLContext:
    """Return the shared TLS context: loading the certificates takes 20 ms."""
    return httpx2.create_ssl_context()


@lru_cache(maxsize=32)
def _proxy_for(scheme: str, host: str, address: str) -> str | None:
    """Return the proxy that the environment configures for a host; ``address`` includes the port.

    Raises:
        ProxyUnusableError: the proxy does not use HTTP.
    """
    excepted = proxy_bypass(host) or proxy_bypass(address)
    proxies = {} if excepted else getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy:
        return None
    if "://" not in proxy:
        return f"http://{proxy}"
    if not proxy.lower().startswith(("http://", "https://")):
        raise ProxyUnusableError
    return proxy


def _unfolding(encodings: str) -> Unfold:
    """Return the decompressor for a Content-Encoding; multiple encodings are rejected."""
    names = map(str.lower, map(str.strip, encodings.split(",")))
    applied = [encoding for encoding in names if encoding not in _UNCOMPRESSED]
    if not applied:
        return lambda part: iter((part,))
    if len(applied) > 1 or applied[0] not in _KNOWN_COMPRESSIONS:
        return _refuse
    decoder = zlib.decompressobj(_EITHER_HEADER)

    def unfold(packed: bytes) -> Iterator[bytes]:
        while packed:
            try:
                part = decoder.decompress(packed, _PIECE_BYTES)
            except zlib.error:
                raise ReplyRefusedError from None
            if decoder.unused_data:  # zlib would buffer trailing data, uncounted
                raise ReplyRefusedError
            yield part
            packed = decoder.unconsumed_tail

    return unfold


def _refuse(_: bytes) -> Iterator[bytes]:
    raise ReplyRefusedError
