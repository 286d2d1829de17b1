"""HTTP/1.1 with h11 over an asyncio protocol, with broken endings that frameworks forbid."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import h11


class Request:
    """One completely received request."""

    def __init__(self, head: h11.Request, body: bytes) -> None:
        target = urlsplit(head.target.decode())
        self.method = head.method.decode()
        self.path = target.path
        self.query = dict(parse_qsl(target.query))
        self.headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
        self._body = body

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; empty for anything else."""
        try:
            document = json.loads(self._body)
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}


Handler = Callable[[Request, "Connection"], Awaitable[None]]


class Connection(asyncio.Protocol):
    """One client connection; a handler's task is cancelled when the client disconnects."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self._http = h11.Connection(h11.SERVER)
        self._head: h11.Request | None = None
        self._body: list[bytes] = []
        self._answering: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answering is not None:
            self._answering.cancel()

    def _advance(self) -> None:
        while not isinstance(event := self._next_event(), type):
            if isinstance(event, h11.Request):
                self._head, self._body = event, []
            elif isinstance(event, h11.Data):
                self._body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                assert self._head is not None
                request = Request(self._head, b"".join(self._body))
                self._answering = asyncio.create_task(self._answer(request))
            else:
                return

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError:
            self.abort()
            return h11.NEED_DATA

    async def _answer(self, request: Request) -> None:
        await self._handle(request, self)
        self._answering = None
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._advance()
        elif self._transport is not None:
            self._transport.close()

    def send_head(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Start a response."""
        self._send(h11.Response(status_code=status, headers=list(headers)))

    def send_data(self, data: bytes) -> None:
        """Send a part of the body."""
        self._send(h11.Data(data=data))

    def send_end(self) -> None:
        """End the response; the client may send another request."""
        self._send(h11.EndOfMessage())

    def send_json(self, status: int, document: Any) -> None:
        """Send a whole response."""
        body = json.dumps(document).encode()
        length = ("content-length", str(len(body)))
        self.send_head(status, [("content-type", "application/json"), length])
        self.send_data(body)
        self.send_end()

    def abort(self) -> None:
        """Drop the connection without ending the response."""
        self._answering = None
        if self._transport is not None:
            self._transport.abort()

    def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data and self._transport is not None:
            self._transport.write(data)
