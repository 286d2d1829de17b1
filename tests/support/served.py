"""The HTTP layer behind a real server and real sockets, in the test's own event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import uvicorn
from fastapi import FastAPI

from caseworker.main.listeners import connection_limits
from caseworker.platform.http.protocol import ConnectionLimits, bounded_by
from caseworker.platform.http.request import BodyMemory
from caseworker.settings.schema import Settings


class Talk:
    """One connection to a server, with raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send bytes while the server accepts them."""
        self._writer.write(data)
        with suppress(ConnectionError):
            await self._writer.drain()

    async def rest(self) -> bytes:
        """Return all bytes that the server sends until it closes the connection."""
        said = b""
        with suppress(ConnectionError):
            while piece := await self._reader.read(65536):
                said += piece
        return said

    async def answer(self) -> bytes:
        """Return one answer with a Content-Length; the connection may stay open."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        return head + await self._reader.readexactly(length)

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


class Served:
    """A server that listens on this machine."""

    def __init__(self, port: int, server: uvicorn.Server, bodies: BodyMemory) -> None:
        self.port = port
        self.bodies = bodies
        self._server = server
        self._talks: list[Talk] = []

    async def connect(self, first: bytes = b"") -> Talk:
        """Open a connection and send the first bytes."""
        talk = Talk(*await asyncio.open_connection("127.0.0.1", self.port))
        self._talks.append(talk)
        if first:
            await talk.send(first)
        return talk

    async def ask(self, request: bytes) -> bytes:
        """Send bytes on a new connection; return everything received until it closes."""
        return await (await self.connect(request)).rest()

    async def identified(self, count: int) -> None:
        """Wait until ``count`` connections are open and the callers of all are identified."""
        protocol: Any = self._server.config.http_protocol_class
        async with asyncio.timeout(150):
            while (  # noqa: ASYNC110
                len(self._server.server_state.connections) < count or protocol.unidentified
            ):
                await asyncio.sleep(0)

    async def is_idle(self) -> bool:
        """Return whether no connection is open."""
        return not self._server.server_state.connections

    async def hang_up(self) -> None:
        """Close all connections."""
        for talk in self._talks:
            await talk.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@asynccontextmanager
async def served(app: FastAPI, **limits: Any) -> AsyncIterator[Served]:
    """Serve an application with the service's own protocol; ``limits`` change the defaults."""
    usual: ConnectionLimits = connection_limits(Settings())
    bodies: BodyMemory = app.state.shared.bodies
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        http=bounded_by(replace(usual, **limits), bodies),
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    server = _Server(config)
    serving = asyncio.create_task(server._serve())  # without the handlers of signals
    await server.listening.wait()
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield (open_server := Served(port, server, bodies))
        await open_server.hang_up()
    finally:
        server.should_exit = server.force_exit = True
        await serving
        for connection in list(server.server_state.connections):  # it read no end of them
            connection.transport.abort()
        await asyncio.sleep(0)
