"""Requests as routes get them: from a known caller, with a body of bounded size and depth."""

import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, Self, TypeVar, cast

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from caseworker.access.caller import Caller, Scope
from caseworker.access.errors import (
    CredentialRequiredError,
    InvalidCredentialError,
    ScopeMissingError,
)
from caseworker.access.keys import Keys
from caseworker.api import problem_types as types
from caseworker.api.admission import CaseAdmission, GraphAdmission
from caseworker.api.documentation import SCOPE, operation_id
from caseworker.api.identification import identify, wait_connected
from caseworker.api.json_text import MalformedJsonError, UnstorableTextError, read_json
from caseworker.api.problems import ProblemError
from caseworker.api.request_envelope import IDENTIFIED
from caseworker.api.services import ApiLimits, ApiServices
from caseworker.api.shares import Shares
from caseworker.api.thread_admission import ThreadAdmission
from caseworker.api.violations import violations_of
from caseworker.chats.service import Chats
from caseworker.runs.definitions import Definitions
from caseworker.runs.run import RunKey
from caseworker.runs.service import RunService

_JSON = re.compile(
    r"application/(?:json|[a-z0-9.+-]+\+json)(?:\s*;\s*charset\s*=\s*\"?utf-8\"?)?\s*",
    re.IGNORECASE | re.ASCII,
)

_LENGTH_DIGITS = 18

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

_READING = frozenset({"GET", "HEAD"})


class BodiesUnderWay:
    """Counts the bytes that the bodies which this process receives take up; refuses more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0

    def hold(self, size: int) -> None:
        """Count the bytes that what has come takes up.

        Raises:
            ProblemError: too many are held.
        """
        self._held += size
        if self._held > self._limit:
            raise ProblemError(types.TOO_MANY_BODIES)

    def release(self, size: int) -> None:
        """Forget bytes that were held: their body is whole, or given up."""
        self._held -= size


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """What the application is built from, for all its routes."""

    services: ApiServices
    keys: Keys
    limits: ApiLimits
    streams: Shares
    connections: Shares
    bodies: BodiesUnderWay
    cases: CaseAdmission
    graph_runs: GraphAdmission
    definitions: Definitions
    chats: Chats
    thread_runs: ThreadAdmission


def requires(scope: Scope) -> Callable[[Endpoint], Endpoint]:
    """Mark the function of a route: its callers need this scope.

    Without a mark, reading (GET) needs ``read`` and everything else ``run``. The mark stands below
    the decorator that makes the route.
    """

    def marked(endpoint: Endpoint) -> Endpoint:
        endpoint.required_scope = scope  # type: ignore[attr-defined]
        return endpoint

    return marked


class ApiRoute(APIRoute):
    """A route whose function may ask for an :class:`ApiRequest`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        usual = Scope.READ if (self.methods or set()) <= _READING else Scope.RUN
        self.required_scope: Scope = getattr(self.endpoint, "required_scope", usual)
        self.openapi_extra = {**(self.openapi_extra or {}), SCOPE: self.required_scope.value}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Hand the framework's handler a request of our own."""
        handle = super().get_route_handler()

        async def handle_checked(request: Request) -> Response:
            return await handle(await ApiRequest.of(request, self.required_scope))

        return handle_checked


def api_router(tag: str, *, prefix: str = "") -> APIRouter:
    """Return a router whose functions may ask for an :class:`ApiRequest`."""
    return APIRouter(
        prefix=prefix,
        tags=[tag],
        route_class=ApiRoute,
        generate_unique_id_function=operation_id,
    )


class PostingRoute(ApiRoute):
    """The route of a function ``(body, request) -> Response`` that is called for every run.

    The framework documents it and validates its body, but resolves no dependencies: those would
    cost a tenth of the CPU time that accepting a run takes.
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
    """A request whose caller is known and whose body is JSON of a bounded size and depth.

    The framework reads and parses a whole body before it resolves dependencies, so the caller and
    the limits of the body cannot be checked in those. Here they are checked first.
    """

    def __init__(self, request: Request, caller: Caller) -> None:
        super().__init__(request.scope, request.receive)
        self.api: ApiContext = request.app.state.api
        """What the application is built from."""
        self.limits: ApiLimits = self.api.limits
        self.caller = caller
        self._content: bytes | None = None

    @classmethod
    async def of(cls, request: Request, scope: Scope) -> Self:
        """Identify the caller of a request, who needs a scope.

        Raises:
            AccessRefusedError: the caller is not known, or may not do this.
            ProblemError: anonymous callers are not served from there, or the tenant has too many
                requests under way.
            StoreUnavailableError: nobody can say at the moment who it is.
        """
        api = cast("ApiContext", request.app.state.api)
        authentication = api.services.authentication
        try:
            found = cls(request, await identify(request, authentication, api.limits))
        except (CredentialRequiredError, InvalidCredentialError):
            await wait_connected(request, authentication.refusal_delay())
            raise
        tenant = request.scope["tenant"] = found.caller.tenant  # also for the log of requests
        request.scope.get(IDENTIFIED, bool)()
        found.require(scope)
        await api.connections.enter(tenant, request.scope)
        return found

    def require(self, scope: Scope) -> None:
        """Refuse a caller without a scope.

        Raises:
            ScopeMissingError: the caller has not got it.
        """
        if not self.caller.may(scope):
            raise ScopeMissingError(scope)

    async def require_still(self, scope: Scope) -> None:
        """Identify the caller again, of a request that is answered for long.

        Raises:
            AccessRefusedError, ProblemError, StoreUnavailableError: as for :meth:`of`.
        """
        self.caller = await identify(self, self.api.services.authentication, self.limits)
        self.require(scope)

    @property
    def runs(self) -> RunService:
        """Use cases of runs."""
        return self.api.services.runs

    @property
    def root(self) -> str:
        """The path below which the service is served, without a slash at its end."""
        return cast("str", self.scope.get("root_path", ""))

    def key(self, run_id: str) -> RunKey:
        """Return the key of one of the caller's runs."""
        return RunKey(self.caller.tenant, run_id)

    async def body(self) -> bytes:
        """Return the body, once it has arrived whole.

        Raises:
            ProblemError: it is too large, compressed, or says that it is something else than JSON.
        """
        if self._content is None:
            self._require_identity()
            self._content = await self._read()
            if self._content and not _JSON.fullmatch(self.headers.get("content-type", "")):
                raise ProblemError(types.UNSUPPORTED_MEDIA_TYPE)
        return self._content

    def require_small(self) -> None:
        """Refuse a body that is longer than one without a graph may be.

        Raises:
            ProblemError: it is longer.
        """
        limit = self.limits.max_body_bytes
        if len(self._content or b"") > limit:
            raise _too_large(limit)

    async def json(self) -> Any:
        """Return what the body holds.

        Raises:
            ProblemError: it is not JSON as we take it.
        """
        try:
            return read_json(await self.body(), max_depth=self.limits.max_json_depth)
        except MalformedJsonError as error:
            raise ProblemError(types.MALFORMED_BODY, str(error)) from None
        except UnstorableTextError as error:
            raise ProblemError(types.INVALID_REQUEST, violations=error.violations) from None

    def _require_identity(self) -> None:
        """Refuse compression: the size of what it expands to cannot be known in advance."""
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise ProblemError(types.UNSUPPORTED_MEDIA_TYPE)

    async def _read(self) -> bytes:
        """Read as much as is allowed, whatever length is declared."""
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
                taken = getsizeof(chunk)  # of many small ones most is not the body
                held += taken
                bodies.hold(taken)
                if size > limit:
                    raise too_large
        finally:
            bodies.release(held)
        return b"".join(chunks)


def _too_large(limit: int) -> ProblemError:
    return ProblemError(types.BODY_TOO_LARGE, f"The body must not exceed {limit} bytes.")
