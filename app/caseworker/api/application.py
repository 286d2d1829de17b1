"""Joins the HTTP layer: routes, errors, limits, documentation."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route

from caseworker.access.keys import Keys
from caseworker.api import problem_types as types
from caseworker.api import problems
from caseworker.api.admission import CaseAdmission, GraphAdmission
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
from caseworker.chats.service import Chats
from caseworker.runs.definitions import Definitions

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

_DESCRIPTION = (
    "Runs agents for other services inside hard budgets, cancellable at any moment, with a trace "
    "of every call. Errors are problem documents (RFC 9457) with a stable type; unknown fields are "
    "refused; every response carries X-Request-ID.\n\n"
    'Begin with `POST /runs` and `{"input": "What is 6 * 7?"}`; `GET /runs/{run_id}` has the '
    "answer. Once there are keys, send one as `Authorization: Bearer ...`.\n\n"
    "How to add tools, functions and providers of models: [extending](docs/extending.md)."
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
    """Return the application; ``lifespan`` starts and stops what it is built from.

    ``pages`` are routes that are asked before those of the API, but for those of runs.
    ``telemetry`` may name providers of spans and metrics. The framework's own log records stay off
    whatever it says: they would hold what callers sent.
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
        # Routes of the application itself: those of an included router are looked for twice. Each
        # is asked after those before it, so the ones that are asked for most come first.
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
    models = services.models.table
    graph_runs = GraphAdmission(limits, definitions, models)
    app.state.api = ApiContext(
        services=services,
        keys=Keys(services.keys),
        limits=limits,
        streams=Shares(limits.max_event_streams, types.TOO_MANY_STREAMS),
        connections=Shares(limits.max_connections, types.TOO_MANY_CONNECTIONS),
        bodies=BodiesUnderWay(limits.max_bodies_bytes),
        cases=CaseAdmission(limits, services.tools, models),
        graph_runs=graph_runs,
        definitions=definitions,
        chats=Chats(services.threads, services.runs),
        thread_runs=ThreadAdmission(limits, definitions, graph_runs, services.quotas),
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
    """Return an application that only tells how its process stands."""
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
