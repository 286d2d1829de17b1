"""A worker process: executes queued runs and serves only health and metrics endpoints."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
import uvicorn

from caseworker.main.configuration import StartupError
from caseworker.main.lifetime import end_undisturbed, run_to_end
from caseworker.main.process import Process, allowed_hosts, collect_garbage_seldom
from caseworker.platform.http.application import build_health_api
from caseworker.settings.schema import Settings

log = structlog.get_logger(__name__)


def work(settings: Settings, url: str) -> None:
    """Execute queued runs until SIGINT or SIGTERM, without serving the API.

    Raises:
        StartupError: the health port is not free.
        StoreUnavailableError: the database does not answer.
    """
    run_to_end(_work(Process(settings, url, executes=True)))
    end_undisturbed()


async def _work(process: Process) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(process.opened())
        await stack.enter_async_context(health_served(process))
        collect_garbage_seldom()
        await ended.wait()
        process.begin_closing()


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
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise StartupError(f"worker.health_port: cannot bind to {host}:{port}: {error}") from None
    config = uvicorn.Config(
        build_health_api(
            process.check,
            metrics=process.telemetry.metrics,
            allowed_hosts=allowed_hosts(process.settings),
        ),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    log.info("worker.health", path=f"http://{host}:{listening.getsockname()[1]}/readyz")
    serving = asyncio.create_task(server._serve([listening]), name="health")
    try:
        yield
    finally:
        server.should_exit = True
        await serving
