"""Assemble the HTTP layer: routes, error handlers, limits and documentation."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route

from caseworker.api import problem_types as types
from caseworker.api import problems
from caseworker.api.admission import admissions
from caseworker.api.api_request import ApiContext, BodiesUnderWay
from caseworker.api.documentation import describe
from caseworker.api.mcp_endpoint import McpEndpoint
from caseworker.api.mcp_offers import agent_tools, case_tools
from caseworker.api.request_envelope import AllowedHosts, RequestEnvelope, RequestLog
from caseworker.api.routes import (
    agents,
    approvals,
    artifacts,
    catalog,
    docs,
    events,
    graphs,
    health,
    keys,
    quotas,
    runs,
    schedules,
    threads,
    traces,
    webhooks,
)
from caseworker.api.services import (
    READINESS_SECONDS,
    ApiLimits,
    ApiServices,
    MetricsAccess,
    Readiness,
)
from caseworker.api.shares import Shares
from caseworker.api.thread_admission import ThreadAdmission
from caseworker.features.access.keys import Keys
from caseworker.features.threads.service import Chats
from caseworker.runs.definitions import Definitions

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

_DESCRIPTION = (
    "Runs LLM agents for other services within hard budgets. Runs can be cancelled at any time, "
    "and every call is traced. Errors are problem documents (RFC 9457) with a stable type. "
    "Unknown fields are rejected. Every response has an X-Request-ID header.\n\nStart with `POST "
    '/runs` and `{"input": "What is 6 * 7?"}`; `GET /runs/{run_id}` returns the answer. After '
    "you create an API key, send it as `Authorization: Bearer ...`.\n\nTo add tools, functions "
    "and model providers, see [extending](docs/extending.md)."
)


def build_api(
    services: ApiServices,
    limits: ApiLimits,
    *,
    version: str,
    pages: Sequence[BaseRoute] = (),
    lifespan: Lifespan | None = None,
    telemetry: TelemetryConfig | None = None,
) -> FastAPI:
    """Build the API application.

    ``lifespan`` starts and stops the services that the routes use. ``pages`` are routes that are
    matched before those of the API, except those for runs. ``telemetry`` may name providers of
    spans and metrics. The framework's own log records are always disabled, because they would
    contain data sent by callers.
    """
    parts = (
        traces,
        events,
        artifacts,
        approvals,
        threads,
        graphs,
        agents,
        keys,
        quotas,
        schedules,
        webhooks,
        catalog,
        health,
        docs,
    )
    app = FastAPI(
        title="Caseworker",
        version=version,
        description=_DESCRIPTION,
        # Routes of the application itself, because those of an included router are matched twice.
        # They are matched in order, so the most frequent ones come first.
        routes=[
            *runs.router.routes,
            *pages,
            *(route for part in parts for route in part.router.routes),
            Route("/mcp", McpEndpoint(version, (case_tools, agent_tools)), include_in_schema=False),
        ],
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=problems.handlers(),
        middleware=[
            Middleware(
                RequestEnvelope,
                hosts=AllowedHosts(limits.allowed_hosts),
                requests=RequestLog(services.requests, lines=limits.logs_requests),
            )
        ],
        telemetry={**(telemetry or {}), "logs": False},
    )
    app.state.readiness = services.readiness, limits.readiness_seconds
    app.state.metrics = services.metrics
    definitions = Definitions(services.definitions, services.graph_checks, limits.of_graphs)
    step_types = [each["name"] for each in services.node_types.describe()]
    models = services.models.table
    admitted = admissions(limits, definitions, services.tools, models, step_types)
    app.state.api = ApiContext(
        services=services,
        keys=Keys(services.keys),
        limits=limits,
        streams=Shares(limits.max_event_streams, types.TOO_MANY_STREAMS),
        connections=Shares(limits.max_connections, types.TOO_MANY_CONNECTIONS),
        bodies=BodiesUnderWay(limits.max_bodies_bytes),
        admissions=admitted,
        definitions=definitions,
        chats=Chats(services.threads, services.runs),
        thread_runs=ThreadAdmission(limits, definitions, admitted, services.quotas),
    )
    app.state.openapi_documents = {}
    app.state.openapi_writing = asyncio.Lock()
    describe(app)
    return app


def build_health_api(
    readiness: Readiness,
    *,
    metrics: MetricsAccess | None,
    allowed_hosts: frozenset[str] | None,
) -> FastAPI:
    """Build an application that serves only health, readiness and metrics of this process."""
    app = FastAPI(
        routes=[*health.router.routes],
        openapi_url=None,
        exception_handlers=problems.handlers(),
        middleware=[
            Middleware(RequestEnvelope, hosts=AllowedHosts(allowed_hosts), requests=RequestLog())
        ],
    )
    app.state.readiness = readiness, READINESS_SECONDS
    app.state.metrics = metrics
    return app
