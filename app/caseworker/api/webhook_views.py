"""Deliveries of webhooks and the secrets that sign them, as callers see them and ask for them."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Self

from fastapi import Path
from pydantic import Field, StringConstraints, model_validator

from caseworker.api.api_request import ApiRequest
from caseworker.api.field_types import Body, PageQuery, RunId, View
from caseworker.api.problems import invalid
from caseworker.webhooks.delivery import Delivery, DeliveryPage, DeliveryStatus, SecretInfo

MAX_OVERLAP_SECONDS = 7 * 86_400

DeliveryIdPath = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9a-f-]{36}$"),
    Path(description="ID of the delivery; sent as `webhook-id` with each attempt."),
]


class NewSecretBody(Body):
    """How the secret before the new one goes on."""

    previous_valid_seconds: Annotated[int, Field(ge=0, le=MAX_OVERLAP_SECONDS)] = 86_400
    """For how long it signs as well; 0 ends it at once."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_empty(cls, sent: object) -> object:
        return {} if sent is None else sent


class DeliveryQuery(PageQuery):
    """Which deliveries to list."""

    status: DeliveryStatus | None = None
    """Those that stand so; `dead` are those that were given up."""
    run_id: RunId | None = None
    """Those of one run."""


class SecretView(View):
    """A secret that signs webhooks, without the secret itself."""

    version: int
    created_at: datetime
    expires_at: datetime | None
    """When it stops signing; null of the newest one."""


class NewSecret(SecretView):
    """A new secret, which is shown this once."""

    secret: str
    """What a receiver verifies with."""

    @classmethod
    def of(cls, info: SecretInfo, secret: str) -> Self:
        """Return the view of a new secret."""
        return cls(secret=secret, **asdict(info))


class SecretList(View):
    """The secrets that sign now, newest first."""

    secrets: list[SecretView]


class DeliveryView(View):
    """A message about the end of a run, and what became of it."""

    delivery_id: str
    """The `webhook-id` of every attempt."""
    run_id: str
    type: str
    """Such as `run.completed`."""
    url: str
    """Without its query, which may hold a secret."""
    status: DeliveryStatus
    """A dead one was given up."""
    attempts: int
    created_at: datetime
    due_at: datetime | None
    """When the next attempt is made, or by when the one under way has ended."""
    last_attempt_at: datetime | None
    last_status_code: int | None
    """What the receiver answered last."""
    last_error: str | None
    delivered_at: datetime | None

    @classmethod
    def of(cls, delivery: Delivery) -> Self:
        """Return the view of a delivery."""
        names = (name for name in cls.model_fields if name != "url")
        return cls(
            url=delivery.url.partition("?")[0], **{name: getattr(delivery, name) for name in names}
        )


class DeliveryList(View):
    """Some deliveries, newest first."""

    deliveries: list[DeliveryView]
    next_cursor: str | None
    """Ask for the next page with it; null on the last one."""

    @classmethod
    def of(cls, page: DeliveryPage) -> Self:
        """Return the view of a page."""
        views = [DeliveryView.of(delivery) for delivery in page.deliveries]
        return cls(deliveries=views, next_cursor=page.next_cursor)


async def require_secret(request: ApiRequest) -> None:
    """Refuse a webhook that nothing could sign.

    Raises:
        ProblemError: the caller's tenant has no secret.
    """
    if not await request.api.services.webhooks.secrets(request.caller.tenant):
        message = "The tenant has no webhook signing secret. Create one with POST /webhooks/secret."
        raise invalid("webhook", message)
