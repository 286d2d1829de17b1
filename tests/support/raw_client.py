"""A client that sends any bytes as path, header or body, and finds faults in answers."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Ask:
    """A request."""

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the service."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body, parsed as strict JSON.

        Raises:
            ValueError: The body is not JSON.
        """
        return json.loads(self.body.decode(), parse_constant=_no_json)

    def fault(self) -> str | None:
        """Return the fault of an answer, or None.

        Faults are a 5xx, a refusal without a problem document, a body that does not match its JSON
        content type, and an answer without a request ID.
        """
        named = self.headers.get("x-request-id")
        kind = self.headers.get("content-type", "")
        if self.status >= 500:
            return "the service failed"
        if not named:
            return "no X-Request-ID"
        if self.status >= 400 and kind != "application/problem+json":
            return f"a refusal as {kind!r}"
        if self.status == 204 or not kind.endswith("json"):
            return None
        try:
            told = self.json()
        except ValueError as error:
            return f"no JSON: {error}"
        if self.status < 400:
            return None
        expected = {"status": self.status, "request_id": named}
        if {name: told.get(name) for name in expected} != expected:
            return f"a problem that says something else than its answer: {told}"
        if not str(told.get("type")).startswith("urn:caseworker:problem:"):
            return f"a problem without a type: {told}"
        return None


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


class RawClient:
    """Sends requests over one connection, and reconnects when the server closes it."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        """Use the server at ``url``, with these headers in every request."""
        parts = urlsplit(url)
        self._address = parts.hostname, parts.port
        usual = {"Host": parts.netloc, **(headers or {})}
        self._usual = {name: value.encode() for name, value in usual.items()}
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._hang_up()

    async def ask(self, request: Ask) -> Answer:
        """Send a request and return its answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        headers = {**self._usual, **request.headers}
        if request.body is not None:
            headers = {"Content-Type": b"application/json", **headers}
            headers["Content-Length"] = str(len(request.body)).encode()
        lines = [name.encode() + b": " + value for name, value in headers.items()]
        head = b"\r\n".join((f"{request.method} {request.path} HTTP/1.1".encode(), *lines))
        writer.write(head + b"\r\n\r\n" + (request.body or b""))
        answer = await self._answer(reader)
        if answer.headers.get("connection") == "close":
            await self._hang_up()
        return answer

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = [line.partition(":") for line in head[1:] if line]
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        status = int(head[0].split(" ")[1])
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(status, headers, body)

    async def _hang_up(self) -> None:
        if self._streams is not None:
            writer = self._streams[1]
            self._streams = None
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
