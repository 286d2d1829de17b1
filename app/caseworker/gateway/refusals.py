"""Refusals of the gateway: their status, their text, and whether a client may repeat the request.

A client library takes 429 for a rate limit: it repeats the request, for minutes in some cases, and
may hide the reason. After 400, clients end and show the message. So 429 is only for requests that
can succeed within a minute.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Final

from caseworker.core.budget.stops import HandOver, Stop, StopCause, rfc3339
from caseworker.features.external.owners import NOT_OWNED
from caseworker.platform.http.problems import ProblemError

NO_RETRY: Final = {"x-should-retry": "false"}
MAX_RETRY_SECONDS: Final = 60
"""Longest ``Retry-After`` of a response with status 429."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The answer to a request that is not, or no longer, answered by a model or a tool."""

    status: int = HTTPStatus.BAD_REQUEST
    code: str
    message: str
    is_stop: bool = False
    """Whether all further calls of the run or of the attempt are refused."""
    field: str | None = None
    """Name of the field at fault."""
    resets_at: datetime | None = None
    """Time at which the period of an exceeded limit ends; None for other refusals."""
    retry_after_seconds: int | None = None
    """Seconds after which the client may repeat the request; None means never."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers by which a client decides whether to repeat the request."""
        if self.retry_after_seconds is None:
            return NO_RETRY
        return {"retry-after": str(self.retry_after_seconds)}

    @property
    def period(self) -> dict[str, str]:
        """The time at which the limit is lifted, as a member of an error; else empty."""
        return {} if self.resets_at is None else {"resets_at": rfc3339(self.resets_at)}


class RefusedError(Exception):
    """The request is refused."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


FINISHED: Final = Refusal(code="finished", message="The run has ended: completed.", is_stop=True)
SUPERSEDED: Final = Refusal(
    code="superseded", message="A later attempt of the run was opened.", is_stop=True
)


def provider_failed(message: str) -> Refusal:
    """Return the refusal of a call that failed at the provider after all attempts."""
    return Refusal(status=HTTPStatus.BAD_GATEWAY, code="provider_failed", message=message)


def of_problem(problem: ProblemError) -> Refusal:
    """Return the refusal for a problem of the HTTP layer.

    A client may repeat the request after the problem's ``Retry-After``, for 429 only if it is
    short.
    """
    status = problem.kind.status
    headers: Mapping[str, str] = problem.headers or {}
    retry_after = headers.get("Retry-After", problem.kind.retry_after_seconds)
    seconds = None if retry_after is None else math.ceil(float(retry_after))
    if status == HTTPStatus.TOO_MANY_REQUESTS and (seconds is None or seconds > MAX_RETRY_SECONDS):
        status, seconds = HTTPStatus.BAD_REQUEST, None
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        status = HTTPStatus.BAD_REQUEST
    reasons = [each.message for each in problem.violations] or [str(problem.detail)]
    return Refusal(
        status=status,
        code=problem.kind.slug,
        message=reasons[0],
        retry_after_seconds=seconds,
    )


RELEASED: Final = of_problem(ProblemError(NOT_OWNED))
"""Another process owns the run now, or will own it."""


def refusal_of(stop: Stop | StopCause | None) -> Refusal:
    """Return the refusal of a call by the stop of its run, or by the stored cause of its end.

    None means that the client has finished the run. A run that was released may be called again.
    """
    if isinstance(stop, HandOver):
        return RELEASED
    cause = stop.cause if isinstance(stop, Stop) else stop
    if cause is None:
        return FINISHED
    return Refusal(code=cause.kind, message=cause.message, is_stop=True, resets_at=cause.resets_at)
