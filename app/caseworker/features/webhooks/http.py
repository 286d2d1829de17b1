"""Admin routes for a tenant's webhooks: signing secrets and deliveries."""

from dataclasses import asdict
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Self

from fastapi import Path, Query
from pydantic import Field, StringConstraints, model_validator

from caseworker.features.webhooks.attempts import Deliveries
from caseworker.features.webhooks.delivery import (
    Delivery,
    DeliveryNotFoundError,
    DeliveryPendingError,
    DeliveryStatus,
    SecretInfo,
)
from caseworker.features.webhooks.postgres import PostgresWebhooks
from caseworker.features.webhooks.signing_secrets import new_secret
from caseworker.platform.caller import KeyScope
from caseworker.platform.http.bodies import BodyModel, PageQuery, View
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, answers
from caseworker.platform.http.problems import Errors, ProblemType
from caseworker.platform.http.request import ApiRequest, api_router, requires
from caseworker.runs.http.fields import RunId, WebhookCheck

MAX_OVERLAP_SECONDS = 7 * 86_400

DeliveryIdPath = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9a-f-]{36}$"),
    Path(description="ID of the delivery; sent as `webhook-id` with each attempt."),
]


class NewSecretBody(BodyModel):
    """Options for rotating the signing secret."""

    previous_valid_seconds: Annotated[int, Field(ge=0, le=MAX_OVERLAP_SECONDS)] = 86_400
    """Seconds for which the previous secret also signs; 0 ends it immediately."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_empty(cls, value: object) -> object:
        return {} if value is None else value


class DeliveryQuery(PageQuery):
    """Filters for a list of deliveries. All given filters must match."""

    status: DeliveryStatus | None = None
    """Return only deliveries with this status. `dead` means that the delivery failed
    permanently."""
    run_id: RunId | None = None
    """Return only deliveries for this run."""


class SecretView(View):
    """A signing secret, without its value."""

    version: int
    created_at: datetime
    expires_at: datetime | None
    """Time at which the secret stops signing; null for the newest secret."""


class NewSecret(SecretView):
    """A new signing secret; its value is shown only once."""

    secret: str
    """Value of the secret, with which receivers verify signatures."""

    @classmethod
    def of(cls, info: SecretInfo, secret: str) -> Self:
        """Return the view of a new secret, including its value."""
        return cls(secret=secret, **asdict(info))


class SecretList(View):
    """The active signing secrets, newest first."""

    secrets: list[SecretView]


class DeliveryView(View):
    """A webhook delivery that reports the end of a run or a nearly spent budget, and its state."""

    delivery_id: str
    """ID of the delivery, sent as the header `webhook-id` in every attempt."""
    run_id: str
    type: str
    """Event type, such as `run.completed` or `account.threshold`."""
    url: str
    """URL of the receiver, without the query, which may contain a secret."""
    status: DeliveryStatus
    """Status of the delivery; `dead` means that it failed permanently."""
    attempts: int
    created_at: datetime
    due_at: datetime | None
    """Time at which the next attempt is due or the current attempt times out; null after the last
    attempt."""
    last_attempt_at: datetime | None
    last_status_code: int | None
    """HTTP status of the receiver's latest response; null if it has not responded."""
    last_error: str | None
    delivered_at: datetime | None

    @classmethod
    def of(cls, delivery: Delivery) -> Self:
        """Return the view of a delivery."""
        return cls.of_parts(delivery, url=delivery.url.partition("?")[0])


class DeliveryList(View):
    """A page of deliveries, newest first."""

    deliveries: list[DeliveryView]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""


class WebhookTestBody(BodyModel):
    """The receiver of a test message."""

    url: str
    """URL of the receiver, which must follow the rules for the URL of a `webhook`."""


class WebhookTest(View):
    """The outcome of a test message."""

    delivered: bool
    """Whether the receiver accepted the message with a 2xx status."""
    status_code: int | None
    """HTTP status of the response; null if there was none."""
    error: str | None
    """Reason why the message was not delivered; null if it was."""


DELIVERY_NOT_FOUND = ProblemType(
    slug="delivery-not-found",
    status=404,
    title="Webhook delivery not found",
    detail="No delivery has this ID. GET /webhooks/deliveries lists all deliveries.",
    explanation="No delivery has this ID, or it belongs to another tenant. `GET "
    "/webhooks/deliveries` lists all deliveries.",
)
DELIVERY_PENDING = ProblemType(
    slug="delivery-pending",
    status=409,
    title="Delivery is still in progress",
    detail="Wait until its status is delivered or dead. due_at is the time of the next attempt.",
    explanation="The delivery is still being attempted; `due_at` is the time of the next "
    "attempt. Wait until it is delivered or dead before you redeliver it.",
)

ERRORS: Errors = {DeliveryNotFoundError: DELIVERY_NOT_FOUND, DeliveryPendingError: DELIVERY_PENDING}

router = api_router("webhooks", prefix="/webhooks")

_RESPONSES_OF_ONE = answers(*EVERY_RUN_ROUTE, DELIVERY_NOT_FOUND)
_USUAL_OVERLAP = NewSecretBody()


@router.post(
    "/secret",
    status_code=HTTPStatus.CREATED,
    responses=answers(*EVERY_RUN_ROUTE, *EVERY_BODY),
)
@requires(KeyScope.ADMIN)
async def rotate_webhook_secret(
    request: ApiRequest, body: NewSecretBody = _USUAL_OVERLAP
) -> NewSecret:
    """Create or rotate the secret that signs webhooks.

    Only this response contains the secret. The previous secret also signs until it expires, so that
    receivers can switch over. A secret that was already expiring ends immediately.
    """
    request.require_small()
    secret = new_secret()
    info = await request.service(PostgresWebhooks).rotate(
        request.caller.tenant, secret, previous_seconds=body.previous_valid_seconds
    )
    return NewSecret.of(info, secret)


@router.get("/secret", responses=answers(*EVERY_RUN_ROUTE))
@requires(KeyScope.ADMIN)
async def list_webhook_secrets(request: ApiRequest) -> SecretList:
    """List the active signing secrets, newest first, without their values."""
    secrets = await request.service(PostgresWebhooks).secrets(request.caller.tenant)
    return SecretList(secrets=[SecretView.model_validate(info) for info in secrets])


@router.post("/test", responses=answers(*EVERY_RUN_ROUTE, *EVERY_BODY))
@requires(KeyScope.ADMIN)
async def test_webhook(body: WebhookTestBody, request: ApiRequest) -> WebhookTest:
    """Send a signed message of the type `webhook.test` to a URL once, and return the outcome.

    Nothing is stored and nothing is retried.
    """
    request.require_small()
    tenant = request.caller.tenant
    await request.service(WebhookCheck).require_secret(tenant)
    outcome = await request.service(Deliveries).send_test(tenant, body.url)
    return WebhookTest(
        delivered=outcome.error is None, status_code=outcome.status_code, error=outcome.error
    )


@router.get("/deliveries", responses=answers(*EVERY_RUN_ROUTE))
@requires(KeyScope.ADMIN)
async def list_webhook_deliveries(
    query: Annotated[DeliveryQuery, Query()], request: ApiRequest
) -> DeliveryList:
    """List deliveries, newest first; `status=dead` lists those that failed permanently."""
    page = await request.service(PostgresWebhooks).find(request.caller.tenant, **dict(query))
    views = [DeliveryView.of(delivery) for delivery in page.items]
    return DeliveryList(deliveries=views, next_cursor=page.next_cursor)


@router.get("/deliveries/{delivery_id}", responses=_RESPONSES_OF_ONE)
@requires(KeyScope.ADMIN)
async def get_webhook_delivery(delivery_id: DeliveryIdPath, request: ApiRequest) -> DeliveryView:
    """Return a delivery with its attempts and its latest outcome."""
    store = request.service(PostgresWebhooks)
    return DeliveryView.of(await store.get(request.caller.tenant, delivery_id))


@router.post(
    "/deliveries/{delivery_id}/redeliver",
    status_code=HTTPStatus.ACCEPTED,
    responses=answers(*EVERY_RUN_ROUTE, DELIVERY_NOT_FOUND, DELIVERY_PENDING),
)
@requires(KeyScope.ADMIN)
async def redeliver_webhook(delivery_id: DeliveryIdPath, request: ApiRequest) -> DeliveryView:
    """Redeliver a dead or delivered webhook, with the same ID and all retries."""
    store = request.service(PostgresWebhooks)
    return DeliveryView.of(await store.redeliver(request.caller.tenant, delivery_id))
