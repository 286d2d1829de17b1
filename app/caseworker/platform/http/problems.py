"""Convert errors to problem documents (RFC 9457), which never repeat request data.

A problem document states the kind of error (``type``), how to resolve it (``detail``) and which
fields are invalid (``errors``). It also contains the request ID, which finds the request in the
logs. ``make example`` writes the explanation of each type into ``docs/problems.md``. Messages of
the validation library are not used, because some quote the input.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match

from caseworker.platform.caller import (
    CredentialRequiredError,
    InvalidCredentialError,
    OtherTenantError,
    ScopeMissingError,
)
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.suggestions import suggestion
from caseworker.platform.validation import ERROR_TYPE, field_of, validation_message

MEDIA_TYPE = "application/problem+json"

MAX_VIOLATIONS = 20
"""Maximum number of invalid fields reported in one response."""

_PLACES = frozenset({"body", "path", "query", "header"})

URN = "urn:caseworker:problem:"
DOCS_URL: Final = "caseworker.docs_url"
"""ASGI scope key of the base URL of the documentation, to which ``type`` refers; None if the
operator publishes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemType:
    """One kind of API error, with its status, title and advice."""

    slug: str
    status: int
    """HTTP status code of responses with this error."""
    title: str
    detail: str
    """Default advice on how to resolve the error. An individual error may give more specific
    advice."""
    explanation: str
    """Section of ``docs/problems.md`` in Markdown, without its heading."""
    retry_after_seconds: int | None = None
    challenge: str | None = None
    """Value of the ``WWW-Authenticate`` header (RFC 6750); None if the header is not sent."""

    @property
    def uri(self) -> str:
        """Value of the ``type`` field if the operator publishes no documentation."""
        return URN + self.slug

    def page(self, docs_url: str | None) -> str:
        """Return the value of the ``type`` field: the page in the documentation, if published."""
        if docs_url is None:
            return self.uri
        return f"{docs_url.rstrip('/')}/problems.html#{self.slug}-{self.status}"


MALFORMED_BODY = ProblemType(
    slug="malformed-body",
    status=400,
    title="Malformed request body",
    detail="Send a single JSON object encoded in UTF-8.",
    explanation="The body is not valid JSON for this service. It must be one JSON text in UTF-8 "
    "without a byte order mark, without duplicate keys, and without NaN or Infinity. Integers "
    "have at most 64 bits, other numbers are finite, and the nesting depth is at most "
    "`limits.max_depth`. Send larger numbers as strings.",
)
MALFORMED_REQUEST = ProblemType(
    slug="malformed-request",
    status=400,
    title="Malformed HTTP request",
    detail="Send a valid HTTP/1.1 request, with at most 4 pipelined requests.",
    explanation="The request is not valid HTTP/1.1, or the client sent more than 4 further "
    "requests on one connection before the first response. The server closes the connection. A "
    "request needs exactly one `Host` header, which must be a host name or an address and "
    "optionally a port; only HTTP/1.0 may omit it. If the request target is a whole URL, its "
    "host counts instead.",
)
CREDENTIAL_REQUIRED = ProblemType(
    slug="credential-required",
    status=401,
    title="Authentication required",
    detail="Send an API key or a token from the configured issuer as `Authorization: Bearer ...`.",
    explanation="The request has no credential, but the service has keys, a bootstrap key or a "
    "token issuer, so every request needs one. Send a key or token as `Authorization: Bearer "
    "...`; see [security.md](security.md).",
    challenge='Bearer realm="caseworker"',
)
CREDENTIAL_REFUSED = ProblemType(
    slug="credential-refused",
    status=401,
    title="Invalid credentials",
    detail="The API key or token is unknown, incomplete, expired or revoked. Send a valid one as "
    "`Authorization: Bearer ...`.",
    explanation="`Authorization` contains no valid key or token. It is unknown, incomplete, "
    "expired, revoked, of another scheme, or for another service. A request with an invalid "
    "credential is never treated as anonymous.",
    challenge='Bearer realm="caseworker", error="invalid_token"',
)
ANONYMOUS_REFUSED = ProblemType(
    slug="anonymous-refused",
    status=403,
    title="Anonymous access is not allowed",
    detail="Requests without a key are accepted from this machine only, without a proxy in "
    "between. Create an API key, or set auth.anonymous to anywhere.",
    explanation="The client has no key and one of these applies: it is not on the service's own "
    "machine; a proxy forwarded its request (`X-Forwarded-For` and similar headers are never "
    "trusted); or a web page of another origin made a browser send it. `auth.anonymous: "
    "anywhere` accepts clients from anywhere; in that case, restrict access to the service on "
    "the network. For `/metrics`, only [`telemetry.metrics`](telemetry.md#metrics) and "
    "`telemetry.metrics_key` decide.",
)
SCOPE_MISSING = ProblemType(
    slug="scope-missing",
    status=403,
    title="Insufficient permissions",
    detail="Use an API key or token with the required scope.",
    explanation="The key or token is valid but lacks the required scope, which `detail` names.",
    challenge='Bearer realm="caseworker", error="insufficient_scope"',
)
ATTEMPT_SUPERSEDED = ProblemType(
    slug="attempt-superseded",
    status=409,
    title="A later attempt was opened",
    detail="Another client opened a later attempt of the run. This client must stop.",
    explanation="A later attempt of the external run was opened, so this client's key may no "
    "longer read, keep or finish the run. The client must stop.",
)
TENANT_REFUSED = ProblemType(
    slug="tenant-refused",
    status=403,
    title="Acting for another tenant requires the bootstrap key",
    detail="Omit tenant, or send the bootstrap key.",
    explanation="Only the operator of the service may create or list keys of another tenant.",
)
ROUTE_NOT_FOUND = ProblemType(
    slug="route-not-found",
    status=404,
    title="Resource not found",
    detail="Check the path. /openapi.json lists all paths.",
    explanation="The resource does not exist. `/openapi.json` lists all resources; their paths "
    "never end with a slash.",
)
METHOD_NOT_ALLOWED = ProblemType(
    slug="method-not-allowed",
    status=405,
    title="Method not allowed",
    detail="Use a method that the Allow header lists.",
    explanation="The resource does not support the method. `Allow` lists the supported methods.",
)
REQUEST_TIMEOUT = ProblemType(
    slug="request-timeout",
    status=408,
    title="Request timeout",
    detail="Send the request faster. server.head_timeout_seconds limits the time for the "
    "headers, and server.min_kb_per_second sets the minimum rate for the body.",
    explanation="The request head was not complete within `server.head_timeout_seconds`, or the "
    "body arrived more slowly than `server.min_kb_per_second`, measured over five seconds. The "
    "connection is closed and nothing was stored. The service also disconnects a client that "
    "reads its response more slowly than this rate.",
)
BODY_TOO_LARGE = ProblemType(
    slug="body-too-large",
    status=413,
    title="Request body too large",
    detail="Reduce the size of the request body.",
    explanation="The body exceeds `server.max_body_kb`, whether or not it declares its length. "
    "A body that may contain a graph may be larger by the maximum size of a graph.",
)
UNSUPPORTED_MEDIA_TYPE = ProblemType(
    slug="unsupported-media-type",
    status=415,
    title="Unsupported media type",
    detail="Send the body as application/json in UTF-8 without Content-Encoding.",
    explanation="The body is not JSON, is not encoded in UTF-8, or is compressed. Send it as "
    "`application/json` and without a `Content-Encoding`. Parameters of the media type other "
    "than `charset` have no effect.",
)
FORGED = ProblemType(
    slug="forwarding-refused",
    status=401,
    title="The request was not forwarded by a process of this installation",
    detail="Clients must not send the header X-Caseworker-Forwarded.",
    explanation="The request has the header `X-Caseworker-Forwarded`, with which the processes "
    "of an installation forward requests to each other, and its signature is wrong or older "
    "than a minute. Do not send this header. If a process gets this problem, compare the clocks "
    "of the hosts.",
)
HOST_REFUSED = ProblemType(
    slug="host-refused",
    status=421,
    title="Host not allowed",
    detail="Use an IP address or localhost, or add the host name to server.allowed_hosts.",
    explanation="The `Host` of the request is not an accepted name. The check prevents DNS "
    "rebinding: a page of another site could resolve its own name to this machine and call the "
    "service through a visitor's browser. IP addresses, `localhost`, `server.host` and the "
    "names in `server.allowed_hosts` are accepted. With `auth.anonymous: anywhere`, every name "
    "is accepted unless some are listed. `/healthz` and `/readyz` accept any name.",
)
INVALID_REQUEST = ProblemType(
    slug="invalid-request",
    status=422,
    title="Invalid request",
    detail="Correct the fields listed in errors and repeat the request.",
    explanation="The request is well-formed but invalid; `errors` names every field at fault. "
    "Unknown fields, and unknown or repeated query parameters are rejected. Strings may not "
    "contain NUL characters or unpaired surrogates, which the database cannot store.",
)
HEAD_TOO_LARGE = ProblemType(
    slug="head-too-large",
    status=431,
    title="Request header fields too large",
    detail="Send a shorter URL and fewer or shorter headers. server.max_head_kb and "
    "server.max_headers set the limits.",
    explanation="The request line and the headers are longer than `server.max_head_kb`, or "
    "there are more than `server.max_headers` headers. The server closes the connection.",
)
INTERNAL = ProblemType(
    slug="internal-error",
    status=500,
    title="Internal server error",
    detail="Report the request_id to the operator. A POST can be retried with the same run_id or "
    "Idempotency-Key without creating a second run.",
    explanation="An unexpected error occurred in the service. Its logs contain the cause under "
    "the `request_id`.",
)
UNAVAILABLE = ProblemType(
    slug="store-unavailable",
    status=503,
    title="Database unavailable",
    detail="The database does not respond or refuses writes; GET /readyz names the cause. The "
    "request may not have been stored. Retry it with the same run_id or Idempotency-Key after the "
    "number of seconds in Retry-After; this does not create a second run.",
    explanation="The database does not respond or refuses writes, or the request had no "
    "response within `server.request_timeout_seconds`. `/readyz` names the cause. The request "
    "may or may not be stored: send it again with the same `run_id` or `Idempotency-Key`.",
    retry_after_seconds=2,
)
TOO_MANY_CONNECTIONS = ProblemType(
    slug="too-many-connections",
    status=503,
    title="Too many open connections",
    detail="Close unused connections, or retry after the number of seconds in Retry-After.",
    explanation="The process is already handling `server.max_connections` requests, or nine "
    "tenths of that for the caller's tenant. If other tenants hold the connections, a request "
    "waits for two seconds before it is rejected.",
    retry_after_seconds=2,
)
TOO_MANY_BODIES = ProblemType(
    slug="too-many-bodies",
    status=503,
    title="Too many request bodies in transfer",
    detail=(
        "The request was neither read nor stored. Retry it after the number of seconds in "
        "Retry-After."
    ),
    explanation="The request bodies that the process is receiving exceed `server.max_bodies_mb` "
    "in total.",
    retry_after_seconds=2,
)
NOT_READY = ProblemType(
    slug="not-ready",
    status=503,
    title="Service not ready",
    detail="Send requests to another replica, or retry later. parts lists what is not ready.",
    explanation="Only `/readyz` returns this problem. `parts` lists the missing requirements, "
    "such as the database or a migration.",
    retry_after_seconds=2,
)


OF_EVERY_SERVICE = tuple(kind for kind in list(globals().values()) if isinstance(kind, ProblemType))
"""Problem types that do not belong to a feature."""

_OF_THE_FRAMEWORK: Mapping[int, ProblemType] = {
    400: MALFORMED_BODY,
    404: ROUTE_NOT_FOUND,
    405: METHOD_NOT_ALLOWED,
    413: BODY_TOO_LARGE,
}


@dataclass(frozen=True, slots=True)
class Violation:
    """An invalid field of a request, and the reason."""

    field: str
    """Path of the invalid field, such as ``budget.max_tokens``; empty for the body as a whole."""
    message: str


class ProblemError(HTTPException):
    """An error that the HTTP layer itself raises to reject a request.

    It subclasses the framework's HTTPException because only that passes through body parsing
    unchanged.
    """

    def __init__(
        self,
        kind: ProblemType,
        detail: str | None = None,
        *,
        violations: Sequence[Violation] = (),
        **members: Any,
    ) -> None:
        """Create the error; ``detail`` must not repeat request data.

        ``members`` are added to the problem document unchanged.
        """
        if detail is None and kind is INVALID_REQUEST and violations:
            detail = violations_text(violations)
        super().__init__(kind.status, detail or kind.detail)
        self.kind = kind
        self.violations = violations
        self.members = members


def violations_text(violations: Sequence[Violation]) -> str:
    """Return the first violations as one text, with the number of the remaining ones."""
    texts = [f"{one.field}: {one.message}" if one.field else one.message for one in violations]
    if len(texts) == 1:
        return texts[0]
    more = f" errors lists {len(texts) - 3} more." if len(texts) > 3 else ""
    return f"{len(texts)} fields are invalid. {' '.join(texts[:3])}{more}"


def invalid(field: str, message: str) -> ProblemError:
    """Return the error for a request with a single invalid field."""
    return ProblemError(INVALID_REQUEST, violations=[Violation(field, message)])


class Problems:
    """The problems that an application returns for the errors of its features."""

    def __init__(self, errors: "Errors") -> None:
        self._errors = _ERRORS | dict(errors)

    def handlers(self) -> dict[int | type[Exception], Any]:
        """Return the application's exception handlers, by exception class."""
        return dict.fromkeys(self._errors, self._answer)

    def of(self, error: Exception) -> ProblemError:
        """Return the problem for an error.

        Raises:
            LookupError: no problem type is registered for the error.
        """
        if isinstance(error, ProblemError):
            return error
        for kind in type(error).__mro__:
            if (entry := self._errors.get(kind)) is not None:
                return ProblemError(entry) if isinstance(entry, ProblemType) else entry(error)
        raise LookupError(type(error).__name__)

    async def _answer(self, request: Request, error: Exception) -> Response:
        refused = self.of(error)
        if refused.kind is METHOD_NOT_ALLOWED:
            allowed = _allowed_methods(request)
            refused.headers = {"Allow": allowed}
            refused.detail = f"This resource has the methods {allowed}."
        elif refused.kind is ROUTE_NOT_FOUND:
            paths = dict.fromkeys(route.path for route in _routes(request))
            refused.detail += suggestion(request.scope["path"], paths)
        return problem_response(request.scope, refused)


Errors = Mapping[type[Exception], ProblemType | Callable[[Any], ProblemError]]
"""Maps exception classes to problem types, or to functions that convert an exception to a problem.

The exceptions are independent of HTTP. A class without an entry uses the entry of its base class.
"""


def _scope_missing(error: ScopeMissingError) -> ProblemError:
    return ProblemError(SCOPE_MISSING, f"Use an API key or token with the scope {error.scope}.")


_ERRORS: dict[type[Exception], Any] = {
    HTTPException: lambda error: ProblemError(_OF_THE_FRAMEWORK.get(error.status_code, INTERNAL)),
    RequestValidationError: lambda error: ProblemError(
        INVALID_REQUEST, violations=violations_of(error.errors())
    ),
    CredentialRequiredError: CREDENTIAL_REQUIRED,
    InvalidCredentialError: CREDENTIAL_REFUSED,
    ScopeMissingError: _scope_missing,
    OtherTenantError: TENANT_REFUSED,
    StoreUnavailableError: UNAVAILABLE,
}


def problem_response(scope: Mapping[str, Any], error: ProblemError) -> Response:
    """Return the HTTP response with the problem document for an error.

    ``scope`` is that of the request, with its ID and, optionally, the URL of the documentation.
    """
    kind = error.kind
    document: dict[str, Any] = {
        "type": kind.page(scope.get(DOCS_URL)),
        "code": kind.slug,
        "title": kind.title,
        "status": kind.status,
        "detail": error.detail,
        "request_id": scope["request_id"],
    }
    if error.violations:
        document["errors"] = [asdict(violation) for violation in error.violations]
    headers = dict(error.headers or {})
    if kind.retry_after_seconds is not None:
        headers["Retry-After"] = str(kind.retry_after_seconds)
    if kind.challenge is not None:
        headers["WWW-Authenticate"] = kind.challenge
    content = json.dumps(document | error.members)
    return Response(content, kind.status, headers, media_type=MEDIA_TYPE)


def violations_of(errors: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """Convert pydantic errors to violations; return at most ``MAX_VIOLATIONS``."""
    return [
        Violation(field_of(_within(error["loc"])), _message(error))
        for error in islice(errors, MAX_VIOLATIONS)
    ]


def _allowed_methods(request: Request) -> str:
    """Return all methods of a resource, over all matching routes, as an Allow header."""
    methods = {
        method
        for route in _routes(request)
        if route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods)) or "GET, HEAD"


def _routes(request: Request) -> Iterator[APIRoute]:
    for route in request.app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            yield route


def _within(loc: Sequence[str | int]) -> Sequence[str | int]:
    return loc[1:] if loc and loc[0] in _PLACES else loc


def _message(error: Mapping[str, Any]) -> str:
    if error["loc"] == ("body",) and error["type"] != ERROR_TYPE:
        return "The body must be a JSON object."
    return validation_message(error)
