"""MCP over streamable HTTP: the SDK's transport with a client that limits response sizes.

A failed request must not end the session for other requests. A failed or broken connection
therefore becomes an error response to that request only.
"""

import json
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Final, cast

import httpx2
from mcp.types import CONNECTION_CLOSED

from caseworker.platform.logs.trace_context import HEADER, current_traceparent
from caseworker.tools.mcp.config import ServerConfig

_STREAM_FACTOR: Final = 16
"""Maximum size of a notification stream, in messages of maximum size."""


class ReadState:
    """Records whether the response to a request exceeded the size limit."""

    __slots__ = ("too_large",)

    def __init__(self) -> None:
        self.too_large = False


READING: ContextVar[ReadState | None] = ContextVar("mcp_reading", default=None)
"""State for reading the response to the current request. A context variable works because the MCP
SDK runs its transport in the caller's context."""


class _Unreadable(httpx2.StreamError):
    """The rest of a response is unavailable or exceeds the limit."""


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, most: int) -> None:
        self._inner = inner
        self._left = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                self._left -= len(chunk)
                if self._left < 0:
                    if (reading := READING.get()) is not None:
                        reading.too_large = True
                    raise _Unreadable("The answer is too large.")
                yield chunk
        except httpx2.TransportError:
            raise _Unreadable("The connection broke off.") from None

    async def aclose(self) -> None:
        await self._inner.aclose()


class BoundedTransport(httpx2.AsyncBaseTransport):
    """HTTP transport that limits response sizes and rejects compressed responses.

    A lost connection becomes an error response. The number of connections is unlimited, because
    cancelled calls can block a limited pool.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._inner = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=None))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; return a 502 response with a JSON-RPC error if the connection fails."""
        request.headers["accept-encoding"] = "identity"
        if (span := current_traceparent()) is not None:
            request.headers[HEADER] = span
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            return _failed(f"The server cannot be reached ({type(error).__name__}).")
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            return _failed("The server sent a compressed answer.")
        factor = _STREAM_FACTOR if request.method == "GET" else 1
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_BoundedStream(
                cast("httpx2.AsyncByteStream", response.stream), factor * self._max
            ),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()


def http_client(config: ServerConfig) -> httpx2.AsyncClient:
    """Create the HTTP client for one session. It sets no limit on the duration of calls."""
    return httpx2.AsyncClient(
        headers=dict(config.headers),
        timeout=httpx2.Timeout(config.start_timeout_seconds, read=None),
        transport=BoundedTransport(config.max_message_bytes),
        trust_env=False,
    )


def _failed(message: str) -> httpx2.Response:
    error = {"code": CONNECTION_CLOSED, "message": message}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
    return httpx2.Response(502, headers={"content-type": "application/json"}, text=body)
