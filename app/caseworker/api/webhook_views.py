"""API schemas of webhook deliveries and signing secrets."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Self

from fastapi import Path
from pydantic import Field, StringConstraints, model_validator

from caseworker.api.api_request import ApiRequest
from caseworker.api.field_types import Body, PageQuery, RunId, View
from caseworker.api.problems import invalid
from caseworker.features.webhooks.delivery import Delivery, DeliveryPage, DeliveryStatus, SecretInfo

MAX_OVERLAP_SECONDS = 7 * 86_400

DeliveryIdPath = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9a-f-]{36}$"),
    Path(description="ID of the delivery; sent as `webhook-id` with each attempt."),
]


class NewSecretBody(Body):
    """Options for rotating the signing secret."""

    previous_valid_seconds: Annotated[int, Field(ge=0, le=MAX_OVERLAP_SECONDS)] = 86_400
    """How long the previous secret also signs; 0 ends it immediately."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_empty(cls, sent: object) -> object:
        return {} if sent is None else sent


class DeliveryQuery(PageQuery):
    """Filters for a list of deliveries."""

    status: DeliveryStatus | None = None
    """Only deliveries with this status; `dead` are those that failed permanently."""
    run_id: RunId | None = None
    """Only deliveries of this run."""


class SecretView(View):
    """A signing secret, without its value."""

    version: int
    created_at: datetime
    expires_at: datetime | None
    """When it stops signing; null for the newest secret."""


class NewSecret(SecretView):
    """A new signing secret; its value is shown only once."""

    secret: str
    """The value with which receivers verify signatures."""

    @classmethod
    def of(cls, info: SecretInfo, secret: str) -> Self:
        """Convert a new secret."""
        return cls(secret=secret, **asdict(info))


class SecretList(View):
    """The active signing secrets, newest first."""

    secrets: list[SecretView]


class DeliveryView(View):
    """A webhook delivery about the end of a run, and its state."""

    delivery_id: str
    """The `webhook-id` of all its attempts."""
    run_id: str
    type: str
    """The event type, such as `run.completed`."""
    url: str
    """Without the query, which may contain a secret."""
    status: DeliveryStatus
    """`dead` means that it failed permanently."""
    attempts: int
    created_at: datetime
    due_at: datetime | None
    """When the next attempt is due, or when the current attempt times out."""
    last_attempt_at: datetime | None
    last_status_code: int | None
    """HTTP status of the receiver's latest response."""
    last_error: str | None
    delivered_at: datetime | None

    @classmethod
    def of(cls, delivery: Delivery) -> Self:
        """Convert a delivery."""
        names = (name for name in cls.model_fields if name != "url")
        return cls(
            url=delivery.url.partition("?")[0], **{name: getattr(delivery, name) for name in names}
        )


class DeliveryList(View):
    """A page of deliveries, newest first."""

    deliveries: list[DeliveryView]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""

    @classmethod
    def of(cls, page: DeliveryPage) -> Self:
        """Convert a page."""
        views = [DeliveryView.of(delivery) for delivery in page.deliveries]
        return cls(deliveries=views, next_cursor=page.next_cursor)


async def require_secret(request: ApiRequest) -> None:
    """Check that webhooks of the tenant can be signed.

    Raises:
        ProblemError: the caller's tenant has no signing secret.
    """
    if not await request.api.services.webhooks.secrets(request.caller.tenant):
        message = "The tenant has no webhook signing secret. Create one with POST /webhooks/secret."
        raise invalid("webhook", message)
