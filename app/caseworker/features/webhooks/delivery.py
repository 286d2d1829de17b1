"""Webhook deliveries: messages about finished runs, attempts to deliver them, and the outcomes.

    pending -> delivered | dead        dead | delivered -> pending (redelivered manually)

The SQL statement that ends a run also stores its delivery. The delivery's row holds its due time;
the queued job only wakes a process. The process claims the delivery for longer than an attempt can
take. If the process dies, the claim expires and the delivery is due again. A message is therefore
delivered at least once, and a receiver recognizes a repeated one by its ID.
"""

import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

import structlog

from caseworker.core.budget.retry import RetryPolicy, delay_seconds
from caseworker.core.trace.node import ROOT_ID
from caseworker.core.trace.spans import SpanOf
from caseworker.features.webhooks.signing import signed_headers
from caseworker.platform.logs.trace_context import HEADER
from caseworker.runs.errors import RunNotFoundError
from caseworker.runs.run import Run, RunKey
from caseworker.runs.service import RunService

log = structlog.get_logger(__name__)

CLAIM_MARGIN_SECONDS = 5.0
"""Seconds that the claim on a delivery lasts beyond the timeout of the attempt."""

GONE = 410
"""HTTP status with which a receiver refuses any further attempts."""


class DeliveryStatus(StrEnum):
    """The state of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"
    """No further attempts are made, but an operator can redeliver the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message to one receiver about one run."""

    tenant: str
    delivery_id: str
    """ID of the delivery, sent as ``webhook-id`` with every attempt."""
    run_id: str
    type: str
    """Type of the event, such as ``run.completed``."""
    url: str
    status: DeliveryStatus
    attempts: int
    created_at: datetime
    due_at: datetime | None
    """Time of the next attempt; None if there will be none."""
    last_attempt_at: datetime | None = None
    last_status_code: int | None = None
    """HTTP status of the response to the last attempt; None without a response."""
    last_error: str | None = None
    delivered_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A delivery that was claimed for one attempt, with the secrets to sign it.

    ``secrets`` is empty if they were encrypted with a key that differs from the configured one.
    """

    delivery: Delivery
    secrets: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointAnswer:
    """The outcome of one attempt to deliver a message."""

    status_code: int | None = None
    error: str | None = None
    """Reason why the attempt failed; None if the receiver accepted the message."""
    retry_after_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    """A page of deliveries, newest first."""

    deliveries: Sequence[Delivery]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class SecretInfo:
    """A tenant's signing secret as shown in lists, without the secret itself."""

    version: int
    created_at: datetime
    expires_at: datetime | None
    """Time at which the secret stops signing; None for the newest secret."""


class DeliveryNotFoundError(LookupError):
    """The delivery does not exist or belongs to another tenant."""


class DeliveryPendingError(Exception):
    """The operation requires a finished delivery, but this one is still pending."""


class AttemptStore(Protocol):
    """Claims deliveries for attempts and stores the outcomes."""

    async def begin(self, tenant: str, delivery_id: str, *, claim_seconds: float) -> Attempt | None:
        """Claim a delivery and count the attempt; return None if it is not due."""
        ...

    async def end(
        self,
        delivery: Delivery,
        answer: EndpointAnswer,
        *,
        status: DeliveryStatus,
        pause_seconds: float,
    ) -> None:
        """Store the outcome of an attempt.

        If ``status`` is ``pending``, the next attempt is due after ``pause_seconds``.
        """
        ...


class Sender(Protocol):
    """Sends the HTTP request of one attempt."""

    async def send(
        self, url: str, body: bytes, headers: Mapping[str, str], *, attempt: int
    ) -> EndpointAnswer:
        """POST a body and return the outcome; failures are returned, not raised."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryLimits:
    """Retry policy, timeout and maximum body size for deliveries."""

    retry: RetryPolicy
    timeout_seconds: float
    """Timeout of one attempt in seconds, from name resolution to the response."""
    max_body_bytes: int


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Sends webhook messages and stores the outcomes."""

    store: AttemptStore
    sender: Sender
    runs: RunService
    view: Callable[[Run], Awaitable[Mapping[str, Any]]]
    """Function that returns the public representation of a run, for the message."""
    limits: DeliveryLimits
    span_of: Callable[[Run], SpanOf | None] = lambda run: None
    """Function that returns a run's trace contexts by CallNode ID, for the request's trace header.
    If it returns None, no header is sent."""

    async def deliver(self, tenant: str, delivery_id: str) -> None:
        """Make one attempt at a delivery if it is due, and store the outcome."""
        claim_seconds = self.limits.timeout_seconds + CLAIM_MARGIN_SECONDS
        attempt = await self.store.begin(tenant, delivery_id, claim_seconds=claim_seconds)
        if attempt is None:
            return
        delivery = attempt.delivery
        try:
            run = await self.runs.get(RunKey(tenant, delivery.run_id))
        except RunNotFoundError:
            return  # the run was erased after the claim, and its deliveries with it
        answer = await self._answer(attempt, run)
        status, pause = verdict_of(answer, delivery.attempts, self.limits.retry)
        await self.store.end(delivery, answer, status=status, pause_seconds=pause)
        if status is DeliveryStatus.DEAD:
            log.warning("webhook.dead", run_id=delivery.run_id, attempts=delivery.attempts)

    async def _answer(self, attempt: Attempt, run: Run) -> EndpointAnswer:
        delivery = attempt.delivery
        if not attempt.secrets:
            return EndpointAnswer(
                error="The signing secret cannot be decrypted with webhooks.encryption_key."
            )
        most = self.limits.max_body_bytes
        body = message_of(delivery.type, await self.view(run), max_bytes=most)
        headers = signed_headers(
            attempt.secrets, message_id=delivery.delivery_id, at=datetime.now(UTC), body=body
        )
        if (span_of := self.span_of(run)) is not None:
            headers[HEADER] = span_of(ROOT_ID).header
        return await self.sender.send(delivery.url, body, headers, attempt=delivery.attempts)


def message_of(type_: str, run: Mapping[str, Any], *, max_bytes: int) -> bytes:
    """Return the JSON body of a message about a run.

    If it exceeds ``max_bytes``, the fields ``result``, ``inputs`` and ``input`` are left out, one
    after the other.
    """
    data, omitted = dict(run), list[str]()
    message = {"type": type_, "timestamp": data["finished_at"], "data": data}
    body = _as_json(message)
    for name in ("result", "inputs", "input"):
        if len(body) > max_bytes and data.get(name) is not None:
            data[name] = None
            omitted.append(name)
            body = _as_json({**message, "omitted": omitted})
    return body


def verdict_of(
    answer: EndpointAnswer, attempts: int, policy: RetryPolicy, *, jitter: float | None = None
) -> tuple[DeliveryStatus, float]:
    """Return the next status of a delivery, and the seconds until the next attempt.

    ``attempts`` is the number of attempts so far. ``jitter`` is from [-1, 1]; None draws it at
    random. A 2xx response means success, and 410 ends the delivery. Everything else is retried
    until no retries are left.
    """
    if answer.error is None:
        return DeliveryStatus.DELIVERED, 0.0
    if attempts > policy.max_retries or answer.status_code == GONE:
        return DeliveryStatus.DEAD, 0.0
    drawn = random.uniform(-1, 1) if jitter is None else jitter
    pause = delay_seconds(policy, attempts - 1, drawn, max(0.0, answer.retry_after_seconds))
    return DeliveryStatus.PENDING, pause


def _as_json(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
