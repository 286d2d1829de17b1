"""Limit the memory and the time that a connection may use before its request is dispatched.

The base protocol accepts heads (request line and headers) of any length and waits indefinitely for
the rest of a request. Here the head is limited in bytes and number of headers, and must arrive in
time. Bodies must be sent, and responses read, at a minimum rate. The number of connections per
process is limited. Rejected requests receive a problem document with an X-Request-ID, like all
others.

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
import uuid
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar

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
from caseworker.platform.http.request import IDENTIFIED

log = structlog.get_logger(__name__)

_PIECE_BYTES = 32 * 1024
"""Maximum size passed to the parser at once, so that long heads are detected early."""
_MAX_PIPELINED = 4
"""Number of pipelined requests that may wait for the response to the first one."""
LAST_REQUEST_SECONDS = 0.5
"""How long an unused connection stays open when the server shuts down."""
_LINGER_SECONDS = 1.0
"""How long a rejected client may keep sending; an early reset could discard the response."""


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
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received data in pieces, and set a timer if the request is incomplete."""
        if self._is_over():
            return
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data if len(data) <= _PIECE_BYTES else data[start : start + _PIECE_BYTES]
            self._claimed = False
            super().data_received(piece)
            self._unclaimed_bytes = 0 if self._claimed else self._unclaimed_bytes + len(piece)
            if self._is_over():
                return
            if self._unclaimed_bytes > self.limits.max_head_bytes:
                self._answer(HEAD_TOO_LARGE)
                return
        if self._in_body:
            if self._timer is None:
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
        """Dispatch the request, whose head is complete."""
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._refuse(MALFORMED_REQUEST)
        self._set_timer(None)
        known = partial(self.unidentified.pop, self, None)
        self.scope[IDENTIFIED] = known  # type: ignore[typeddict-unknown-key]
        self._in_head, self._in_body = False, True
        self._body_bytes = 0
        super().on_headers_complete()
        if self._ending:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Add a part of the body to the received bytes and pass it on."""
        self._claimed = True
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Mark the request as completely received."""
        self._claimed = True
        self._in_body = False
        self._set_timer(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Discard the unread body, and count an idle connection as unidentified again."""
        if self.cycle.response_complete:  # not a pipelined one that waits
            self.cycle.body.clear()
        super().on_response_complete()
        if self._is_idle() and not self.transport.is_closing():
            self.unidentified.pop(self, None)
            self.unidentified[self] = None

    def shutdown(self) -> None:
        """Close the connection after the current response, or after one more request."""
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

    def _is_answered(self) -> bool:
        cycle: object = self.cycle  # the base class omits that it may be None
        return cycle is None or self.cycle.response_complete

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
        self.transport.write_eof()
        self._set_timer(_LINGER_SECONDS, self.transport.abort)

    def _wait_for_head(self) -> None:
        self._set_timer(self.limits.head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        self._timer = None
        if self._in_head:
            self._answer(REQUEST_TIMEOUT)
        else:
            self.transport.close()

    def _watch_body(self, before: int) -> None:
        self._set_timer(self.limits.rate_seconds, self._judge_body, before)

    def _judge_body(self, before: int) -> None:
        self._timer = None
        came, least = self._body_bytes - before, self._least_bytes
        if self.cycle.response_complete:
            self.transport.close()
        elif came >= least or self.flow.read_paused:
            self._watch_body(self._body_bytes)
        else:
            self._answer(REQUEST_TIMEOUT)

    @property
    def _least_bytes(self) -> float:
        return self.limits.bytes_per_second * self.limits.rate_seconds

    def _watch_writes(self, unread: int) -> None:
        seconds = self.limits.rate_seconds
        self._write_timer = self.loop.call_later(seconds, self._judge_reader, unread)

    def _judge_reader(self, before: int) -> None:
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


def bounded_by(limits: ConnectionLimits) -> type[BoundedProtocol]:
    """Return a subclass of :class:`BoundedProtocol` for one server, with the given limits."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "unidentified": {}})


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
