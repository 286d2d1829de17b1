"""Limit the memory and the time that a connection may use before its request is dispatched.

The base protocol accepts heads (request line and headers) of any length and waits indefinitely for
the rest of a request. Here the head is limited in bytes and number of headers, and must arrive in
time. Bodies must be sent, and responses read, at a minimum rate. The number of connections per
process is limited. Rejected requests receive a problem document with an X-Request-ID, like all
others.

Less than twice ``READ_BYTES`` of a body are read before the application requests them, which it
does after it has authenticated the caller. If a response is sent before the whole body has arrived,
the rest is read and dropped, up to ``MAX_DROPPED_BYTES`` and ``LINGER_SECONDS``: many clients read
the response only after they have sent the body, and closing a connection with unread bytes resets
it.

A connection is unidentified until it carries a request of an authenticated caller. Unidentified
connections may use at most nine tenths of the limit. Beyond that, a new one replaces the oldest. A
tenth more connections than the limit may be open: their requests wait for a slot of their tenant
(:mod:`caseworker.platform.http.request`).

When the server shuts down, it serves a request that arrives within ``LAST_REQUEST_SECONDS`` on an
unused connection, because the client may have sent it before. The response closes the connection.

A request that arrives in one piece costs only a comparison, because timers are set only for
incomplete ones.
"""

import asyncio
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar, Final, cast

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from caseworker.platform.fair_slots import queue_of, share_of
from caseworker.platform.http.problems import (
    HEAD_TOO_LARGE,
    MALFORMED_REQUEST,
    REQUEST_TIMEOUT,
    TOO_MANY_CONNECTIONS,
    ProblemError,
    ProblemType,
    problem_response,
)
from caseworker.platform.http.request import IDENTIFIED, IS_CLOSED, BodyMemory

log = structlog.get_logger(__name__)

READ_BYTES: Final = 32 * 1024
"""Maximum number of bytes that are read from a connection at once."""
MAX_DROPPED_BYTES: Final = 1024 * 1024
"""Maximum number of bytes of a body that are read and dropped after its response."""
LINGER_SECONDS: Final = 1.0
"""How long an answered client may send the rest of its body. An early reset of the connection could
discard the response."""
IDENTIFIED_LINGER: Final = 5
"""How many times as long an authenticated client may send the rest of a body that is too long, and
``IDENTIFIED_DROPS`` times as many bytes, so that it can read why."""
IDENTIFIED_DROPS: Final = 32
_ABSOLUTE: Final = re.compile(rb"https?://", re.IGNORECASE)
_MAX_PIPELINED = 4
"""Number of pipelined requests that may wait for the response to the first one."""
LAST_REQUEST_SECONDS = 0.5
"""How long an unused connection stays open when the server shuts down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Size, time and count limits for client connections."""

    max_connections: int
    """Maximum number of connections that are served at once. A tenth more may be open; their
    requests wait for a slot."""
    max_head_bytes: int
    """Maximum size of the request line and headers together, in bytes."""
    max_headers: int
    head_seconds: float
    """Seconds within which a complete head must arrive, counted from its first byte or from the
    start of the connection."""
    bytes_per_second: int
    """Minimum rate, in bytes per second, at which bodies must arrive and responses must be read."""
    rate_seconds: float = 5.0
    """Length of the interval over which rates are measured, in seconds."""


class _RefusedError(Exception):
    """Aborts parsing of a request that exceeds a limit."""


class BoundedProtocol(HttpToolsProtocol):
    """Server side of one client connection, with the limits in ``limits``."""

    limits: ClassVar[ConnectionLimits]
    bodies: ClassVar[BodyMemory]
    """Memory for bodies; dropped bytes count in the share of callers whose tenant is not known."""
    unidentified: ClassVar[dict["BoundedProtocol", None]]
    """Connections of this server without an authenticated caller, oldest first. The dict is used as
    an ordered set."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._refusal = MALFORMED_REQUEST
        self._head_bytes = 0
        self._unclaimed_bytes = 0
        """Bytes that the parser has buffered without a callback, such as part of a header."""
        self._claimed = False
        self._body_bytes = 0
        self._in_head = False
        self._in_body = False
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._refused = False
        self._is_identified = False
        """Whether the caller of the current request is authenticated."""
        self._dropped_bytes = 0
        """Bytes that arrived after the response to their request, and were dropped."""
        self._ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; if there are too many, close the oldest unidentified one."""
        super().connection_made(transport)
        self.unidentified[self] = None
        limit = self.limits.max_connections
        too_many = len(self.connections) > limit + queue_of(limit)
        if too_many or len(self.unidentified) > share_of(limit):
            oldest = next(iter(self.unidentified))
            if oldest is not self:
                oldest._forget()
                oldest.transport.abort()
            elif too_many:
                self.transport.write(_document(TOO_MANY_CONNECTIONS))
                self.transport.close()
                return
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection and cancel its timers."""
        self._forget()
        self._set_timer(None)
        self._stop_watching_writes()
        self._release_body()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received data, and set a timer if the request is incomplete."""
        if self._is_over():
            self._drop(len(data))
            return
        self._claimed = False
        super().data_received(data)
        self._unclaimed_bytes = 0 if self._claimed else self._unclaimed_bytes + len(data)
        if self._is_over():
            return
        if self._unclaimed_bytes > self.limits.max_head_bytes:
            self._answer(HEAD_TOO_LARGE)
            return
        if self._in_body:
            if self._timer is None:
                lingering = _Lingering(self.transport, self._close)
                self.cycle.transport = cast("asyncio.Transport", lingering)
                self._watch_body(0)
        elif self._timer is None and (self._in_head or self._is_idle()):
            self._wait_for_head()

    def on_message_begin(self) -> None:
        """Start to measure the head of a new request."""
        super().on_message_begin()
        self._claimed = self._in_head = True
        self._head_bytes = 0
        if self._ending:
            self._wait_for_head()

    def on_url(self, url: bytes) -> None:
        """Add a part of the URL to the size of the request head."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header or trailer and check the header limits."""
        self._count(len(name) + len(value) + 4)
        if len(self.headers) >= self.limits.max_headers:
            self._refuse(HEAD_TOO_LARGE)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request after its last header; reject it if too many requests are pipelined."""
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._refuse(MALFORMED_REQUEST)
        self._set_timer(None)
        scope = cast("dict[str, Any]", self.scope)
        scope[IDENTIFIED], self._is_identified = self._identify, False
        scope[IS_CLOSED] = self.transport.is_closing
        self._in_head, self._in_body = False, True
        self._body_bytes = 0
        if _ABSOLUTE.match(self.url):
            self._resolve_target()
        super().on_headers_complete()
        if self._ending:
            self.cycle.keep_alive = False

    def _resolve_target(self) -> None:
        """Replace an absolute request target by its path, and the Host header by its host.

        Its host counts even if the Host header names another one (RFC 9112, section 3.2.2).
        """
        _, _, rest = self.url.partition(b"://")
        authority = re.split(rb"[/?#]", rest, maxsplit=1)[0]
        path = rest[len(authority) :]
        self.url = path if path.startswith(b"/") else b"/" + path
        first = next((at for at, (name, _) in enumerate(self.headers) if name == b"host"), None)
        if first is not None:  # a request without a Host header is refused
            self.headers[first] = b"host", authority

    def _identify(self) -> None:
        self._is_identified = True
        self.unidentified.pop(self, None)

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body; stop reading until the application requests more of it."""
        self._claimed = True
        self._body_bytes += len(body)
        super().on_body(body)
        if self.cycle.response_complete:
            self._drop(len(body))
        elif len(self.cycle.body) >= READ_BYTES:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """Stop the body timer when the last byte of the body has arrived."""
        self._claimed = True
        self._in_body = False
        self._set_timer(None)
        self._release_body()
        super().on_message_complete()
        if self.cycle.response_complete and not self.cycle.keep_alive:
            self.transport.close()

    def on_response_complete(self) -> None:
        """Discard the unread body, and count an idle connection as unidentified again."""
        super().on_response_complete()
        if self.cycle.response_complete:  # not a pipelined one that waits
            self.cycle.body.clear()
            if self._in_body and not self.transport.is_closing():
                times = IDENTIFIED_LINGER if self._is_identified else 1
                self._set_timer(LINGER_SECONDS * times, self.transport.close)
        if self._is_answered() and not self.transport.is_closing():  # its body may still arrive
            self.unidentified.pop(self, None)
            self.unidentified[self] = None

    def shutdown(self) -> None:
        """Close the connection after the current response.

        An idle connection is closed after ``LAST_REQUEST_SECONDS``, or after one more request.
        """
        self._ending = True
        if not self._is_answered():
            super().shutdown()
        elif self._is_idle():
            self._set_timer(LAST_REQUEST_SECONDS, self._head_is_late)

    def pause_writing(self) -> None:
        """Start to monitor how fast the client reads, because its write buffer is full."""
        super().pause_writing()
        if self._write_timer is None:
            self._watch_writes(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Stop monitoring how fast the client reads, because its write buffer is nearly empty."""
        self._stop_watching_writes()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Send an error response to a request that the parser or a limit rejected."""
        self._answer(self._refusal)

    def _forget(self) -> None:
        self.connections.discard(self)
        self.unidentified.pop(self, None)

    def _is_over(self) -> bool:
        return self._refused or self.transport.is_closing()

    def _has_no_request(self) -> bool:
        cycle: object = self.cycle  # the base class omits that it may be None
        return cycle is None

    def _is_answered(self) -> bool:
        return self._has_no_request() or self.cycle.response_complete

    def _is_idle(self) -> bool:
        return self._is_answered() and not self._in_head and not self._in_body

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.limits.max_head_bytes:
            self._refuse(HEAD_TOO_LARGE)

    def _refuse(self, kind: ProblemType) -> None:
        """Abort parsing; the parser then calls :meth:`send_400_response`."""
        self._refusal = kind
        raise _RefusedError

    def _answer(self, kind: ProblemType) -> None:
        """Send a problem document instead of the application's response, and close.

        If an earlier response on this connection is pending, abort the connection instead: the
        client could mistake the document for a part of that response.
        """
        if self._is_over():
            return
        log.info("http.refused", detail=kind.slug, status=kind.status)
        self._refused = True
        if not self._is_answered():
            cycle = self.cycle
            if cycle.response_started or self.pipeline or self._in_head:
                self.transport.abort()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(_document(kind))
        self._end_writing()
        self._set_timer(LINGER_SECONDS, self.transport.abort)
        self.flow.resume_reading()

    def _close(self) -> None:
        """Close the connection after a response, once the client has sent its body."""
        if self._in_body and self.cycle.response_complete:
            self._end_writing()
        else:
            self.transport.close()

    def _end_writing(self) -> None:
        with suppress(OSError):  # the client has reset the connection
            self.transport.write_eof()

    def _drop(self, size: int) -> None:
        """Count bytes that are read and dropped; read no more of them if these are too many."""
        self._dropped_bytes += size
        max_bytes = MAX_DROPPED_BYTES * (IDENTIFIED_DROPS if self._is_identified else 1)
        try:
            if not self._is_identified:
                self.bodies.hold(size, None)
        except ProblemError:
            self.flow.pause_reading()
        if self._dropped_bytes + READ_BYTES > max_bytes:
            self.flow.pause_reading()

    def _release_body(self) -> None:
        """Note that no more of a body arrives."""
        if self._dropped_bytes and not self._is_identified:
            self.bodies.release(self._dropped_bytes, None)
        self._dropped_bytes = 0
        if not self._has_no_request():
            self.cycle.transport = self.transport

    def _wait_for_head(self) -> None:
        self._set_timer(self.limits.head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        self._timer = None
        if self._in_head:
            self._answer(REQUEST_TIMEOUT)
        else:
            self.transport.close()

    def _watch_body(self, before: int) -> None:
        self._set_timer(self.limits.rate_seconds, self._time_out_slow_body, before)

    def _time_out_slow_body(self, before: int) -> None:
        self._timer = None
        came, min_bytes = self._body_bytes - before, self._least_bytes
        if came >= min_bytes or self.flow.read_paused:
            self._watch_body(self._body_bytes)
        else:
            self._answer(REQUEST_TIMEOUT)

    @property
    def _least_bytes(self) -> float:
        return self.limits.bytes_per_second * self.limits.rate_seconds

    def _watch_writes(self, unread: int) -> None:
        seconds = self.limits.rate_seconds
        self._write_timer = self.loop.call_later(seconds, self._abort_slow_reader, unread)

    def _abort_slow_reader(self, before: int) -> None:
        unread = self.transport.get_write_buffer_size()
        if before - unread >= self._least_bytes:
            self._watch_writes(unread)
            return
        log.info("http.reader_stalled", bytes=unread)
        self.transport.abort()

    def _stop_watching_writes(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _set_timer(self, seconds: float | None, *then: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = self.loop.call_later(seconds, *then)


class _Lingering:
    """Transport of a request; it is closed only after the client could read the response."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class _SmallReads(asyncio.BufferedProtocol):
    """Reads a connection in small pieces, and passes them to a :class:`BoundedProtocol`.

    A server chooses the size of its reads itself if the protocol has no buffer: 256 KB.
    """

    def __init__(self, protocol: BoundedProtocol, buffer: memoryview) -> None:
        """All connections may share ``buffer``: each read is passed on before the next one."""
        self._receive = protocol.data_received
        self._buffer = buffer
        self.connection_made = protocol.connection_made  # type: ignore[assignment]
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the bytes that were read."""
        self._receive(bytes(self._buffer[:nbytes]))


def bounded_by(limits: ConnectionLimits, bodies: BodyMemory) -> Any:
    """Return a factory of connections for one server, with the given limits.

    Its attribute ``unidentified`` has the connections without an authenticated caller.
    """
    state = {"limits": limits, "bodies": bodies, "unidentified": {}}
    protocol, buffer = type("BoundedProtocol", (BoundedProtocol,), state), bytearray(READ_BYTES)

    def connection(*arguments: Any, **options: Any) -> asyncio.BaseProtocol:
        return _SmallReads(protocol(*arguments, **options), memoryview(buffer))

    connection.unidentified = protocol.unidentified  # type: ignore[attr-defined]
    return connection


def _document(kind: ProblemType) -> bytes:
    """Return a problem document as a complete HTTP response."""
    request_id = uuid.uuid4().hex
    response = problem_response({"request_id": request_id}, ProblemError(kind))
    headers = [
        *response.raw_headers,
        (b"x-request-id", request_id.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
        (b"connection", b"close"),
    ]
    lines = [f"HTTP/1.1 {kind.status} {HTTPStatus(kind.status).phrase}".encode()]
    lines += [name + b": " + text for name, text in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + bytes(response.body)
