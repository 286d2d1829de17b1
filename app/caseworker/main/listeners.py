"""Sockets of a process besides the service's port: its health port, and for forwarded requests."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from os import unlink
from typing import Any, Final

import httpx
import structlog
import uvicorn

from caseworker.engine.supervision import set_within
from caseworker.main.configuration import StartupError
from caseworker.main.limits import allowed_hosts
from caseworker.main.process import Process
from caseworker.platform.http.application import build_health_api
from caseworker.platform.http.forwarding import Address, only_forwarded, own_address
from caseworker.platform.http.protocol import ConnectionLimits, bounded_by
from caseworker.settings.schema import Settings

log = structlog.get_logger(__name__)

KEEP_ALIVE_SECONDS: Final = 60
"""Seconds for which an unused connection for forwarded requests is kept, longer than its client
keeps it."""

DATE_SECONDS: Final = 1.0
"""Interval in seconds at which a server renews the header ``Date`` of its responses."""


@asynccontextmanager
async def health_served(process: Process, number: int = 0) -> AsyncIterator[None]:
    """Serve /healthz, /readyz and /metrics during the block, if a health port is configured.

    With several processes, process ``number`` (from 0) uses the configured port plus its number.

    Raises:
        StartupError: the port is not free.
    """
    port = process.settings.worker.health_port
    if port is None:
        yield
        return
    port += number if port else 0
    host = process.settings.server.host
    listening = _bound("worker.health_port", host, port)
    api = build_health_api(
        process.check,
        metrics=process.telemetry.metrics,
        allowed_hosts=allowed_hosts(process.settings),
    )
    log.info("worker.health", path=f"http://{host}:{listening.getsockname()[1]}/readyz")
    async with _served(api, [listening]):
        yield


def forwarding_address(settings: Settings, number: int | None) -> Address:
    """Return the address at which a process will receive forwarded requests.

    ``number`` is its number (from 0) if it has a port of its own for them: several processes share
    the port of the service, and a worker has none. Its own port is that of
    ``server.advertise_url`` plus its number.

    Raises:
        StartupError: the folder for its Unix socket cannot be used.
    """
    url = (settings.server.advertise_url or "").replace("{host}", socket.gethostname()) or None
    if url is not None and number is not None:
        url = str(httpx.URL(url).copy_with(port=_advertised_port(url) + number))
    try:
        return own_address(url)
    except OSError as error:
        raise StartupError(f"The folder for Unix sockets cannot be used: {error}") from None


@asynccontextmanager
async def forwarding_served(process: Process, app: Any, number: int | None) -> AsyncIterator[None]:
    """During the block, serve requests that other processes forward to this process.

    Without a forwarding address, do nothing. ``number`` is as for :func:`forwarding_address`.

    Raises:
        StartupError: the port is not free, or the Unix socket cannot be bound, for example because
            its path is too long.
    """
    if (address := process.address) is None:
        yield
        return
    settings, near = process.settings, socket.socket(socket.AF_UNIX)
    try:
        near.bind(address.socket)
    except OSError as error:
        near.close()
        advice = f"The Unix socket {address.socket} cannot be opened: {error}. Set TMPDIR."
        raise StartupError(advice) from None
    listening = [near]
    if address.url is not None and number is not None:
        port = _advertised_port(address.url)
        listening.append(_bound("server.advertise_url", settings.server.host, port))
    limits = bounded_by(connection_limits(settings), app.state.shared.bodies)
    try:
        forwarded = only_forwarded(app)
        async with _served(
            forwarded, listening, http=limits, timeout_keep_alive=KEEP_ALIVE_SECONDS
        ):
            yield
    finally:
        unlink(address.socket)


def connection_limits(settings: Settings) -> ConnectionLimits:
    """Return the size, time and count limits for client connections."""
    server = settings.server
    return ConnectionLimits(
        max_connections=server.max_connections,
        max_head_bytes=server.max_head_kb * 1024,
        max_headers=server.max_headers,
        head_seconds=server.head_timeout_seconds,
        bytes_per_second=server.min_kb_per_second * 1024,
    )


QUIET: Final[Mapping[str, Any]] = {
    "lifespan": "off",
    "log_config": None,
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,
}
"""Options of uvicorn with which a :class:`Server` only serves. The process logs, reports errors,
and is opened and closed around it."""


class Server(uvicorn.Server):
    """A server that waits for its end, where uvicorn polls ten times a second.

    It serves the connections that the system has accepted for it before it closes its sockets. The
    system would reset them.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Shut down."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Renew the header ``Date`` until the server ends."""
        while not await self.on_tick(0):
            await set_within(self._ending, DATE_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept all waiting connections, close the sockets, and wait for the last responses."""
        max_accepted = self.config.backlog
        waiting = [each for sock in sockets or () for each in islice(_accepted(sock), max_accepted)]
        for server in self.servers:
            server.close()
        for each in waiting:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, each)
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.BaseProtocol:
        config, state = self.config, self.lifespan.state
        protocol: Any = config.http_protocol_class
        opened: asyncio.BaseProtocol = protocol(config, self.server_state, state)
        return opened


@asynccontextmanager
async def _served(
    app: Any, listening: Sequence[socket.socket], **options: Any
) -> AsyncIterator[None]:
    server = Server(uvicorn.Config(app, timeout_graceful_shutdown=1, **QUIET, **options))
    serving = asyncio.create_task(server._serve(list(listening)), name="listener")
    try:
        yield
    finally:
        server.end()
        await serving


def _accepted(listening: socket.socket) -> Iterator[socket.socket]:
    """Accept the connections that wait at a socket now."""
    with suppress(OSError):  # none waits, or this process has too many open files
        while True:
            accepted, _ = listening.accept()
            accepted.setblocking(False)
            yield accepted


def _advertised_port(url: str) -> int:
    parsed = httpx.URL(url)
    return parsed.port or (443 if parsed.scheme == "https" else 80)


def _bound(setting: str, host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise StartupError(f"{setting}: cannot bind to {host}:{port}: {error}") from None
