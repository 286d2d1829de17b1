"""Convert errors to problem documents (RFC 9457), which never repeat request data.

A problem document states the kind of error (``type``), how to resolve it (``detail``) and which
fields are invalid (``errors``). It also contains the request ID, which finds the request in the
logs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match

from caseworker.api import problem_types as types
from caseworker.api.problem_types import ProblemType
from caseworker.api.violations import Violation, graph_violations, violations_of
from caseworker.core.budget.budget import json_number
from caseworker.features.access.errors import (
    CredentialRequiredError,
    InvalidCredentialError,
    KeyConflictError,
    KeyNotFoundError,
    OtherTenantError,
    ScopeMissingError,
)
from caseworker.features.schedules.schedule import ScheduleNotFoundError, TooManySchedulesError
from caseworker.features.threads.thread import (
    AnswerNotEndedError,
    MessageNotFoundError,
    ThreadConflictError,
    ThreadFullError,
    ThreadNotFoundError,
)
from caseworker.features.webhooks.delivery import DeliveryNotFoundError, DeliveryPendingError
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.errors import (
    ApprovalDecidedError,
    ApprovalNotFoundError,
    ArtifactNotFoundError,
    CallNotFoundError,
    DefinitionInUseError,
    DefinitionNotFoundError,
    GraphRefusedError,
    IdempotencyMismatchError,
    InvalidArgumentsError,
    InvalidRunError,
    QueueFullError,
    RunConflictError,
    RunNotEndedError,
    RunNotFoundError,
    SourceNotEndedError,
    SourceNotFoundError,
    TooManyPendingCancelsError,
)
from caseworker.runs.quotas import QuotaExceededError, RateState

MEDIA_TYPE = "application/problem+json"

DOMAIN: Mapping[type[Exception], ProblemType] = MappingProxyType(
    {
        CredentialRequiredError: types.CREDENTIAL_REQUIRED,
        InvalidCredentialError: types.CREDENTIAL_REFUSED,
        ScopeMissingError: types.SCOPE_MISSING,
        OtherTenantError: types.TENANT_REFUSED,
        KeyNotFoundError: types.KEY_NOT_FOUND,
        KeyConflictError: types.KEY_CONFLICT,
        RunNotFoundError: types.RUN_NOT_FOUND,
        RunNotEndedError: types.RUN_NOT_ENDED,
        SourceNotEndedError: types.RUN_NOT_ENDED,
        RunConflictError: types.RUN_CONFLICT,
        IdempotencyMismatchError: types.IDEMPOTENCY_MISMATCH,
        InvalidRunError: types.INVALID_REQUEST,
        InvalidArgumentsError: types.INVALID_REQUEST,
        GraphRefusedError: types.INVALID_REQUEST,
        DefinitionNotFoundError: types.GRAPH_NOT_FOUND,
        ArtifactNotFoundError: types.ARTIFACT_NOT_FOUND,
        CallNotFoundError: types.CALL_NOT_FOUND,
        ApprovalNotFoundError: types.APPROVAL_NOT_FOUND,
        ApprovalDecidedError: types.APPROVAL_DECIDED,
        DefinitionInUseError: types.GRAPH_IN_USE,
        ThreadNotFoundError: types.THREAD_NOT_FOUND,
        MessageNotFoundError: types.MESSAGE_NOT_FOUND,
        ThreadConflictError: types.THREAD_CONFLICT,
        ThreadFullError: types.THREAD_FULL,
        AnswerNotEndedError: types.ANSWER_NOT_ENDED,
        ScheduleNotFoundError: types.SCHEDULE_NOT_FOUND,
        TooManySchedulesError: types.TOO_MANY_SCHEDULES,
        DeliveryNotFoundError: types.DELIVERY_NOT_FOUND,
        DeliveryPendingError: types.DELIVERY_PENDING,
        TooManyPendingCancelsError: types.TOO_MANY_PENDING_CANCELS,
        QueueFullError: types.QUEUE_FULL,
        QuotaExceededError: types.QUOTA_EXCEEDED,
        StoreUnavailableError: types.UNAVAILABLE,
    }
)
"""Problem type for each domain error. Domain errors are independent of HTTP."""

_OF_THE_FRAMEWORK: Mapping[int, ProblemType] = MappingProxyType(
    {
        400: types.MALFORMED_BODY,
        404: types.ROUTE_NOT_FOUND,
        405: types.METHOD_NOT_ALLOWED,
        413: types.BODY_TOO_LARGE,
    }
)


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
        super().__init__(kind.status, detail or kind.detail)
        self.kind = kind
        self.violations = violations
        self.members = members


def invalid(field: str, message: str) -> ProblemError:
    """Return the error for a request with a single invalid field."""
    return ProblemError(types.INVALID_REQUEST, violations=[Violation(field, message)])


def handlers() -> dict[int | type[Exception], Any]:
    """Return the application's exception handlers, by exception class or status code."""
    answered = (HTTPException, RequestValidationError, *DOMAIN)
    return dict.fromkeys(answered, _answer)


def problem_response(request_id: str, error: ProblemError) -> Response:
    """Return the HTTP response with the problem document for an error."""
    kind = error.kind
    document: dict[str, Any] = {
        "type": kind.uri,
        "title": kind.title,
        "status": kind.status,
        "detail": error.detail,
        "request_id": request_id,
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


async def _answer(request: Request, error: Exception) -> Response:
    refused = as_problem(error)
    if refused.kind is types.METHOD_NOT_ALLOWED:
        refused.headers = {"Allow": _allowed_methods(request)}
    return problem_response(request.scope["request_id"], refused)


def as_problem(error: Exception) -> ProblemError:
    """Return the problem for an error, by its registered problem type.

    Raises:
        StopIteration: no problem type is registered for the error.
    """
    match error:
        case ProblemError():
            return error
        case RequestValidationError():
            return ProblemError(types.INVALID_REQUEST, violations=violations_of(error.errors()))
        case ScopeMissingError():
            detail = f"Use an API key or token with the scope {error.scope}."
            return ProblemError(types.SCOPE_MISSING, detail)
        case InvalidRunError():
            return invalid(error.field, str(error))
        case InvalidArgumentsError():
            violations = [Violation(field, message) for field, message in error.problems]
            return ProblemError(types.INVALID_REQUEST, violations=violations)
        case GraphRefusedError():
            return _graph_refused(error)
        case DefinitionInUseError():
            users = ", ".join(f"{one.kind.value} {one.name}@{one.version}" for one in error.users)
            detail = f"First delete the definitions that use it: {users}."
            return ProblemError(types.BY_SLUG[f"{error.ref.kind}-in-use"], detail)
        case DefinitionNotFoundError():
            return ProblemError(types.BY_SLUG[f"{error.ref.kind}-not-found"])
        case SourceNotFoundError():
            violation = Violation("from.run_id", "No run has this ID.")
            return ProblemError(types.RUN_NOT_FOUND, violations=[violation])
        case SourceNotEndedError():
            violation = Violation("from.run_id", "The run with this ID has not ended.")
            return ProblemError(types.RUN_NOT_ENDED, violations=[violation])
        case AnswerNotEndedError():
            violation = Violation(error.field, "This message is still being generated.")
            return ProblemError(types.ANSWER_NOT_ENDED, violations=[violation])
        case QuotaExceededError():
            return _quota_exceeded(error)
        case QueueFullError():
            refused = ProblemError(types.QUEUE_FULL)
            refused.headers = rate_headers(error.rate)
            return refused
        case HTTPException():
            return ProblemError(_OF_THE_FRAMEWORK.get(error.status_code, types.INTERNAL))
    return ProblemError(next(DOMAIN[kind] for kind in type(error).__mro__ if kind in DOMAIN))


def rate_headers(rate: RateState | None) -> dict[str, str]:
    """Return the headers that describe a tenant's rate limit for runs; empty without a limit.

    They follow draft-ietf-httpapi-ratelimit-headers-10.
    """
    if rate is None:
        return {}
    return {
        "RateLimit-Policy": f'"runs";q={rate.limit};w=60',
        "RateLimit": f'"runs";r={rate.remaining};t={rate.reset_seconds}',
    }


_WHAT_TO_DELETE: Final[Mapping[str, str]] = {
    "stored_bytes": "Delete unused runs (DELETE /runs/{run_id}/record), threads, schedules, or "
    "versions of graphs and agents, or ask the operator for shorter retention or "
    "more storage.",
    "definitions": "Delete unused versions of graphs and agents (DELETE "
    "/graphs/{name}/versions/{version}).",
    "threads": "Delete unused threads (DELETE /threads/{thread_id}).",
}


def _quota_exceeded(error: QuotaExceededError) -> ProblemError:
    amounts = {name: json_number(amount) for name, amount in error.amounts.items()}
    detail = f"Quota exceeded: {error}. {types.QUOTA_EXCEEDED.detail}"
    if (advice := _WHAT_TO_DELETE.get(error.dimension)) is not None:
        detail = f"{detail} {advice}"
    refused = ProblemError(
        types.QUOTA_EXCEEDED, detail, quota={"dimension": error.dimension, **amounts}
    )
    refused.headers = {"Retry-After": str(error.retry_after_seconds), **rate_headers(error.rate)}
    return refused


def _graph_refused(error: GraphRefusedError) -> ProblemError:
    """List the problems of a graph, and the number of those beyond the limit."""
    violations = graph_violations(error.problems, error.kind.value)
    unnamed = len(error.problems) - len(violations)
    detail = types.INVALID_REQUEST.detail
    if unnamed:
        detail = f"{detail} The {error.kind.value} has {unnamed} more problems that are not listed."
    return ProblemError(types.INVALID_REQUEST, detail, violations=violations)


def _allowed_methods(request: Request) -> str:
    """Return all methods of a resource, over all matching routes, as an Allow header."""
    found = {
        method
        for route in request.app.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        if route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    return ", ".join(sorted(found)) or "GET"
