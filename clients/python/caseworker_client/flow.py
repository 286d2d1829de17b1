"""Operations as generators of I/O steps, and retries of failed requests.

An operation is a generator without I/O. It yields steps (send a request, pause, read from a stream)
and receives their outcomes. The synchronous and the asynchronous client differ only in how they
execute these steps.
"""

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar, cast

import httpx

from caseworker_client.errors import ApiError, CaseworkerError, ServiceUnreachableError
from caseworker_client.models import Answer
from caseworker_client.settings import Patience, Settings

T = TypeVar("T")
A = TypeVar("A", bound=Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to the service."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    json: Any = None
    timeout_seconds: float | None = None
    """Timeout for the response, or for its next chunk; None uses the client's timeout."""
    repeatable: bool = True
    """Whether the request is idempotent and may be retried after an unknown outcome."""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``build_request``, which both HTTP clients accept."""
        given = {
            "method": self.method,
            "url": self.path,
            "params": self.params,
            "headers": self.headers,
            "json": self.json,
        }
        timed = {} if self.timeout_seconds is None else {"timeout": self.timeout_seconds}
        return given | timed


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; the outcome is an ``httpx.Response`` or an ``httpx.TransportError``.

    With ``stream``, a successful body is left unread for :class:`ReadChunk`.
    """

    request: Request
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Sleep:
    """Pause the operation."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """Read from the open stream; the outcome is bytes, or None if it ended or was interrupted."""


@dataclass(frozen=True, slots=True)
class Emit(Generic[T]):
    """Yield a value to the caller."""

    value: T


Step = Send | Sleep | ReadChunk
Flow = Generator[Step, Any, T]
"""An operation that returns a value."""
Feed = Generator[Step | Emit[T], Any, None]
"""An operation that yields values."""


def ask(
    settings: Settings, request: Request, patience: Patience | None = None, *, stream: bool = False
) -> Flow[httpx.Response]:
    """Send a request, retry transient failures and return the successful response.

    Raises:
        ApiError: the service returned an error.
        ServiceUnreachableError: the service does not answer.
    """
    patience = patience or Patience(settings.retry)
    while True:
        outcome: httpx.Response | httpx.TransportError = yield Send(request, stream)
        if isinstance(outcome, httpx.Response) and outcome.is_success:
            patience.restored()
            return outcome
        failure = _failure_of(settings, outcome)
        if not _may_pass(request, outcome):
            raise failure
        asked = failure.retry_after_seconds if isinstance(failure, ApiError) else None
        pause = patience.pause_until_next(asked)
        if pause is None:
            raise failure
        yield Sleep(pause)


def fetch(
    settings: Settings, request: Request, model: type[A], patience: Patience | None = None
) -> Flow[A]:
    """Send a request and parse the response as ``model``.

    Raises:
        ApiError: the service returned an error, or the response is not from the service.
        ServiceUnreachableError: the service does not answer.
    """
    response = yield from ask(settings, request, patience)
    try:
        return model.of(response)
    except ValueError as error:
        detail = f"{request.method} {request.path}: no {model.__name__} in the answer"
        problem = {"title": "This is not an answer of Caseworker", "detail": detail}
        raise ApiError(response.status_code, problem) from error


def _failure_of(
    settings: Settings, outcome: httpx.Response | httpx.TransportError
) -> CaseworkerError:
    if not isinstance(outcome, httpx.Response):
        failure = ServiceUnreachableError(
            f"No answer from {settings.base_url}: {str(outcome) or type(outcome).__name__}"
        )
        failure.__cause__ = outcome
        return failure
    return ApiError(
        outcome.status_code,
        _problem(outcome),
        request_id=outcome.headers.get("x-request-id"),
        retry_after_seconds=_retry_after(outcome.headers.get("retry-after")),
    )


def _may_pass(request: Request, outcome: httpx.Response | httpx.TransportError) -> bool:
    """Return whether a failed request may be retried and could then succeed."""
    if isinstance(outcome, httpx.Response):
        # With 429 nothing was executed. With the other statuses, the request may have been
        # executed.
        return outcome.status_code == 429 or (
            request.repeatable and outcome.status_code in (502, 503, 504)
        )
    if isinstance(outcome, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
        return False
    return request.repeatable or isinstance(outcome, httpx.ConnectError | httpx.ConnectTimeout)


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        problem: Any = json.loads(response.content)
    except ValueError:
        return {}
    return cast("dict[str, Any]", problem) if isinstance(problem, dict) else {}


def _retry_after(text: str | None) -> float | None:
    """Parse a ``Retry-After`` header, which is a number or a date, into seconds."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return max((at - datetime.now(UTC)).total_seconds(), 0) if at.tzinfo else None
