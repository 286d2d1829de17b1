"""Webhook deliveries: the message about a finished run, its attempts and their outcome.

    pending -> delivered | dead        dead | delivered -> pending (redelivered by hand)

The statement that ends a run also stores its delivery. The row holds the due time; the queued job
only wakes a process. The process claims the delivery for longer than an attempt can take. If the
process dies, the claim expires and the delivery is due again. A message is therefore delivered at
least once, and a receiver recognizes a repeated one by its id.
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
"""Added to the timeout of an attempt to get the duration of its claim."""

GONE = 410
"""HTTP status by which a receiver declines further attempts."""


class DeliveryStatus(StrEnum):
    """The state of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"
    """Not retried any more; it can be redelivered by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message to one receiver."""

    tenant: str
    delivery_id: str
    """The ``webhook-id`` of every attempt."""
    run_id: str
    type: str
    """Event type, such as ``run.completed``."""
    url: str
    status: DeliveryStatus
    attempts: int
    created_at: datetime
    due_at: datetime | None
    """Time of the next attempt; None if none is planned."""
    last_attempt_at: datetime | None = None
    last_status_code: int | None = None
    """HTTP status of the response to the last attempt."""
    last_error: str | None = None
    delivered_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A delivery claimed for one attempt, with its signing secrets.

    ``secrets`` is empty if they were encrypted with a key other than the configured one.
    """

    delivery: Delivery
    secrets: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The outcome of an attempt."""

    status_code: int | None = None
    error: str | None = None
    """Why the attempt failed; None if the receiver accepted the message."""
    retry_after_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    """Deliveries, newest first."""

    deliveries: Sequence[Delivery]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class SecretInfo:
    """Metadata of a tenant's signing secret, without the secret itself."""

    version: int
    created_at: datetime
    expires_at: datetime | None
    """None for the newest secret."""


class DeliveryNotFoundError(LookupError):
    """The delivery does not exist or belongs to another tenant."""


class DeliveryPendingError(Exception):
    """The delivery is still pending."""


class AttemptStore(Protocol):
    """Stores claims and outcomes of delivery attempts."""

    async def begin(self, tenant: str, delivery_id: str, *, claim_seconds: float) -> Attempt | None:
        """Claim a delivery and count the attempt; return None if it is not due."""
        ...

    async def end(
        self, delivery: Delivery, answer: Answer, *, status: DeliveryStatus, pause_seconds: float
    ) -> None:
        """Store the outcome of a claimed attempt; a pending delivery is due after the pause."""
        ...


class DeliveryStore(Protocol):
    """Lists deliveries of a tenant and stores its signing secrets."""

    async def find(
        self,
        tenant: str,
        *,
        status: DeliveryStatus | None,
        run_id: str | None,
        limit: int,
        cursor: str | None,
    ) -> DeliveryPage:
        """Return a page of deliveries, newest first."""
        ...

    async def get(self, tenant: str, delivery_id: str) -> Delivery:
        """Return a delivery.

        Raises:
            DeliveryNotFoundError: the delivery does not exist.
        """
        ...

    async def redeliver(self, tenant: str, delivery_id: str) -> Delivery:
        """Make a delivered or dead delivery due now and reset its attempts.

        Raises:
            DeliveryNotFoundError: the delivery does not exist.
            DeliveryPendingError: the delivery is still pending.
        """
        ...

    async def rotate(self, tenant: str, secret: str, *, previous_seconds: float) -> SecretInfo:
        """Make ``secret`` the newest; the previous one also signs for ``previous_seconds``."""
        ...

    async def secrets(self, tenant: str) -> Sequence[SecretInfo]:
        """Return the active signing secrets, newest first."""
        ...


class Sender(Protocol):
    """Sends one message."""

    async def send(
        self, url: str, body: bytes, headers: Mapping[str, str], *, attempt: int
    ) -> Answer:
        """POST a body and return the outcome; failures are returned, not raised."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryLimits:
    """Retry policy, timeout and size limit of deliveries."""

    retry: RetryPolicy
    timeout_seconds: float
    """Total timeout of one attempt."""
    max_body_bytes: int


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Makes delivery attempts."""

    store: AttemptStore
    sender: Sender
    runs: RunService
    view: Callable[[Run], Awaitable[Mapping[str, Any]]]
    """Returns the public representation of a run."""
    limits: DeliveryLimits
    span_of: Callable[[Run], SpanOf | None] = lambda run: None
    """Returns the spans to propagate in the trace header; None sends no header."""

    async def deliver(self, tenant: str, delivery_id: str) -> None:
        """Make one attempt if the delivery is due, and store the outcome."""
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

    async def _answer(self, attempt: Attempt, run: Run) -> Answer:
        delivery = attempt.delivery
        if not attempt.secrets:
            return Answer(
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

    If it exceeds ``max_bytes``, the fields result, inputs and input are omitted one by one.
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
    answer: Answer, attempts: int, policy: RetryPolicy, *, jitter: float | None = None
) -> tuple[DeliveryStatus, float]:
    """Return the next status of a delivery and the seconds until the next attempt.

    ``attempts`` counts attempts so far; ``jitter`` is from [-1, 1], random by default. A 2xx status
    is success and 410 ends the delivery. Everything else is retried until retries are exhausted.
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
