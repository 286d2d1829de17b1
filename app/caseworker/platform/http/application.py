"""Assemble the HTTP layer: routes, error handlers, limits and documentation.

Every request passes the host check, gets a request ID, and is logged and counted.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, Protocol

import structlog
from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caseworker.platform.http import docs, health
from caseworker.platform.http.deadline import DEADLINE, Deadline
from caseworker.platform.http.forwarding import HEADER as FORWARDED_HEADER
from caseworker.platform.http.forwarding import ForwardedRequests
from caseworker.platform.http.health import READINESS_SECONDS, MetricsAccess, Readiness
from caseworker.platform.http.openapi import describe
from caseworker.platform.http.problems import (
    DOCS_URL,
    HOST_REFUSED,
    INTERNAL,
    MALFORMED_REQUEST,
    TOO_MANY_CONNECTIONS,
    UNAVAILABLE,
    Errors,
    ProblemError,
    Problems,
    ProblemType,
    invalid,
    problem_response,
)
from caseworker.platform.http.request import (
    RELEASES,
    Authenticator,
    BodyMemory,
    HttpContext,
    HttpLimits,
    Shares,
    address_of,
    host_name,
)
from caseworker.platform.logs.redaction import without_keys
from caseworker.platform.logs.trace_context import HEADER, below_caller

log = structlog.get_logger(__name__)

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
MAX_QUERY_PARAMETERS = 64
_HOST: Final = re.compile(
    r"(?:[A-Za-z0-9._~%!$&'()*+,;=-]*|\[[A-Za-z0-9:.%_~-]*\])(?::[0-9]*)?", re.ASCII
)
"""Form of a Host header: a name or an address, and a port. It may be empty."""
_ONE_HOST: Final = "Send one Host header with a host name or an address, and optionally a port."
_PROBES = frozenset({"/healthz", "/readyz"})
"""Health probes may use any host name."""


_QUIET = _PROBES | {"/metrics"}
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_EXPOSED = (
    "X-Request-ID, Location, Retry-After, ETag, RateLimit, RateLimit-Policy, Preference-Applied, "
    "WWW-Authenticate, Allow, X-Should-Retry"
)
"""Response headers that pages of allowed origins may read."""
_PREFLIGHT_SECONDS = "600"
_GIVEN_UP = 499
"""Status logged for requests whose client disconnected before the response."""


_DESCRIPTION = (
    "Runs LLM agents for other services within hard budgets. Runs can be cancelled at any time, "
    "and every call is traced. Errors are problem documents (RFC 9457) with a stable type. "
    "Unknown fields are rejected. Every response has an X-Request-ID header.\n\nStart with `POST "
    '/runs` and `{"input": "What is 6 * 7?"}`; `GET /runs/{run_id}` returns the answer. After '
    "you create an API key, send it as `Authorization: Bearer ...`.\n\nTo add tools, functions "
    "and model providers, see [extending](docs/extending.md)."
)


class RequestObserver(Protocol):
    """Counts completed requests for the metrics."""

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record a completed or abandoned request; ``route`` is its path template."""
        ...


def build_api(
    routes: Sequence[BaseRoute],
    *,
    errors: Errors,
    problems: Iterable[ProblemType],
    schemas: Mapping[str, Any],
    services: Mapping[type, Any],
    limits: HttpLimits,
    authentication: Authenticator,
    readiness: Readiness,
    readiness_seconds: float = READINESS_SECONDS,
    metrics: MetricsAccess | None = None,
    requests: RequestObserver | None = None,
    version: str,
    lifespan: Lifespan | None = None,
    telemetry: TelemetryConfig | None = None,
    forwarding_secret: str | None = None,
) -> FastAPI:
    """Build the API application.

    ``routes`` are matched in order. They access ``services`` by type. ``errors`` maps the errors
    that they raise to problems. ``problems`` are all problem types. ``schemas`` are additional
    schemas for the OpenAPI document, for types without a pydantic model. ``lifespan`` starts and
    stops the services. ``requests`` counts requests; ``metrics`` is served at /metrics.
    ``forwarding_secret`` signs the requests that other processes forward to this one.
    ``telemetry`` may name providers of spans and metrics. The framework's own log records are
    always disabled, because they would contain data sent by callers.
    """
    refusals = Problems(errors)
    app = FastAPI(
        title="Caseworker",
        version=version,
        description=_DESCRIPTION,
        # Routes of the application itself, because those of an included router are matched twice.
        routes=[*routes, *health.router.routes, *docs.router.routes],
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=refusals.handlers(),
        middleware=[
            Middleware(
                RequestEnvelope,
                hosts=limits.allowed_hosts,
                origins=limits.cors_origins,
                docs_url=limits.docs_url,
                requests=requests,
                logs_requests=limits.logs_requests,
                forwarding_secret=forwarding_secret,
                max_seconds=limits.max_seconds,
            )
        ],
        telemetry={**(telemetry or {}), "logs": False},
    )
    app.state.readiness = readiness, readiness_seconds
    app.state.metrics = metrics
    app.state.shared = HttpContext(
        limits=limits,
        authentication=authentication,
        problems=refusals,
        services=services,
        connections=Shares(limits.max_connections, TOO_MANY_CONNECTIONS),
        bodies=BodyMemory(limits.max_bodies_bytes),
    )
    app.state.openapi_documents = {}
    app.state.openapi_writing = asyncio.Lock()
    describe(app, problems, schemas, docs_url=limits.docs_url)
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
        exception_handlers=Problems({}).handlers(),
        middleware=[Middleware(RequestEnvelope, hosts=allowed_hosts)],
    )
    app.state.readiness = readiness, READINESS_SECONDS
    app.state.metrics = metrics
    return app


class RequestEnvelope:
    """Gives every request an ID, and every failure a problem document; counts and logs requests.

    The ID is the caller's ``X-Request-ID`` if it is well-formed and contains no API key, else a
    generated one. It appears in the response, and in all log lines of the request and the run that
    it creates.

    Unknown host names are rejected, as protection against DNS rebinding. A malicious page can point
    its own host name at this machine, and browsers then treat the service as same-origin. Its
    requests still carry that name. IP addresses are therefore always accepted, because they cannot
    be rebound, and names only if they are known.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: frozenset[str] | None,
        origins: frozenset[str] = frozenset(),
        docs_url: str | None = None,
        requests: RequestObserver | None = None,
        logs_requests: bool = False,
        forwarding_secret: str | None = None,
        max_seconds: float | None = None,
    ) -> None:
        """Accept IP addresses, ``localhost`` and the names ``hosts``; None accepts every name.

        Browsers may pass responses on to pages of ``origins`` (CORS). Requests that use the
        database and have no response after ``max_seconds`` get 503.
        """
        self._app = app
        self._forwarded = ForwardedRequests(app, secret=forwarding_secret)
        self._hosts = hosts and frozenset(map(str.lower, hosts))
        self._origins = origins
        self._docs_url = docs_url
        self._requests = requests
        self._logs_requests = logs_requests
        self._max_seconds = max_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, headers = time.perf_counter(), Headers(scope=scope)
        request_id = scope["request_id"] = _request_id(headers)
        scope[RELEASES], scope[DOCS_URL] = [], self._docs_url
        cors = self._cors(scope, headers) if "origin" in headers else {}
        reply = _Reply(send, request_id, cors, varies=bool(self._origins))
        if self._max_seconds is not None:
            reply.deadline = Deadline(self._max_seconds, scope, receive, reply.send)
            scope[DEADLINE] = reply.deadline
        trace_headers = headers.getlist(HEADER)  # several are ignored
        with (
            structlog.contextvars.bound_contextvars(request_id=request_id),
            below_caller(trace_headers[0]) if len(trace_headers) == 1 else nullcontext(),
        ):
            try:
                await self._answer(scope, receive, reply, headers)
            finally:
                await reply.close()
                for release in scope[RELEASES]:
                    release()
                seconds = time.perf_counter() - began
                self._answered(scope, reply.status, seconds, streamed=reply.streamed)

    async def _answer(
        self, scope: Scope, receive: Receive, reply: "_Reply", headers: Headers
    ) -> None:
        """Pass a request on, or reject it; after a failure, send a problem document."""
        try:
            if (refused := self._refused(scope, headers)) is not None:
                await problem_response(scope, refused)(scope, receive, reply.send)
            elif "access-control-max-age" in reply.cors:
                await Response(status_code=204)(scope, receive, reply.send)
            else:
                app = self._forwarded if FORWARDED_HEADER in headers else self._app
                await app(scope, receive, reply.send_in_time)
        except ClientDisconnect:
            return  # the client is gone
        except asyncio.CancelledError:
            if reply.deadline is not None and reply.deadline.has_passed:
                return
            if reply.started:  # the process shuts down
                raise
            response = problem_response(scope, ProblemError(UNAVAILABLE))
            await response(scope, receive, reply.send)
        except Exception:
            log.exception("http.request_broke", method=scope["method"])
            if reply.started:
                raise
            response = problem_response(scope, ProblemError(INTERNAL))
            await response(scope, receive, reply.send)

    def _cors(self, scope: Scope, headers: Headers) -> dict[str, str]:
        """Return the CORS headers of a response; empty if the origin of its request is not allowed.

        Callers send a bearer token, so the browser's own credentials (cookies) are never allowed.
        """
        origin = headers.get("origin", "")
        if origin.lower() not in self._origins:
            return {}
        allowed = {"access-control-allow-origin": origin}
        if scope["method"] != "OPTIONS" or "access-control-request-method" not in headers:
            return {**allowed, "access-control-expose-headers": _EXPOSED}
        return {
            **allowed,
            "access-control-allow-methods": ", ".join(sorted(_METHODS)),
            "access-control-allow-headers": headers.get("access-control-request-headers", ""),
            "access-control-max-age": _PREFLIGHT_SECONDS,
        }

    def _refused(self, scope: Scope, headers: Headers) -> ProblemError | None:
        """Return why a request is rejected before its query is parsed, or None."""
        hosts = headers.getlist("host")
        if len(hosts) > 1 or not all(map(_HOST.fullmatch, hosts)):
            return ProblemError(MALFORMED_REQUEST, _ONE_HOST)
        if not hosts and scope["http_version"] == "1.1":
            return ProblemError(MALFORMED_REQUEST, _ONE_HOST)
        if not self._allows("".join(hosts)) and scope["path"] not in _PROBES:
            return ProblemError(HOST_REFUSED)
        if scope["query_string"].count(b"&") >= MAX_QUERY_PARAMETERS:
            return invalid("query", f"At most {MAX_QUERY_PARAMETERS} query parameters are allowed.")
        return None

    def _allows(self, host: str) -> bool:
        """Return whether a Host header's value is accepted; an empty one (no header) always is."""
        if self._hosts is None or not host:
            return True
        name = host_name(host)
        return name in ("localhost", *self._hosts) or address_of(name) is not None

    def _answered(self, scope: Scope, status: int, seconds: float, *, streamed: bool) -> None:
        """Record a request under its route template, because paths contain IDs.

        Streamed responses, which last as long as their run, are logged but not counted.
        """
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route: str = getattr(scope.get("route"), "path", "")
        if self._requests is not None and not streamed:
            self._requests.answered(method, route, status, seconds)
        if self._logs_requests and route not in _QUIET:
            log.info(
                "http.request",
                method=method,
                route=route,
                status=int(status),
                seconds=round(seconds, 4),
                tenant=scope.get("tenant"),
            )


class _Reply:
    """Sends the response to one request with the headers that all have, and notes its status."""

    def __init__(
        self, send: Send, request_id: str, cors: Mapping[str, str], *, varies: bool
    ) -> None:
        """``varies`` is whether responses depend on the origin of their request."""
        self._send = send
        self._request_id = request_id
        self._varies = varies
        self.cors = cors
        self.deadline: Deadline | None = None
        self.started = self.streamed = False
        self.status = _GIVEN_UP

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            self._start(message)
        await self._send(message)

    async def send_in_time(self, message: Message) -> None:
        """Send a part of the response, unless the deadline has responded."""
        if self.deadline is None or not self.deadline.has_passed:
            await self.send(message)

    async def close(self) -> None:
        """Remove the deadline."""
        if self.deadline is not None:
            await self.deadline.close()
            self.deadline = None  # it refers to this object

    def _start(self, message: Message) -> None:
        self.started, self.status = True, message["status"]
        if self.deadline is not None:
            self.deadline.lift()
        message.setdefault("headers", ())
        headers = MutableHeaders(scope=message)
        self.streamed = headers.get("content-type", "").startswith("text/event-stream")
        # A relayed reply has the ID of the provider.
        headers.setdefault("x-request-id", self._request_id)
        headers["x-content-type-options"] = "nosniff"
        headers.setdefault("cache-control", "no-store")
        headers.update(self.cors)
        if self._varies and "origin" not in headers.get("vary", "").lower():
            headers.add_vary_header("Origin")


def _request_id(headers: Headers) -> str:
    """Return the caller's request ID if it is well-formed and contains no key, else a new one."""
    text = headers.get("x-request-id", "")
    is_sane = _SANE_ID.fullmatch(text) and without_keys(text) == text
    return text if is_sane else secrets.token_hex(16)
