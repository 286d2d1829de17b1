"""The steps of which every operation consists, and requests that are made again.

An operation is a generator. It yields what has to be done (send a request, pause, read from a
stream) and is sent what came of it; it does no I/O of its own. The two clients differ only in how
they do such a step, blocking or awaiting.
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
    """How long the answer, or the next part of it, may take; None is the client's own."""
    repeatable: bool = True
    """Whether making it twice does the same as making it once."""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``build_request``, which both kinds of HTTP clients have."""
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
    """Make a request; comes to an ``httpx.Response`` or an ``httpx.TransportError``.

    With ``stream`` the body of a success is left to be read by :class:`ReadChunk`.
    """

    request: Request
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Sleep:
    """Pause."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """Read from the open stream; comes to bytes, or to None once it has ended or was cut off."""


@dataclass(frozen=True, slots=True)
class Emit(Generic[T]):
    """Hand a value to the caller."""

    value: T


Step = Send | Sleep | ReadChunk
Flow = Generator[Step, Any, T]
"""An operation that comes to a value."""
Feed = Generator[Step | Emit[T], Any, None]
"""An operation that hands over values one by one."""


def ask(
    settings: Settings, request: Request, patience: Patience | None = None, *, stream: bool = False
) -> Flow[httpx.Response]:
    """Return a successful answer; a failure that may pass is followed by another attempt.

    Raises:
        ApiError: the service refused.
        ServiceUnreachableError: it does not answer.
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
    """Return the answer to a request as a model.

    Raises:
        ApiError: the service refused, or what answers is not the service.
        ServiceUnreachableError: it does not answer.
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
    """Tell whether a request can be made again and may succeed then."""
    if isinstance(outcome, httpx.Response):
        # 429 refuses before anything is done; behind the others something may have been.
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
    """Return the seconds that ``Retry-After`` names, as a number or as a date."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return max((at - datetime.now(UTC)).total_seconds(), 0) if at.tzinfo else None
