"""What every response has in common, whatever becomes of the request inside."""

import asyncio
import re
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caseworker.api.problem_types import HOST_REFUSED, INTERNAL, UNAVAILABLE
from caseworker.api.problems import ProblemError, invalid, problem_response
from caseworker.api.services import RequestObserver
from caseworker.api.shares import RELEASES
from caseworker.observability.redaction import without_keys
from caseworker.observability.trace_context import below_caller

log = structlog.get_logger(__name__)

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
MAX_QUERY_PARAMETERS = 64
IDENTIFIED = "caseworker.identified"
"""In the scope of a request: what the server wants to be called when the caller is known."""

_PROBES = frozenset({"/healthz", "/readyz"})
"""What watches over processes may call them by any name."""


class AllowedHosts:
    """The names under which the service answers.

    A page of another site can make its own name lead to this machine, and then counts in a browser
    as a page of the service (DNS rebinding). Its requests still carry that name. So an address is
    always allowed, which no page can be called, and a name only if it is known.
    """

    def __init__(self, names: frozenset[str] | None) -> None:
        """Allow addresses, ``localhost`` and ``names``; None allows every name."""
        self._names = names and frozenset(map(str.lower, names))

    def allow(self, host: bytes) -> bool:
        """Tell whether a Host header, or the lack of one (empty), is served."""
        if self._names is None or not host:
            return True
        name = host_name(host.decode("latin-1"))
        return name in ("localhost", *self._names) or address_of(name) is not None


def host_name(host: str) -> str:
    """Return the name or address in a Host header, in lower case, without port and brackets."""
    return (host.rpartition("]")[0].lstrip("[") or host.partition(":")[0]).lower().rstrip(".")


def address_of(name: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a name is; None if it is none."""
    with suppress(ValueError):
        return ip_address(name)
    return None


_QUIET = _PROBES | {"/metrics"}
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_GIVEN_UP = 499
"""The status of a request whose caller was gone before there was an answer."""


class RequestLog:
    """Counts requests, and writes a line of each that is no probe."""

    def __init__(self, observer: RequestObserver | None = None, *, lines: bool = False) -> None:
        self._observer = observer
        self._lines = lines

    def answered(self, scope: Scope, status: int, seconds: float, *, streamed: bool) -> None:
        """Note a request; its path is known by its template alone, which holds nobody's ids."""
        if self._observer is None and not self._lines:
            return
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route: str = getattr(scope.get("route"), "path", "")
        if self._observer is not None and not streamed:
            self._observer.answered(method, route, status, seconds)
        if self._lines and route not in _QUIET:
            log.info(
                "http.request",
                method=method,
                route=route,
                status=int(status),
                seconds=round(seconds, 4),
                tenant=scope.get("tenant"),
            )


class RequestEnvelope:
    """Gives every request an id and every failure a problem document.

    The id is the caller's ``X-Request-ID`` if that is sane and no key, else a new one. It is on the
    response and on every log line of the request, and of the run that the request began.
    """

    def __init__(self, app: ASGIApp, hosts: AllowedHosts, requests: RequestLog) -> None:
        self._app = app
        self._hosts = hosts
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope["request_id"] = _request_id(scope)
        scope[RELEASES] = []
        started = streamed = False
        status, began = _GIVEN_UP, time.perf_counter()

        async def send_named(message: Message) -> None:
            nonlocal started, status, streamed
            if message["type"] == "http.response.start":
                started, status = True, message["status"]
                streamed = _is_stream(message.get("headers", ()))
                message["headers"] = _with_common(message.get("headers", ()), request_id)
            await send(message)

        named = structlog.contextvars.bound_contextvars(request_id=request_id)
        with named, below_caller(scope["headers"]):
            try:
                if (refused := self._refused(scope)) is not None:
                    await problem_response(request_id, refused)(scope, receive, send_named)
                    return
                await self._app(scope, receive, send_named)
            except ClientDisconnect:
                return  # nobody is left to answer
            except asyncio.CancelledError:  # the process ends, and waits for no answer any longer
                if started:
                    raise
                response = problem_response(request_id, ProblemError(UNAVAILABLE))
                await response(scope, receive, send_named)
            except Exception:
                log.exception("http.request_broke", method=scope["method"])
                if started:
                    raise
                response = problem_response(request_id, ProblemError(INTERNAL))
                await response(scope, receive, send_named)
            finally:
                for release in scope[RELEASES]:
                    release()
                seconds = time.perf_counter() - began
                self._requests.answered(scope, status, seconds, streamed=streamed)

    def _refused(self, scope: Scope) -> ProblemError | None:
        """Return why a request is refused before its query is parsed; None if it is not."""
        if not self._hosts.allow(_host(scope)) and scope["path"] not in _PROBES:
            return ProblemError(HOST_REFUSED)
        if scope["query_string"].count(b"&") >= MAX_QUERY_PARAMETERS:
            return invalid("query", f"At most {MAX_QUERY_PARAMETERS} query parameters are allowed.")
        return None


def _is_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether an answer is a stream of events, which lasts as long as a run does."""
    return any(
        name == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in headers
    )


def _host(scope: Scope) -> bytes:
    """Return the Host header; two of them make a name that nothing has."""
    return b",".join([value for name, value in scope["headers"] if name == b"host"])


def _request_id(scope: Scope) -> str:
    """Return the id that the caller gave, if it is sane and no key; else a new one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    text = given.decode("latin-1")
    is_sane = _SANE_ID.fullmatch(text) and without_keys(text) == text
    return text if is_sane else secrets.token_hex(16)


def _with_common(
    headers: "tuple[tuple[bytes, bytes], ...] | list[tuple[bytes, bytes]]", request_id: str
) -> list[tuple[bytes, bytes]]:
    common = [(b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff")]
    if all(name != b"cache-control" for name, _ in headers):
        common.append((b"cache-control", b"no-store"))
    return [*headers, *common]
