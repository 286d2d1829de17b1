"""MCP over streamable HTTP: the SDK's transport with a client that limits response sizes.

A failed request must not end the session for other requests. A failed or broken connection
therefore becomes an error response to that request only.

A server that restarted does not know the session any more. It refuses a request with 404, as the
protocol specifies, with 410, or with another 4xx status and a message about the session. Each time
it has done nothing, so the request may be sent again in a new session. Any other refusal may have
the same reason; the session then checks whether the server still lists its tools.
"""

import asyncio
import json
import re
from codecs import BOM_UTF8
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, Final, cast

import httpx2
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND

from caseworker.platform.logs.trace_context import HEADER, current_traceparent
from caseworker.tools.mcp.config import ServerConfig
from caseworker.tools.mcp.delivery import DELIVERY, DeliveryState
from caseworker.tools.mcp.lone_surrogates import LoneSurrogates

_STREAM_FACTOR: Final = 16
"""Maximum size of a notification stream, in messages of maximum size."""
_SESSION_HEADER: Final = "mcp-session-id"
_REFUSAL_SECONDS: Final = 30.0
"""Maximum time in seconds to read the body of a refusal."""
_MAX_REFUSAL_CHARS: Final = 2000
"""Maximum size of a refusal that is searched for a message about the session."""
_SESSION: Final = re.compile(
    r"session.{0,80}?(?:not (?:found|valid|recogni|initiali)|unknown|unrecogni|invalid|expired"
    r"|terminated|missing|required|closed|does not exist|doesn't exist|no longer|no such|gone)"
    r"|(?:unknown|unrecogni[sz]ed|invalid|expired|missing|stale|no|no valid|no such|no active)"
    r" (?:or expired )?(?:mcp[- ])?session|not (?:been )?initiali[sz]ed"
    r"|expect(?:ed)? initiali[sz]e|unsupported protocol version",
    re.IGNORECASE | re.DOTALL,
)
_LOST: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.GONE})
"""Status codes that always report a lost session, if the request has one."""
_OUTAGES: Final = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)
"""Status codes of a proxy whose server is lost; the server may have executed the request."""


def names_lost_session(message: str) -> bool:
    """Return whether an error message reports an unknown session."""
    return _SESSION.search(message[:_MAX_REFUSAL_CHARS]) is not None


class _Unreadable(httpx2.StreamError):
    """The rest of a response is unavailable or exceeds the limit."""


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of a response, without lone surrogates and an initial byte order mark."""

    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._inner = inner
        self._bytes_left = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        start, is_start = b"", True
        surrogates = LoneSurrogates()
        try:
            async for chunk in self._inner:
                self._bytes_left -= len(chunk)
                if self._bytes_left < 0:
                    _delivery().too_large = True
                    raise _Unreadable("The answer is too large.")
                if not is_start:
                    yield surrogates.feed(chunk)
                    continue
                start += chunk
                is_start = len(start) < len(BOM_UTF8) and BOM_UTF8.startswith(start)
                if not is_start:
                    yield surrogates.feed(start.removeprefix(BOM_UTF8))
            yield (start if is_start else b"") + surrogates.end()
        except httpx2.TransportError:
            _delivery().is_broken = True
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
        posts = request.method == "POST"
        delivery = _delivery() if posts else DeliveryState()
        delivery.may_have_executed = True
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            delivery.may_have_executed = not isinstance(
                error, httpx2.ConnectError | httpx2.ConnectTimeout
            )
            delivery.is_broken = True
            return _failed(f"The server cannot be reached ({type(error).__name__}).")
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            delivery.is_broken = True
            return _failed("The server sent a compressed answer.")
        factor = _STREAM_FACTOR if request.method == "GET" else 1
        response = httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_BoundedStream(
                cast("httpx2.AsyncByteStream", response.stream), factor * self._max
            ),
            extensions=response.extensions,
            request=request,
        )
        if posts and response.status_code >= HTTPStatus.BAD_REQUEST:
            return await _refusal(request, response, delivery)
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()


def create_http_client(config: ServerConfig) -> httpx2.AsyncClient:
    """Create the HTTP client for one session. It sets no limit on the duration of calls."""
    return httpx2.AsyncClient(
        headers=dict(config.headers),
        timeout=httpx2.Timeout(config.start_timeout_seconds, read=None),
        transport=BoundedTransport(config.max_message_bytes),
        trust_env=False,
    )


async def _refusal(
    request: httpx2.Request, response: httpx2.Response, delivery: DeliveryState
) -> httpx2.Response:
    """Record whether a refusal reports a lost session, and return its JSON-RPC error."""
    status = response.status_code
    try:
        async with asyncio.timeout(_REFUSAL_SECONDS):
            text = (await response.aread()).decode(errors="replace")
    except (TimeoutError, httpx2.StreamError):
        text = ""
    finally:
        await response.aclose()
    error = _error_in(text)
    code = None if error is None else error.get("code")
    message = text if error is None else str(error.get("message"))
    is_limit = status == HTTPStatus.TOO_MANY_REQUESTS
    names_session = (
        status < HTTPStatus.INTERNAL_SERVER_ERROR and not is_limit and names_lost_session(message)
    )
    delivery.session_lost = (status in _LOST and _SESSION_HEADER in request.headers) or (
        names_session and code not in (INVALID_PARAMS, METHOD_NOT_FOUND)
    )
    if not (delivery.session_lost or is_limit or status in _OUTAGES):
        delivery.refusal_status = status
    if delivery.session_lost or names_session or is_limit:
        delivery.may_have_executed = False
    if error is not None or status == HTTPStatus.NOT_FOUND:
        headers = {"content-type": "application/json"} if error is not None else {}
        return httpx2.Response(status, headers=headers, text=text, request=request)
    delivery.is_broken = status in _OUTAGES
    return _failed(f"The server answered with the status {status}.", status=status)


def _error_in(text: str) -> dict[str, Any] | None:
    """Return the error of a JSON-RPC response; None if the text is not one."""
    try:
        error = json.loads(text)["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return error if isinstance(error, dict) and isinstance(error.get("code"), int) else None


def _delivery() -> DeliveryState:
    """Return the record of the current request; one without a reader if nothing reads it."""
    return DELIVERY.get() or DeliveryState()


def _failed(message: str, *, status: int = HTTPStatus.BAD_GATEWAY) -> httpx2.Response:
    error = {"code": INTERNAL_ERROR, "message": message}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
    return httpx2.Response(status, headers={"content-type": "application/json"}, text=body)
