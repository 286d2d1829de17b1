"""Requests as routes get them: from a known caller, with a body of bounded size and depth."""

import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Any, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from app.api import problem_types as types
from app.api.admission import CaseAdmission, GraphAdmission
from app.api.event_stream import OpenStreams
from app.api.json_text import MalformedJsonError, UnstorableTextError, read_json
from app.api.problems import ProblemError
from app.api.services import AnonymousFrom, ApiLimits, ApiServices
from app.api.thread_admission import ThreadAdmission
from app.api.violations import violations_of
from app.chats.service import Chats
from app.runs.definitions import Definitions
from app.runs.run import RunKey
from app.runs.service import RunService

_JSON = re.compile(
    r"application/(?:json|[a-z0-9.+-]+\+json)(?:\s*;\s*charset\s*=\s*\"?utf-8\"?)?\s*",
    re.IGNORECASE | re.ASCII,
)

_LENGTH_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. There are no keys yet: all callers are anonymous, in one tenant."""

    tenant: str
    """Owns the runs that the caller makes, and cannot see those of others."""
    name: str
    """What receipts call them."""


ANONYMOUS = Caller(tenant="default", name="anonymous")

_OF_PROXIES = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip"})
_USUAL_LOOPBACK = frozenset({"127.0.0.1", "::1"})


def identify(request: Request, anonymous: AnonymousFrom) -> Caller:
    """Return the caller of a request.

    A peer counts as local if its address is, and if no header says that a proxy forwards a request
    of another peer. No header makes a caller local: anyone can write one. A peer without an address
    (a Unix socket) counts as remote, because it usually is a proxy.

    Raises:
        ProblemError: anonymous callers are not served from there.
    """
    if anonymous == "loopback":
        if request.client is None or not is_loopback(request.client.host):
            raise ProblemError(types.ANONYMOUS_REFUSED)
        if any(name in _OF_PROXIES for name, _ in request.headers.raw):
            raise ProblemError(types.ANONYMOUS_REFUSED)
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A web page somewhere makes the browser of someone on this machine call us.
            raise ProblemError(types.ANONYMOUS_REFUSED, "Web pages of other sites are not served.")
    return ANONYMOUS


def is_loopback(host: str) -> bool:
    """Tell whether an address belongs to this machine alone."""
    if host in _USUAL_LOOPBACK:
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


class BodiesUnderWay:
    """Counts the bytes of the bodies that this process is receiving, and refuses more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0

    def hold(self, size: int) -> None:
        """Count bytes that have come.

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
    limits: ApiLimits
    streams: OpenStreams
    bodies: BodiesUnderWay
    cases: CaseAdmission
    graph_runs: GraphAdmission
    definitions: Definitions
    chats: Chats
    thread_runs: ThreadAdmission


class ApiRoute(APIRoute):
    """A route whose function may ask for an :class:`ApiRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Hand the framework's handler a request of our own."""
        handle = super().get_route_handler()

        async def handle_checked(request: Request) -> Response:
            return await handle(ApiRequest(request))

        return handle_checked


class PostingRoute(ApiRoute):
    """The route of a function ``(body, request) -> Response`` that is called for every run.

    The framework documents it and validates its body, but resolves no dependencies: those would
    cost a tenth of the CPU time that accepting a run takes.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = ApiRequest(Request(scope, receive, send))
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

    def __init__(self, request: Request) -> None:
        """Identify the caller.

        Raises:
            ProblemError: the caller is not served from there.
        """
        super().__init__(request.scope, request.receive)
        self.limits: ApiLimits = self.api.limits
        self.caller: Caller = identify(request, self.limits.anonymous)
        self._content: bytes | None = None

    @property
    def api(self) -> ApiContext:
        """What the application is built from."""
        return cast("ApiContext", self.app.state.api)

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
        content, bodies = bytearray(), self.api.bodies
        try:
            async for chunk in self.stream():
                content += chunk
                bodies.hold(len(chunk))
                if len(content) > limit:
                    raise too_large
        finally:
            bodies.release(len(content))
        return bytes(content)


def _too_large(limit: int) -> ProblemError:
    return ProblemError(types.BODY_TOO_LARGE, f"Send at most {limit} bytes.")
