"""The request object that routes receive: an authenticated caller and a bounded JSON body."""

import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, Self, TypeVar, cast

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from caseworker.api import problem_types as types
from caseworker.api.admission import Admission
from caseworker.api.documentation import SCOPE, operation_id
from caseworker.api.identification import identify, wait_connected
from caseworker.api.json_text import MalformedJsonError, UnstorableTextError, read_json
from caseworker.api.problems import ProblemError
from caseworker.api.request_envelope import IDENTIFIED
from caseworker.api.run_body import OwnBody
from caseworker.api.services import ApiLimits, ApiServices
from caseworker.api.shares import Shares
from caseworker.api.thread_admission import ThreadAdmission
from caseworker.api.violations import violations_of
from caseworker.features.access.caller import Caller, Scope
from caseworker.features.access.errors import (
    CredentialRequiredError,
    InvalidCredentialError,
    ScopeMissingError,
)
from caseworker.features.access.keys import Keys
from caseworker.features.threads.service import Chats
from caseworker.runs.definitions import Definitions
from caseworker.runs.run import NewRun, RunKey
from caseworker.runs.service import RunService

_JSON = re.compile(
    r"application/(?:json|[a-z0-9.+-]+\+json)(?:\s*;\s*charset\s*=\s*\"?utf-8\"?)?\s*",
    re.IGNORECASE | re.ASCII,
)

_LENGTH_DIGITS = 18

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

_READING = frozenset({"GET", "HEAD"})


class BodiesUnderWay:
    """Limits the total memory for request bodies that this process is receiving."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0

    def hold(self, size: int) -> None:
        """Add ``size`` received bytes to the total.

        Raises:
            ProblemError: the limit is exceeded.
        """
        self._held += size
        if self._held > self._limit:
            raise ProblemError(types.TOO_MANY_BODIES)

    def release(self, size: int) -> None:
        """Subtract ``size`` bytes from the total after their body was processed or abandoned."""
        self._held -= size


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """Services, limits and admission rules shared by all routes of the application."""

    services: ApiServices
    keys: Keys
    limits: ApiLimits
    streams: Shares
    connections: Shares
    bodies: BodiesUnderWay
    admissions: Mapping[str, Admission]
    definitions: Definitions
    chats: Chats
    thread_runs: ThreadAdmission


def requires(scope: Scope) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator that sets the scope that callers of a route function need.

    Without it, GET requires ``read`` and every other method ``run``. Place this decorator below the
    one that registers the route.
    """

    def marked(endpoint: Endpoint) -> Endpoint:
        endpoint.required_scope = scope  # type: ignore[attr-defined]
        return endpoint

    return marked


class ApiRoute(APIRoute):
    """A route that authenticates the caller, checks its scope and passes an :class:`ApiRequest`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        usual = Scope.READ if (self.methods or set()) <= _READING else Scope.RUN
        self.required_scope: Scope = getattr(self.endpoint, "required_scope", usual)
        self.openapi_extra = {**(self.openapi_extra or {}), SCOPE: self.required_scope.value}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the framework's handler, wrapped so that it receives an :class:`ApiRequest`."""
        handle = super().get_route_handler()

        async def handle_checked(request: Request) -> Response:
            return await handle(await ApiRequest.of(request, self.required_scope))

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


class PostingRoute(ApiRoute):
    """A fast route for the endpoint that creates runs, a function ``(body, request) -> Response``.

    The framework documents it and validates its body, but resolves no dependencies, which would
    cost a tenth of the CPU time for accepting a run.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.app = self._answer

    async def _answer(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        request = await ApiRequest.of(Request(scope, receive, send), self.required_scope)
        sent = await request.json() if await request.body() else None
        body, errors = cast("Any", self.body_field).validate(sent, loc=("body",))
        if errors:
            raise ProblemError(types.INVALID_REQUEST, violations=violations_of(errors))
        response = await self.endpoint(body, request)
        await response(scope, receive, send)


class ApiRequest(Request):
    """A request with an authenticated caller and a JSON body of bounded size and depth.

    The framework reads and parses the whole body before it resolves dependencies. Dependencies
    would therefore check the caller and the body limits too late; this class checks them first.
    """

    def __init__(self, request: Request, caller: Caller) -> None:
        super().__init__(request.scope, request.receive)
        self.api: ApiContext = request.app.state.api
        """The shared parts of the application."""
        self.limits: ApiLimits = self.api.limits
        self.caller = caller
        self._content: bytes | None = None

    @classmethod
    async def of(cls, request: Request, scope: Scope) -> Self:
        """Authenticate the caller, check its scope and acquire a request slot for its tenant.

        Raises:
            AccessRefusedError: the credential is missing or invalid, or lacks the scope.
            ProblemError: anonymous access is not allowed from there, or the tenant has too many
                concurrent requests.
            StoreUnavailableError: the credential cannot be checked at the moment.
        """
        api = cast("ApiContext", request.app.state.api)
        authentication = api.services.authentication
        try:
            found = cls(request, await identify(request, authentication, api.limits))
        except (CredentialRequiredError, InvalidCredentialError):
            await wait_connected(request, authentication.refusal_delay())
            raise
        tenant = request.scope["tenant"] = found.caller.tenant  # also used by the request log
        request.scope.get(IDENTIFIED, bool)()
        found.require(scope)
        await api.connections.enter(tenant, request.scope)
        return found

    def require(self, scope: Scope) -> None:
        """Check that the caller has ``scope``.

        Raises:
            ScopeMissingError: the caller does not have it.
        """
        if not self.caller.may(scope):
            raise ScopeMissingError(scope)

    async def require_still(self, scope: Scope) -> None:
        """Authenticate the caller again and check that it still has ``scope``.

        Long-running responses, such as event streams, call this repeatedly.

        Raises:
            AccessRefusedError, ProblemError, StoreUnavailableError: as for :meth:`of`.
        """
        self.caller = await identify(self, self.api.services.authentication, self.limits)
        self.require(scope)

    @property
    def runs(self) -> RunService:
        """The run service, which accepts, reads, lists, cancels and erases runs."""
        return self.api.services.runs

    @property
    def root(self) -> str:
        """The URL path prefix of the service, without a trailing slash."""
        return cast("str", self.scope.get("root_path", ""))

    def key(self, run_id: str) -> RunKey:
        """Return the key of the run with this ID in the caller's tenant."""
        return RunKey(self.caller.tenant, run_id)

    async def body(self) -> bytes:
        """Return the complete request body as bytes.

        Raises:
            ProblemError: it is too large, compressed, or declared as another type than JSON.
        """
        if self._content is None:
            self._require_identity()
            self._content = await self._read()
            if self._content and not _JSON.fullmatch(self.headers.get("content-type", "")):
                raise ProblemError(types.UNSUPPORTED_MEDIA_TYPE)
        return self._content

    def require_small(self) -> None:
        """Check that the body does not exceed the limit for bodies without a graph.

        Raises:
            ProblemError: it is larger.
        """
        limit = self.limits.max_body_bytes
        if len(self._content or b"") > limit:
            raise _too_large(limit)

    async def admit(self, body: OwnBody, idempotency_key: str | None = None) -> NewRun:
        """Return the run that the body describes, with defaults and ceilings applied.

        Raises:
            ProblemError: the body is too large for its kind, or invalid for this service.
            GraphRefusedError: the graph or agent is invalid; the error lists all problems.
        """
        if not body.contains_graph:
            self.require_small()
        admission = self.api.admissions[body.kind]
        return await admission.new_run(body, self.caller.tenant, idempotency_key)

    async def json(self) -> Any:
        """Return the parsed JSON body.

        Raises:
            ProblemError: it is not valid JSON, or exceeds a limit.
        """
        try:
            return read_json(await self.body(), max_depth=self.limits.max_json_depth)
        except MalformedJsonError as error:
            raise ProblemError(types.MALFORMED_BODY, str(error)) from None
        except UnstorableTextError as error:
            raise ProblemError(types.INVALID_REQUEST, violations=error.violations) from None

    def _require_identity(self) -> None:
        """Reject compressed bodies, because their expanded size is unknown in advance."""
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise ProblemError(types.UNSUPPORTED_MEDIA_TYPE)

    async def _read(self) -> bytes:
        """Read the body up to the limit, regardless of the declared length."""
        limit = self.limits.max_body_bytes + self.limits.max_graph_bytes
        too_large = _too_large(limit)
        declared = self.headers.get("content-length", "")
        if len(declared) > _LENGTH_DIGITS or (declared.isdecimal() and int(declared) > limit):
            raise too_large
        chunks, size, held, bodies = list[bytes](), 0, 0, self.api.bodies
        try:
            async for chunk in self.stream():
                chunks.append(chunk)
                size += len(chunk)
                taken = getsizeof(chunk)  # small chunks are mostly object overhead
                held += taken
                bodies.hold(taken)
                if size > limit:
                    raise too_large
        finally:
            bodies.release(held)
        return b"".join(chunks)


def _too_large(limit: int) -> ProblemError:
    return ProblemError(types.BODY_TOO_LARGE, f"The body must not exceed {limit} bytes.")
