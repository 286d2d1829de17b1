"""Deliveries: what a receiver is sent of the end of a run, how often, and what became of it.

    pending -> delivered | dead        dead | delivered -> pending (sent again by hand)

A delivery is stored by the statement that ends its run. Its row says when it is due; a job of the
queue only wakes a process, which claims the delivery until a time by which the attempt has surely
ended. If the process is lost meanwhile the delivery is due again then: a message is delivered at
least once, and a receiver knows a repeated one by its id.
"""

import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

import structlog

from caseworker.control.retry import RetryPolicy, delay_seconds
from caseworker.observability.trace_context import HEADER
from caseworker.runs.errors import RunNotFoundError
from caseworker.runs.run import Run, RunKey
from caseworker.runs.service import RunService
from caseworker.trace.node import ROOT_ID
from caseworker.trace.spans import SpanOf
from caseworker.webhooks.signing import signed_headers

log = structlog.get_logger(__name__)

CLAIM_MARGIN_SECONDS = 5.0
"""How much longer than an attempt may take its claim lasts."""

GONE = 410
"""The status by which a receiver says that it wants no more."""


class DeliveryStatus(StrEnum):
    """Where a delivery stands."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"
    """Given up; it can be sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message to one receiver."""

    tenant: str
    delivery_id: str
    """The ``webhook-id`` of every attempt."""
    run_id: str
    type: str
    """Such as ``run.completed``."""
    url: str
    status: DeliveryStatus
    attempts: int
    created_at: datetime
    due_at: datetime | None
    """When the next attempt is made; None if there is none."""
    last_attempt_at: datetime | None = None
    last_status_code: int | None = None
    """The HTTP status that answered the last attempt."""
    last_error: str | None = None
    delivered_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A delivery that was claimed for one attempt, with the secrets that sign it.

    There is none if they were encrypted with another key than the configured one.
    """

    delivery: Delivery
    secrets: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an attempt met with."""

    status_code: int | None = None
    error: str | None = None
    """Why there was no answer, or what is wrong with it; None if it was taken."""
    retry_after_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    """Deliveries, newest first."""

    deliveries: Sequence[Delivery]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class SecretInfo:
    """A secret of a tenant, without the secret itself."""

    version: int
    created_at: datetime
    expires_at: datetime | None
    """None of the newest one."""


class DeliveryNotFoundError(LookupError):
    """There is no such delivery, or it belongs to somebody else."""


class DeliveryPendingError(Exception):
    """The delivery is still being attempted."""


class AttemptStore(Protocol):
    """Keeps what is attempted."""

    async def begin(self, tenant: str, delivery_id: str, *, claim_seconds: float) -> Attempt | None:
        """Claim a delivery that is due, and count the attempt; None if there is none."""
        ...

    async def end(
        self, delivery: Delivery, answer: Answer, *, status: DeliveryStatus, pause_seconds: float
    ) -> None:
        """Record what a claimed attempt met with; a pending delivery is due after the pause."""
        ...


class DeliveryStore(Protocol):
    """Shows deliveries to their tenants, and keeps the secrets that sign them."""

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
            DeliveryNotFoundError: there is none.
        """
        ...

    async def redeliver(self, tenant: str, delivery_id: str) -> Delivery:
        """Make a delivery that has ended due now, as if it had never been attempted.

        Raises:
            DeliveryNotFoundError: there is none.
            DeliveryPendingError: it has not ended.
        """
        ...

    async def rotate(self, tenant: str, secret: str, *, previous_seconds: float) -> SecretInfo:
        """Make ``secret`` the newest one; the one before it signs beside it for so long."""
        ...

    async def secrets(self, tenant: str) -> Sequence[SecretInfo]:
        """Return the secrets that sign now, newest first."""
        ...


class Sender(Protocol):
    """Sends one message."""

    async def send(
        self, url: str, body: bytes, headers: Mapping[str, str], *, attempt: int
    ) -> Answer:
        """POST a body; whatever goes wrong is in the answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryLimits:
    """How deliveries are made."""

    retry: RetryPolicy
    timeout_seconds: float
    """Of one attempt as a whole."""
    max_body_bytes: int


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Makes the attempts."""

    store: AttemptStore
    sender: Sender
    runs: RunService
    view: Callable[[Run], Awaitable[Mapping[str, Any]]]
    """How callers see a run."""
    limits: DeliveryLimits
    span_of: Callable[[Run], SpanOf | None] = lambda run: None
    """Returns the spans of a run that receivers are told of; None if they are told of none."""

    async def deliver(self, tenant: str, delivery_id: str) -> None:
        """Make one attempt, if the delivery is due; record what became of it."""
        claim_seconds = self.limits.timeout_seconds + CLAIM_MARGIN_SECONDS
        attempt = await self.store.begin(tenant, delivery_id, claim_seconds=claim_seconds)
        if attempt is None:
            return
        delivery = attempt.delivery
        try:
            run = await self.runs.get(RunKey(tenant, delivery.run_id))
        except RunNotFoundError:
            return  # erased meanwhile, its deliveries with it
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
    """Return the body of a message about a run; what makes it too long is left out."""
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
    """Return what an answer to the attempt of this number makes of a delivery.

    With it comes the pause before the next attempt, in seconds; ``jitter`` is from [-1, 1], by
    default drawn. Any status of 2xx is success, 410 ends the delivery, all else is tried again.
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
