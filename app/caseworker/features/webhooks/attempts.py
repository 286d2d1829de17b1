"""Attempts to deliver webhook messages, and the retry policy; see ``delivery.py``."""

import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final
from uuid import uuid4

import structlog

from caseworker.core.budget.retry import RetryPolicy, delay_seconds
from caseworker.core.trace.node import ROOT_ID
from caseworker.core.trace.spans import SpanOf
from caseworker.features.webhooks.delivery import Attempt, DeliveryStatus, EndpointAnswer
from caseworker.features.webhooks.postgres import PostgresWebhooks
from caseworker.features.webhooks.sender import WebhookSender
from caseworker.platform.logs.trace_context import HEADER
from caseworker.platform.signing import signed_headers
from caseworker.runs.errors import RunNotFoundError
from caseworker.runs.run import Run, RunKey
from caseworker.runs.service import RunService

log = structlog.get_logger(__name__)

CLAIM_MARGIN_SECONDS = 5.0
"""Seconds that the claim on a delivery lasts beyond the timeout of the attempt."""

TEST: Final = "webhook.test"
"""Type of the message that tests a receiver."""

STATUS_GONE = 410
"""HTTP status with which a receiver refuses any further attempts."""


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

    store: PostgresWebhooks
    sender: WebhookSender
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

    async def send_test(self, tenant: str, url: str) -> EndpointAnswer:
        """Send a signed message of the type ``webhook.test`` to a URL once; nothing is stored."""
        now = _rfc3339(datetime.now(UTC))
        body = _as_json({"type": TEST, "timestamp": now, "data": {}})
        secrets = await self.store.signing_secrets(tenant)
        return await self._send(url, body, secrets, str(uuid4()))

    async def _answer(self, attempt: Attempt, run: Run) -> EndpointAnswer:
        delivery, max_bytes = attempt.delivery, self.limits.max_body_bytes
        if delivery.data is None:
            body = webhook_body(delivery.type, await self.view(run), max_bytes=max_bytes)
        else:
            at, data = _rfc3339(delivery.created_at), delivery.data
            body = _as_json({"type": delivery.type, "timestamp": at, "data": data})
        span_of = self.span_of(run)
        more = {} if span_of is None else {HEADER: span_of(ROOT_ID).header}
        attempts, message_id = delivery.attempts, delivery.delivery_id
        return await self._send(
            delivery.url, body, attempt.secrets, message_id, attempt=attempts, more=more
        )

    async def _send(
        self,
        url: str,
        body: bytes,
        secrets: Sequence[str],
        message_id: str,
        *,
        attempt: int = 1,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> EndpointAnswer:
        """Sign and send a message once; ``more`` are further headers."""
        if not secrets:
            return EndpointAnswer(
                error="The signing secret cannot be decrypted with webhooks.encryption_key."
            )
        headers = signed_headers(secrets, message_id=message_id, at=datetime.now(UTC), body=body)
        return await self.sender.send(url, body, {**headers, **more}, attempt=attempt)


def webhook_body(type_: str, run: Mapping[str, Any], *, max_bytes: int) -> bytes:
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
    if attempts > policy.max_retries or answer.status_code == STATUS_GONE:
        return DeliveryStatus.DEAD, 0.0
    drawn = random.uniform(-1, 1) if jitter is None else jitter
    pause = delay_seconds(policy, attempts - 1, drawn, max(0.0, answer.retry_after_seconds))
    return DeliveryStatus.PENDING, pause


def _rfc3339(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _as_json(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
