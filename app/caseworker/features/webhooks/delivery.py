"""Webhook deliveries: messages about finished runs, attempts to deliver them, and the outcomes.

    pending -> delivered | dead        dead | delivered -> pending (redelivered manually)

The SQL statement that ends a run also stores its delivery, and the one that settles a call stores
those of the budgets that are nearly spent. The delivery's row holds its due time;
the queued job only wakes a process. The process claims the delivery for longer than an attempt can
take. If the process dies, the claim expires and the delivery is due again. A message is therefore
delivered at least once, and a receiver recognizes a repeated one by its ID.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class DeliveryStatus(StrEnum):
    """The state of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"
    """No further attempts are made, but an operator can redeliver the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message to one receiver about one run, or about an account that a call of it has used."""

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
    data: Mapping[str, Any] | None = None
    """Content of a message about an account; None for the end of a run, which the message shows as
    it is at the time of the attempt."""


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
