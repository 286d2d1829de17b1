"""Serve the API; open and close the service process together with the server."""

import asyncio
import resource
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from types import FrameType, MappingProxyType
from typing import Any

import uvicorn
from fastapi import FastAPI

from caseworker.faces.mcp_server.endpoint import McpEndpoint
from caseworker.features.access.authentication import Authentication
from caseworker.features.definitions.definitions import Definitions
from caseworker.main.agent_folder import (
    AgentFile,
    read_agents,
    register_agents,
    with_code_agents,
)
from caseworker.main.configuration import StartupError, logged_settings, url_of
from caseworker.main.features import FEATURES, PROBLEM_TYPES, open_features
from caseworker.main.lifetime import collect_garbage_seldom, end_undisturbed, run_to_end
from caseworker.main.listeners import (
    QUIET,
    Server,
    connection_limits,
    forwarding_address,
    forwarding_served,
    health_served,
)
from caseworker.main.process import Process
from caseworker.main.supervisor import WorkerSlot, reserve
from caseworker.models.recorded import Recorder
from caseworker.platform.caller import DEFAULT_TENANT
from caseworker.platform.http.application import build_api
from caseworker.platform.http.protocol import bounded_by
from caseworker.platform.http.request import LabelledRoute
from caseworker.runs.http import runs
from caseworker.runs.http.events import SERVER_SENT_EVENT_SCHEMA
from caseworker.runs.http.limits import ApiLimits
from caseworker.runs.service import FORWARD_SECONDS
from caseworker.settings.schema import Settings
from caseworker.ui.pages import viewer_routes

_OTHER_FILES = 500
"""Open files of a process other than client connections."""

Started = Callable[[str], Awaitable[None]]
"""Callback that is called with the server's URL once it accepts requests."""


def build_app(
    process: Process,
    *,
    metrics: bool = True,
    services: Mapping[type, Any] = MappingProxyType({}),
    **options: Any,
) -> FastAPI:
    """Return the ASGI application, whose lifespan opens and closes the process.

    ``metrics`` is whether it serves the metrics of this process at /metrics. ``services`` replaces
    services of the process, by type. ``options`` replaces arguments of :func:`build_api`.
    """
    number = options.get("version", version("caseworker"))
    all_services = open_features(process.parts, services)[0] if services else process.services
    usual: dict[str, Any] = {
        "authentication": all_services[Authentication],
        "readiness": process.check,
        "metrics": process.telemetry.metrics if metrics else None,
        "requests": process.telemetry.requests,
        "version": number,
        "lifespan": lambda _: process.opened(),
        "telemetry": process.telemetry.of_requests,
        "forwarding_secret": process.address and process.address.secret,
    }
    return build_api(
        [
            *runs.router.routes,  # the most frequent ones come first
            *viewer_routes(),  # before the routes of traces: browsers get a page instead
            *(route for feature in FEATURES for route in feature.routes),
            LabelledRoute("/mcp", McpEndpoint(number), include_in_schema=False),
        ],
        errors={error: kind for each in FEATURES for error, kind in each.errors.items()},
        problems=PROBLEM_TYPES,
        schemas={"ServerSentEvent": SERVER_SENT_EVENT_SCHEMA},
        services=all_services,
        limits=all_services[ApiLimits],
        **{**usual, **options},
    )


def serve(
    settings: Settings,
    url: str,
    *,
    executes: bool,
    started: Started,
    recorder: Recorder | None = None,
    place: WorkerSlot | None = None,
) -> None:
    """Serve the API until a signal ends the process.

    ``executes`` is whether the process also executes runs. ``started`` is called with the URL once
    it accepts requests. ``recorder`` stores model replies.

    ``place`` is the slot of a supervised process. Supervised processes share the port, and a
    metrics request could reach any of them. Each serves its metrics only on its own health port.

    Raises:
        StoreUnavailableError: the database does not answer.
        StartupError: an agent definition in the configured folder is invalid, or another program
            uses the port.
    """
    files = read_agents(settings.agents.folder)
    number = None if place is None else place.number
    address = forwarding_address(settings, number) if executes else None
    process = Process(
        settings, url, executes=executes, recorder=recorder, address=address, place=place
    )
    app = build_app(process, metrics=place is None or place.is_only)
    config = uvicorn.Config(
        app,
        **QUIET,
        host=settings.server.host,
        port=settings.server.port,
        loop="uvloop",
        http=bounded_by(connection_limits(settings), app.state.shared.bodies),
        timeout_keep_alive=settings.server.keep_alive_seconds,
        ws="none",
        timeout_graceful_shutdown=int(settings.shutdown.grace_seconds + FORWARD_SECONDS) + 1,
    )
    _allow_connections(settings.server.max_connections)
    server = _Server(config, process, files, started, place)
    sockets = reserve(config.host, config.port) if place is None else list(place.sockets)
    run_to_end(server.serve(sockets), handles_signals=True)
    end_undisturbed()


def create_app() -> FastAPI:
    """Return the API application, which uses the configured database.

    Raises:
        StartupError: the configuration is invalid, or ``database.url`` is not set.
    """
    settings = logged_settings()
    url = settings.database.url
    if url is None:
        raise StartupError(
            "database.url is required: only the caseworker command runs an embedded database."
        )
    executes = settings.worker.enabled
    address = forwarding_address(settings, None) if executes else None
    process = Process(settings, url.get_secret_value(), executes=executes, address=address)

    @asynccontextmanager
    async def served(app: FastAPI) -> AsyncIterator[None]:
        async with process.opened(), forwarding_served(process, app, None):
            yield

    return build_app(process, lifespan=served)


@asynccontextmanager
async def opened(process: Process, agents: Sequence[AgentFile]) -> AsyncIterator[None]:
    """Open a process and register the operator's agents before the first request."""
    all_agents = with_code_agents(agents, process.code)
    async with process.opened():
        await register_agents(all_agents, process.services[Definitions], DEFAULT_TENANT)
        yield


class _Server(Server):
    """A server that reports when it is ready and notifies its process at once of a shutdown."""

    def __init__(
        self,
        config: uvicorn.Config,
        process: Process,
        agents: Sequence[AgentFile],
        started: Started,
        place: WorkerSlot | None,
    ) -> None:
        super().__init__(config)
        self._place = place
        self._process = process
        self._agents = agents
        self._tell_started = started
        self._telling: asyncio.Task[None] | None = None

    async def _serve(self, sockets: list[socket.socket] | None = None) -> None:
        async with opened(self._process, self._agents), AsyncExitStack() as stack:
            if (place := self._place) is not None:
                await stack.enter_async_context(health_served(self._process, place.number))
            number = None if place is None else place.number
            app = self.config.app
            await stack.enter_async_context(forwarding_served(self._process, app, number))
            await super()._serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._process.sessions.url = self._url()
            collect_garbage_seldom()
            self._telling = asyncio.ensure_future(self._tell_started(self._url()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain requests and runs concurrently, so that shutdown takes one grace period only."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._process.drain(), name="drain")
            await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down gracefully; answer clients that wait for a run first, so they cause no delay.

        Unlike uvicorn, do not raise the signal again afterwards: the process exits with 0.
        """
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        # Not in the signal handler: it may interrupt the code whose state this changes.
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(self._process.begin_closing)
        loop.call_soon_threadsafe(self.end)

    def _url(self) -> str:
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return url_of(host, port)


def _allow_connections(count: int) -> None:
    """Raise the soft limit of open files, up to the hard limit, to fit the connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft_limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard))
