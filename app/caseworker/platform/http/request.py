"""The request object that routes receive: an authenticated caller and a bounded JSON body."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from sys import getsizeof
from typing import Any, Final, Literal, Protocol, Self, TypeVar, cast

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, QueryParams
from starlette.routing import Match, Route
from starlette.types import Message, Receive, Send
from starlette.types import Scope as AsgiScope

from caseworker.platform.caller import (
    ACTING,
    LOCAL,
    REMOTE,
    Caller,
    CredentialRequiredError,
    InvalidCredentialError,
    KeyScope,
    ScopeMissingError,
)
from caseworker.platform.fair_slots import TENANT, FairSlots, share_of
from caseworker.platform.fair_threads import PacedThread
from caseworker.platform.http.bodies import (
    MalformedJsonError,
    UnstorableTextError,
    is_storable,
    read_json,
)
from caseworker.platform.http.deadline import extend_deadline, paused_deadline
from caseworker.platform.http.openapi import SCOPE, operation_id
from caseworker.platform.http.problems import (
    ANONYMOUS_REFUSED,
    ATTEMPT_SUPERSEDED,
    BODY_TOO_LARGE,
    INVALID_REQUEST,
    MALFORMED_BODY,
    MAX_VIOLATIONS,
    TOO_MANY_BODIES,
    UNSUPPORTED_MEDIA_TYPE,
    ProblemError,
    Problems,
    ProblemType,
    Violation,
    violations_of,
)
from caseworker.platform.logs.redaction import redact_text

IDENTIFIED: Final = "caseworker.identified"
"""ASGI scope key of a callback that marks the connection as identified. It is called after the
caller is authenticated."""
IS_CLOSED: Final = "caseworker.is_closed"
"""ASGI scope key of a function that returns whether the connection is closed. Unlike
``Request.is_disconnected`` it reads nothing from the connection."""
RELEASES: Final = "caseworker.releases"
"""ASGI scope key of a list of callbacks. They are called when the request ends, to release its
slots."""
_NETLOC: Final = re.compile(r"[A-Za-z0-9.-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?")
_SMALL_BODY_BYTES: Final = 64 * 1024
"""Size of a body that is read on the event loop, which takes a few milliseconds."""
WAIT_SECONDS = 2.0
"""Seconds that a request waits for a slot before it is rejected."""

AnonymousFrom = Literal["loopback", "anywhere"]
"""Where requests without a credential may come from while no credentials exist."""


_OTHER_PAGE = (
    "A web page of another origin sent this request. Open the URL directly, or add the origin to "
    "server.cors_origins."
)
_BEARER = re.compile(rb"bearer +([!-~]+) *", re.IGNORECASE)

_LONGEST_ADDRESS = 64
"""Number of characters of the longest IP address, its zone included."""
_OF_PROXIES = re.compile(
    rb"forwarded|via|x-real-ip|x-(?:original-)?forwarded-.*|x-envoy-.*|cf-.*|.*client-ip"
)


_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = rf'[ \t]*;(?:[ \t]*({_WORD})=({_WORD}|"(?:[^"\\]|\\.)*"))?'
_EACH_PARAMETER = re.compile(_PARAMETER, re.ASCII | re.DOTALL)
_JSON = re.compile(
    rf"[ \t]*application/(?:json|{_WORD}\+json)((?:{_PARAMETER})*)[ \t]*",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
_UTF_8: Final = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
"""Names of encodings whose texts are valid UTF-8."""
_LONGEST_NAME: Final = 200
"""Number of characters of a parameter name that an error shows."""

_QUALITY = re.compile(r"[01](\.[0-9]{0,3})?", re.ASCII)
_LENGTH_DIGITS = 18

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
T = TypeVar("T")

_READING = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits that apply to every request."""

    max_body_bytes: int
    """Maximum size of a request body in bytes, not counting the graph in it."""
    max_graph_bytes: int
    """Maximum size of the graph in a request body as JSON, in bytes, including nested graphs."""
    max_json_depth: int
    max_seconds: float
    """Maximum number of seconds until the response to a request starts; then 503."""
    max_connections: int
    """Maximum number of requests that this process serves concurrently."""
    max_bodies_bytes: int
    """Maximum total size, in bytes, of all request bodies that this process is receiving."""
    allowed_hosts: frozenset[str] | None
    """Host names that requests may use, in addition to IP addresses; None allows any name."""
    cors_origins: frozenset[str]
    """Origins of web pages that may send requests without a credential, such as
    ``https://app.example.com``."""
    docs_url: str | None
    """Base URL of the published documentation, in which every problem type has a section."""
    logs_requests: bool
    """Whether to log every request."""
    anonymous: AnonymousFrom


class Authenticator(Protocol):
    """Identifies callers by their credentials; the feature ``access`` implements it."""

    async def is_open(self) -> bool:
        """Return whether requests need no credential, because none of any kind exists."""
        ...

    async def caller_of(self, credential: str) -> Caller:
        """Authenticate a credential and return its caller.

        Raises:
            InvalidCredentialError: the credential is unknown, expired or revoked.
            StoreUnavailableError: the credential cannot be checked at the moment.
        """
        ...

    def refusal_delay(self) -> float:
        """Reserve the next slot for answering a refused request; return the delay in seconds."""
        ...


@dataclass(frozen=True, slots=True)
class RunKeys:
    """Identifies the callers that use the key of one run; the feature ``external`` provides it."""

    prefixes: tuple[str, ...]
    """Beginnings of all keys of runs, and of all standing keys."""
    caller_of: Callable[[str, str | None], Awaitable[Caller]]
    """Function that returns the caller with a key, or raises InvalidCredentialError. The caller has
    no scope if a later attempt of the run was opened. The second argument is the ID of the run that
    the path of the request names."""


class Shares:
    """A pool of slots of one kind. A single tenant may hold at most nine tenths of them."""

    def __init__(self, size: int, refusal: ProblemType) -> None:
        """Create ``size`` slots; requests without a slot are rejected with ``refusal``."""
        self._slots = FairSlots(size)
        self._refusal = refusal

    async def enter(self, tenant: str, scope: AsgiScope) -> None:
        """Acquire a slot until the request ends, waiting up to ``WAIT_SECONDS`` for one.

        Raises:
            ProblemError: no slot became free, or the tenant holds its full share.
        """
        if not await self._slots.acquire_within(WAIT_SECONDS, tenant):
            raise ProblemError(self._refusal)
        scope[RELEASES].append(partial(self._slots.release, tenant))


UNIDENTIFIED_SHARE: Final = 16
"""Divisor of the memory for bodies: requests of unknown tenants have this share in addition."""


class BodyMemory:
    """Limits the memory for request bodies in this process, in total and for each tenant.

    A single tenant may hold at most nine tenths of it, and requests whose tenant is not known a
    sixteenth of their own, so that neither can refuse the bodies of another tenant. No body is read
    before its tenant is known, so the sixteenth is for bytes that are read and dropped.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_use = Counter[str | None]()
        """Bytes held by each tenant; None is requests whose tenant is not known."""

    def hold(self, size: int, tenant: str | None) -> None:
        """Count ``size`` more bytes of request bodies of a tenant.

        Raises:
            ProblemError: all bodies, or those of the tenant, exceed the memory limit for them.
        """
        self._in_use[tenant] += size
        if tenant is None:
            is_full = self._in_use[None] > self._limit // UNIDENTIFIED_SHARE
        else:
            of_tenants = self._in_use.total() - self._in_use[None]
            is_full = self._in_use[tenant] > share_of(self._limit) or of_tenants > self._limit
        if is_full:
            raise ProblemError(TOO_MANY_BODIES)

    def release(self, size: int, tenant: str | None) -> None:
        """Subtract ``size`` bytes of a tenant after their body was processed or abandoned."""
        self._in_use[tenant] -= size
        if not self._in_use[tenant]:
            del self._in_use[tenant]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpContext:
    """The limits, services and slots that all requests of an application share."""

    limits: HttpLimits
    authentication: Authenticator
    problems: Problems
    services: Mapping[type, Any]
    """The services that routes call, by type."""
    connections: Shares
    bodies: BodyMemory


def for_run_keys(endpoint: Endpoint) -> Endpoint:
    """Let callers with the key of a run use a route, if the path parameter ``run_id`` names it.

    Place this decorator below the one that registers the route.
    """
    endpoint.accepts_run_key = True  # type: ignore[attr-defined]
    return endpoint


def requires(scope: KeyScope) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator that sets the scope that callers of a route function need.

    Without it, GET requires ``read`` and every other method ``run``. Place this decorator below the
    one that registers the route.
    """

    def marked(endpoint: Endpoint) -> Endpoint:
        endpoint.required_scope = scope  # type: ignore[attr-defined]
        return endpoint

    return marked


def static_part(route: Route) -> str:
    """Return the text with which every path of a route begins.

    A path without that text needs no pattern: a request passes most of the routes.
    """
    return route.path_format.partition("{")[0]


class ReadableRoute(APIRoute):
    """A route that answers HEAD like GET, without the body (RFC 9110, section 9.1)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._static_part = static_part(self)

    def matches(self, scope: AsgiScope) -> tuple[Match, AsgiScope]:
        """Return how the route matches a request, and its additions to the ASGI scope."""
        if self._static_part not in scope["path"]:  # it may begin with the root path
            return Match.NONE, {}
        match, additions = super().matches(scope)
        return Match.FULL if self._is_head(scope) and match is not Match.NONE else match, additions

    async def handle(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer a request; the response to HEAD ends after its headers, even if it is a stream."""
        if not self._is_head(scope):
            await super().handle(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})

        await self.app(scope, receive, send_head)

    def _is_head(self, scope: AsgiScope) -> bool:
        return scope.get("method") == "HEAD" and "GET" in (self.methods or ())


class ApiRoute(ReadableRoute):
    """A route that authenticates the caller, checks its scope and passes an :class:`ApiRequest`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        usual = KeyScope.READ if (self.methods or set()) <= _READING else KeyScope.RUN
        self.required_scope: KeyScope = getattr(self.endpoint, "required_scope", usual)
        self.accepts_run_key: bool = getattr(self.endpoint, "accepts_run_key", False)
        self.openapi_extra = {**(self.openapi_extra or {}), SCOPE: self.required_scope.value}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the framework's handler, wrapped so that it receives an :class:`ApiRequest`."""
        handle = super().get_route_handler()

        async def handle_checked(request: Request) -> Response:
            run_keys = self.accepts_run_key
            identified = await ApiRequest.of(request, self.required_scope, run_keys=run_keys)
            _require_unique(request.query_params)
            if not self.dependant.query_params:
                _require_none(request.query_params)
            return await handle(identified)

        return handle_checked


def api_router(tag: str, *, prefix: str = "") -> APIRouter:
    """Return a router that passes an :class:`ApiRequest` to its route functions.

    ``tag`` groups the routes in the OpenAPI document.
    """
    return APIRouter(
        prefix=prefix,
        tags=[tag],
        route_class=ApiRoute,
        generate_unique_id_function=operation_id,
    )


def _require_unique(query: QueryParams) -> None:
    """Check that no query parameter is repeated, because only its last value would count.

    Raises:
        ProblemError: some are; the error names each of them.
    """
    counts = Counter(name for name, _ in query.multi_items() if is_storable(name))
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        message = "Send this parameter once: all given filters must match."
        violations = [Violation(_public_name(name), message) for name in repeated]
        raise ProblemError(INVALID_REQUEST, violations=violations[:MAX_VIOLATIONS])


def _public_name(name: str) -> str:
    return redact_text(name, max_chars=_LONGEST_NAME)


def _require_none(query: QueryParams) -> None:
    """Check that there are no query parameters, for a route that has none.

    Raises:
        ProblemError: there are some; the error names each of them.
    """
    if names := [_public_name(name) for name in query if is_storable(name)]:
        message = "Unknown field. This route has no query parameters."
        violations = [Violation(name, message) for name in names]
        raise ProblemError(INVALID_REQUEST, violations=violations[:MAX_VIOLATIONS])


class LabelledRoute(Route):
    """A route without the checks of :class:`ApiRoute`. Its path labels metrics and log lines."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._static_part = static_part(self)

    def matches(self, scope: AsgiScope) -> tuple[Match, AsgiScope]:
        """Return how the route matches a request, and its additions to the ASGI scope."""
        if self._static_part not in scope["path"]:
            return Match.NONE, {}
        match, child_scope = super().matches(scope)
        return match, {**child_scope, "route": self}


class PostingRoute(ApiRoute):
    """A fast route for the endpoint that creates runs, a function ``(body, request) -> Response``.

    The framework documents it and validates its body. It resolves no dependencies, because that
    would take a tenth of the CPU time for accepting a run.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.app = self._answer

    async def _answer(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        sent_by = Request(scope, receive, send)
        request = await ApiRequest.of(sent_by, self.required_scope, run_keys=self.accepts_run_key)
        document = await request.json() if await request.body() else None
        body, errors = cast("Any", self.body_field).validate(document, loc=("body",))
        if errors:
            raise ProblemError(INVALID_REQUEST, violations=violations_of(errors))
        response = await self.endpoint(body, request)
        await response(scope, receive, send)


class ApiRequest(Request):
    """A request with an authenticated caller and a JSON body of bounded size and depth.

    The framework reads and parses the whole body before it resolves dependencies. Dependencies
    would therefore check the caller and the body limits too late; this class checks them first.
    """

    def __init__(self, request: Request, caller: Caller) -> None:
        super().__init__(request.scope, request.receive)
        self._shared: HttpContext = request.app.state.shared
        self.limits = self._shared.limits
        self.caller = caller
        self._content: bytes | None = None

    @classmethod
    async def of(cls, request: Request, scope: KeyScope, *, run_keys: bool = False) -> Self:
        """Authenticate the caller, check its scope and acquire a request slot for its tenant.

        ``run_keys`` accepts the key of the run that the path names, or of any run if it names none.

        Raises:
            AccessRefusedError: the credential is missing or invalid, or lacks the scope.
            ProblemError: anonymous access is not allowed for this request, or the tenant has too
                many concurrent requests.
            StoreUnavailableError: the credential cannot be checked at the moment.
            ScopeMissingError: the credential lacks the scope, or is the key of another
                run.
        """
        extend_deadline(request.scope)
        shared: HttpContext = request.app.state.shared
        authentication = shared.authentication
        try:
            api_request = cls(request, await identify(request, shared))
        except (CredentialRequiredError, InvalidCredentialError):
            await wait_connected(request, authentication.refusal_delay())
            raise
        ACTING.set(api_request.caller)
        tenant = request.scope["tenant"] = api_request.caller.tenant  # also used by the request log
        TENANT.set(tenant)
        request.scope.get(IDENTIFIED, bool)()
        run_of_key = api_request.caller.run_id
        if run_of_key is not None and not (
            run_keys and request.path_params.get("run_id", run_of_key) == run_of_key
        ):
            raise ScopeMissingError(scope)
        api_request.require(scope)
        await shared.connections.enter(tenant, request.scope)
        return api_request

    def require(self, scope: KeyScope) -> None:
        """Check that the caller has ``scope``.

        Raises:
            ScopeMissingError: the caller does not have it.
            ProblemError: the caller has the key of a run, and a later attempt was opened.
        """
        if self.caller.run_id is not None and not self.caller.scopes:
            raise ProblemError(ATTEMPT_SUPERSEDED)
        if scope not in self.caller.scopes:
            raise ScopeMissingError(scope)

    async def require_still(self, scope: KeyScope) -> None:
        """Authenticate the caller again and check that it still has ``scope``.

        Long-running responses, such as event streams, call this repeatedly. Requests that have
        waited for a run or for their body call it before they answer.

        Raises:
            AccessRefusedError, ProblemError, StoreUnavailableError: as for :meth:`of`.
        """
        self.caller = await identify(self, self._shared)
        self.require(scope)

    def service(self, of: type[T]) -> T:
        """Return the service that is registered for the type ``of``."""
        return cast("T", self._shared.services[of])

    def problem_of(self, error: Exception) -> ProblemError:
        """Return the problem that a route returns for an error.

        Raises:
            LookupError: no problem type is registered for the error.
        """
        return self._shared.problems.of(error)

    @property
    def root(self) -> str:
        """The URL path prefix of the service, without a trailing slash."""
        return cast("str", self.scope.get("root_path", ""))

    async def body(self) -> bytes:
        """Return the complete request body as bytes.

        Raises:
            ProblemError: it is too large, compressed, or its content type is not JSON.
        """
        if self._content is None:
            self._require_identity()
            self._content = await self._read()
            if self._content and not is_json(self.headers.get("content-type", "")):
                raise ProblemError(UNSUPPORTED_MEDIA_TYPE)
        return self._content

    def hold(self, memory_bytes: int) -> None:
        """Count memory like that of a body in transfer until the request has ended.

        Raises:
            ProblemError: all bodies, or those of the tenant, exceed the memory limit for them.
        """
        tenant = self.scope.get("tenant")
        self.scope[RELEASES].append(partial(self._shared.bodies.release, memory_bytes, tenant))
        self._shared.bodies.hold(memory_bytes, tenant)

    def require_small(self) -> None:
        """Check that the body does not exceed the limit for bodies without a graph.

        Raises:
            ProblemError: it is larger.
        """
        limit = self.limits.max_body_bytes
        if len(self._content or b"") > limit:
            raise _too_large(limit)

    async def json(self) -> Any:
        """Return the parsed JSON body.

        Raises:
            ProblemError: it is not valid JSON, or exceeds a limit.
        """
        content = await self.body()
        return await self.computed(partial(self.parsed, content))

    async def computed(self, compute: Callable[[], T]) -> T:
        """Return the result of a computation on the body; a large one is processed in a thread."""
        size = len(self._content or b"")
        thread = self.service(PacedThread)
        return await thread.call(compute, size, most_on_loop=_SMALL_BODY_BYTES)

    def parsed(self, content: bytes, accepts: Callable[[str], bool] = is_storable) -> Any:
        """Return the JSON value in the body of this request, with strings that ``accepts`` allows.

        Raises:
            ProblemError: as for :meth:`json`.
        """
        try:
            return read_json(content, max_depth=self.limits.max_json_depth, accepts=accepts)
        except MalformedJsonError as error:
            raise ProblemError(MALFORMED_BODY, str(error)) from None
        except UnstorableTextError as error:
            raise ProblemError(INVALID_REQUEST, violations=error.violations) from None

    def _require_identity(self) -> None:
        """Reject compressed bodies, because their expanded size is unknown in advance."""
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise ProblemError(UNSUPPORTED_MEDIA_TYPE)

    async def _read(self) -> bytes:
        """Read the body up to the limit, regardless of the declared length."""
        limit = self.limits.max_body_bytes + self.limits.max_graph_bytes
        declared = self.headers.get("content-length", "")
        if len(declared) > _LENGTH_DIGITS or (declared.isdecimal() and int(declared) > limit):
            raise _too_large(limit)
        chunks, size, held_bytes, bodies = list[bytes](), 0, 0, self._shared.bodies
        tenant = self.scope.get("tenant")
        try:
            with paused_deadline(self.scope):  # the minimum rate of bodies limits this time
                async for chunk in self.stream():
                    chunks.append(chunk)
                    size += len(chunk)
                    chunk_bytes = getsizeof(chunk)  # small chunks are mostly object overhead
                    held_bytes += chunk_bytes
                    bodies.hold(chunk_bytes, tenant)
                    if size > limit:
                        raise _too_large(limit)
        finally:
            bodies.release(held_bytes, tenant)
        return b"".join(chunks)


def accepted_types(headers: Headers) -> dict[str, float]:
    """Return the media types and ranges of the Accept header with their quality, from 0 to 1."""
    accepted: dict[str, float] = {}
    for each in ",".join(headers.getlist("accept")).lower().split(","):
        name, *parameters = (part.strip() for part in each.split(";"))
        quality = next((one[2:] for one in parameters if one.startswith("q=")), "1")
        accepted[name] = float(quality) if _QUALITY.fullmatch(quality) else 0.0
    return accepted


def is_json(media_type: str) -> bool:
    """Return whether a Content-Type header names JSON in UTF-8.

    Other parameters than ``charset`` have no effect on JSON (RFC 8259, section 11).
    """
    match = _JSON.fullmatch(media_type)
    return match is not None and all(
        value.strip('"').lower() in _UTF_8
        for name, value in _EACH_PARAMETER.findall(match[1])
        if name.lower() == "charset"
    )


def _too_large(limit: int) -> ProblemError:
    return ProblemError(BODY_TOO_LARGE, f"The body must not exceed {limit} bytes.")


def base_url_of(request: Request, proxies: Collection[IPv4Network | IPv6Network]) -> str:
    """Return the URL at which the client of a request reaches the service, without a slash.

    The headers of a proxy are used if its address is in ``proxies``.
    """
    url, peer = request.base_url, request.client and address_of(request.client.host)
    if peer and any(peer in network for network in proxies):
        scheme = request.headers.get("x-forwarded-proto", "")
        host = request.headers.get("x-forwarded-host", "")
        url = url.replace(scheme=scheme if scheme in ("http", "https") else url.scheme)
        url = url.replace(netloc=host if _NETLOC.fullmatch(host) else url.netloc)
    return str(url).rstrip("/")


async def identify(request: Request, shared: HttpContext) -> Caller:
    """Return the caller that sent a request.

    A request with a credential is authenticated by it or rejected; it never counts as anonymous.

    Raises:
        InvalidCredentialError: the credential is invalid.
        CredentialRequiredError: it has no credential, and anonymous access is disabled.
        ProblemError: it has no credential, and anonymous access is not allowed for it.
    """
    credential, run_keys = shown_credential(request), shared.services.get(RunKeys)
    if credential is None and run_keys is not None:
        credential = shown_run_key(request, run_keys.prefixes)
    if credential is not None and run_keys is not None and credential.startswith(run_keys.prefixes):
        run_id = request.path_params.get("run_id")
        return cast("Caller", await run_keys.caller_of(credential, run_id))
    if credential is not None:
        return await shared.authentication.caller_of(credential)
    if not await shared.authentication.is_open():
        raise CredentialRequiredError
    return anonymous_caller(request, shared.limits.anonymous, shared.limits)


def shown_credential(request: Request) -> str | None:
    """Return the bearer credential that a request contains; None if it contains none.

    Raises:
        InvalidCredentialError: the header is malformed, or sent more than once.
    """
    headers = [value for name, value in request.scope["headers"] if name == b"authorization"]
    if not headers:
        return None
    if len(headers) > 1 or (bearer := _BEARER.fullmatch(headers[0])) is None:
        raise InvalidCredentialError
    return bearer[1].decode("ascii")


def shown_run_key(request: Request, prefixes: tuple[str, ...]) -> str | None:
    """Return the key of a run, or the standing key, in ``x-api-key``; None without one.

    Other keys in this header are ignored, because proxies use it for theirs.

    Raises:
        InvalidCredentialError: the header is sent more than once.
    """
    keys = [each for each in request.headers.getlist("x-api-key") if each.startswith(prefixes)]
    if len(keys) > 1:
        raise InvalidCredentialError
    return keys[0] if keys else None


def anonymous_caller(
    request: Request,
    anonymous: AnonymousFrom,
    limits: HttpLimits | None = None,
    refusal: str | None = None,
) -> Caller:
    """Return the anonymous caller for a request without a credential.

    Requests from web pages of other origins are always rejected, because a browser sends them with
    the network access of its user. ``limits`` holds the configured origins and host names.
    ``refusal`` is the advice of every rejection; None names the settings of the API.

    A peer counts as local if its address is a loopback address and no header shows that a proxy
    forwarded the request. No header makes a caller local, since any client can send it. A peer
    without an address (a Unix socket) counts as remote, because it is usually a proxy.

    Raises:
        ProblemError: anonymous access is not allowed for this request.
    """
    origins = frozenset() if limits is None else limits.cors_origins
    if _is_from_another_page(request, origins):
        raise ProblemError(ANONYMOUS_REFUSED, refusal or _OTHER_PAGE)
    if anonymous == "anywhere":
        return REMOTE
    forwarded = any(_OF_PROXIES.fullmatch(name) for name, _ in request.headers.raw)
    if request.client is None or forwarded or not is_loopback(request.client.host):
        raise ProblemError(ANONYMOUS_REFUSED, refusal)
    if limits is not None and not _is_own_host(request, limits.allowed_hosts or frozenset()):
        message = "Use localhost, or add the host name to server.allowed_hosts."
        raise ProblemError(ANONYMOUS_REFUSED, message)
    return LOCAL


def _is_from_another_page(request: Request, origins: frozenset[str]) -> bool:
    """Return whether a browser sends the request for a page whose origin is not configured."""
    sent_origins = [value.lower() for value in request.headers.getlist("origin")]
    host = request.headers.get("host", "").lower()
    own_origins = {f"http://{host}", f"https://{host}", *origins}
    cross_site = request.headers.get("sec-fetch-site") == "cross-site" and not (
        sent_origins and set(sent_origins) <= origins
    )
    return cross_site or not own_origins.issuperset(sent_origins)


def _is_own_host(request: Request, names: frozenset[str]) -> bool:
    """Return whether the Host header is a loopback or a configured name."""
    name = host_name(request.headers.get("host", ""))
    if name in ("", "localhost") or is_loopback(name):
        return True
    return name in map(str.lower, names) and name not in ("0.0.0.0", "::")  # noqa: S104


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is a loopback address."""
    address = address_of(host.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    return address is not None and address.is_loopback


async def wait_connected(request: Request, seconds: float) -> None:
    """Sleep for ``seconds``, or until the connection is closed; read nothing from it."""
    until, is_closed = time.monotonic() + seconds, request.scope.get(IS_CLOSED, bool)
    while (remaining := until - time.monotonic()) > 0 and not is_closed():  # noqa: ASYNC110
        await asyncio.sleep(min(remaining, 1.0))


def host_name(host: str) -> str:
    """Return the host in the value of a Host header, in lower case, without port and brackets."""
    return (host.rpartition("]")[0].lstrip("[") or host.partition(":")[0]).lower().rstrip(".")


def address_of(name: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address; return None if ``name`` is not one."""
    return _parsed(name) if len(name) <= _LONGEST_ADDRESS else None


@lru_cache(maxsize=64)
def _parsed(name: str) -> IPv4Address | IPv6Address | None:
    with suppress(ValueError):
        return ip_address(name)
    return None
