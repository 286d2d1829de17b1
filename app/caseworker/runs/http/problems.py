"""Problem types of runs, and the problems for errors that run operations raise.

Messages about graphs and agents never repeat request data.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from caseworker.core.budget.budget import json_number
from caseworker.core.graph.problems import Problem
from caseworker.platform.http.problems import (
    INVALID_REQUEST,
    Errors,
    ProblemError,
    ProblemType,
    Violation,
    invalid,
    violations_text,
)
from caseworker.platform.logs.redaction import redact_text
from caseworker.platform.validation import field_of
from caseworker.runs.errors import (
    GraphRefusedError,
    IdempotencyMismatchError,
    InvalidRunError,
    QueueFullError,
    QuotaExceededError,
    RateState,
    RunConflictError,
    RunNotEndedError,
    RunNotFoundError,
    SourceNotEndedError,
    SourceNotFoundError,
    TooManyPendingCancelsError,
)

MAX_GRAPH_VIOLATIONS = 100
"""Maximum number of graph problems reported in one response."""

_QUOTED = re.compile("'[^']*'")
_ORDINARY = re.compile("'[A-Za-z_-]{0,15}[0-9]{0,4}'", re.ASCII)
"""Names too short to be a secret. Most names are, and redacting all of them would be slow."""
_ODD = ('"', "\\", "...")
"""Signs that a name contains quotes or was truncated, so that its end cannot be found."""
_TORN = re.compile(r"(?<![^\s'\"])[^\s'\"]{1,100}?\.\.\.")
"""A truncated word, which no redaction rule can recognize anymore."""

_INDEX = re.compile("[0-9]{1,9}", re.ASCII)


def graph_refused(error: GraphRefusedError) -> ProblemError:
    """Return an error that lists a graph's problems, and the number of unlisted ones."""
    violations = graph_violations(error.problems, error.kind.value)
    unnamed = len(error.problems) - len(violations)
    detail = violations_text(violations)
    if unnamed:
        detail = f"{detail} The {error.kind.value} has {unnamed} more problems that are not listed."
    return ProblemError(INVALID_REQUEST, detail, violations=violations)


def graph_violations(problems: Sequence[Problem], *field: str) -> list[Violation]:
    """Convert problems of a graph or agent to violations.

    ``field`` is the path of the body field that holds the graph or agent; without it, the body
    itself is the graph or agent.
    """
    return [
        Violation(field_of((*field, *_path_of(problem.place))), words_of(problem))
        for problem in problems[:MAX_GRAPH_VIOLATIONS]
    ]


def words_of(problem: Problem) -> str:
    """Return the message of a graph problem, with secrets in quoted names redacted."""
    message = problem.message
    if any(odd in message for odd in _ODD):
        return redact_text(_TORN.sub("...", message))
    return _QUOTED.sub(_name, message)


def _path_of(place: str) -> list[str | int]:
    parts = place.split(".") if place else []
    return [int(part) if _INDEX.fullmatch(part) else part for part in parts]


def _name(quoted: re.Match[str]) -> str:
    name = quoted.group()
    return name if _ORDINARY.fullmatch(name) else redact_text(name)


RUN_NOT_FOUND = ProblemType(
    slug="run-not-found",
    status=404,
    title="Run not found",
    detail="No run has this ID. A pending cancel request does not create a run.",
    explanation="No run has this ID, or the run belongs to another tenant. A pending cancel of "
    "a run that does not exist yet does not count as a run.",
)
RUN_CONFLICT = ProblemType(
    slug="run-conflict",
    status=409,
    title="Run ID already used for a different request",
    detail="Use another run_id, or repeat the original request unchanged. A run_id and an "
    "Idempotency-Key sent together must identify the same run.",
    explanation="The `run_id` belongs to a run with another body or another `Idempotency-Key`, "
    "or the `Idempotency-Key` belongs to a run with another ID. Choose another ID, or repeat "
    "the original request unchanged.",
)
RUN_NOT_ENDED = ProblemType(
    slug="run-not-ended",
    status=409,
    title="Run has not ended",
    detail="Wait until the run ends or cancel it, then repeat the request.",
    explanation="The run in `from.run_id` has not finished, so it cannot be resumed or forked. "
    "Wait for its end, or cancel it, and send the request again.",
)
IDEMPOTENCY_MISMATCH = ProblemType(
    slug="idempotency-mismatch",
    status=422,
    title="Idempotency key already used for a different request",
    detail="Use a new Idempotency-Key, or repeat the original request unchanged.",
    explanation="The `Idempotency-Key` was used before with another body. Bodies are compared "
    "by meaning: the order of fields, white space, null for an omitted field, and the `run_id` "
    "make no difference.",
)
TOO_MANY_PENDING_CANCELS = ProblemType(
    slug="too-many-pending-cancels",
    status=429,
    title="Too many pending cancel requests for unknown runs",
    detail="Check the run IDs. Pending cancel requests expire; retry later.",
    explanation="Too many cancel requests are pending for runs that do not exist "
    "(`cancellation.max_early_intents`). They expire automatically. The usual cause is a caller "
    "that cancels runs with wrong IDs.",
    retry_after_seconds=60,
)
QUEUE_FULL = ProblemType(
    slug="queue-full",
    status=429,
    title="Run queue is full",
    detail="The request was not stored. Retry it after the number of seconds in Retry-After.",
    explanation="Too many runs wait for a worker (`admission.max_queued`). Nothing was stored. "
    "If the queue is full, tenants with few queued runs are rejected last.",
    retry_after_seconds=2,
)
QUOTA_EXCEEDED = ProblemType(
    slug="quota-exceeded",
    status=429,
    title="Quota exceeded",
    detail="The request was not stored. Retry it after the number of seconds in Retry-After.",
    explanation="A quota of the tenant is exhausted; nothing was stored. `quota` gives the "
    "`dimension` and the used, reserved, requested and allowed amounts. Send the same request "
    "again after `Retry-After` seconds. If a storage quota is exhausted (`stored_bytes`, "
    "`definitions`, `threads`), first delete the records that `detail` lists. See "
    "[quotas.md](quotas.md).",
)
TOO_MANY_STREAMS = ProblemType(
    slug="too-many-streams",
    status=429,
    title="Too many open event streams",
    detail="Close unused streams, read the events in pages (Accept: application/json), or retry "
    "after the number of seconds in Retry-After.",
    explanation="This process has reached its limit of open event streams. Close unused "
    "streams, or read the events page by page: `GET /runs/{run_id}/events` with `Accept: "
    "application/json` needs no stream. A stream ends together with its run.",
    retry_after_seconds=5,
)


def rate_headers(rate: RateState) -> dict[str, str]:
    """Return the headers that describe a tenant's rate limit for runs.

    The headers follow draft-ietf-httpapi-ratelimit-headers-10.
    """
    return {
        "RateLimit-Policy": f'"runs";q={rate.limit};w=60',
        "RateLimit": f'"runs";r={rate.remaining};t={rate.reset_seconds}',
    }


_ADVICE: Final[Mapping[str, str]] = {
    "stored_bytes": "Delete unused runs (DELETE /runs/{run_id}/record), threads, schedules, or "
    "versions of graphs and agents, or ask the operator for shorter retention or "
    "more storage.",
    "definitions": "Delete unused versions of graphs and agents (DELETE "
    "/graphs/{name}/versions/{version}).",
    "threads": "Delete unused threads (DELETE /threads/{thread_id}).",
}


def _quota_exceeded(error: QuotaExceededError) -> ProblemError:
    amounts = {name: json_number(amount) for name, amount in error.amounts.items()}
    detail = f"Quota exceeded: {error}. {QUOTA_EXCEEDED.detail}"
    if (advice := _ADVICE.get(error.dimension)) is not None:
        detail = f"{detail} {advice}"
    refused = ProblemError(QUOTA_EXCEEDED, detail, quota={"dimension": error.dimension, **amounts})
    refused.headers = {"Retry-After": str(error.retry_after_seconds)}
    if error.rate is not None:
        refused.headers |= rate_headers(error.rate)
    return refused


def _queue_full(error: QueueFullError) -> ProblemError:
    refused = ProblemError(QUEUE_FULL)
    refused.headers = {} if error.rate is None else rate_headers(error.rate)
    return refused


def _source(kind: ProblemType, message: str) -> Callable[[Exception], ProblemError]:
    return lambda _: ProblemError(kind, violations=[Violation("from.run_id", message)])


ERRORS: Errors = {
    RunNotFoundError: RUN_NOT_FOUND,
    RunNotEndedError: RUN_NOT_ENDED,
    SourceNotFoundError: _source(RUN_NOT_FOUND, "No run has this ID."),
    SourceNotEndedError: _source(RUN_NOT_ENDED, "The run with this ID has not ended."),
    RunConflictError: RUN_CONFLICT,
    IdempotencyMismatchError: IDEMPOTENCY_MISMATCH,
    InvalidRunError: lambda error: invalid(error.field, str(error)),
    GraphRefusedError: graph_refused,
    TooManyPendingCancelsError: TOO_MANY_PENDING_CANCELS,
    QueueFullError: _queue_full,
    QuotaExceededError: _quota_exceeded,
}

PROBLEMS = (QUEUE_FULL, QUOTA_EXCEEDED, TOO_MANY_STREAMS)
"""Problem types of runs that do not appear as values in :data:`ERRORS`."""
