"""Admin routes for a tenant's webhooks: signing secrets and deliveries."""

from http import HTTPStatus
from typing import Annotated

from fastapi import Query

from caseworker.features.webhooks.delivery import DeliveryNotFoundError, DeliveryPendingError
from caseworker.features.webhooks.postgres import PostgresWebhooks
from caseworker.features.webhooks.signing import new_secret
from caseworker.features.webhooks.views import (
    DeliveryIdPath,
    DeliveryList,
    DeliveryQuery,
    DeliveryView,
    NewSecret,
    NewSecretBody,
    SecretList,
    SecretView,
)
from caseworker.platform.caller import Scope
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, answers
from caseworker.platform.http.problems import Errors, ProblemType
from caseworker.platform.http.request import ApiRequest, api_router, requires

DELIVERY_NOT_FOUND = ProblemType(
    slug="delivery-not-found",
    status=404,
    title="Webhook delivery not found",
    detail="No delivery has this ID. GET /webhooks/deliveries lists all deliveries.",
)
DELIVERY_PENDING = ProblemType(
    slug="delivery-pending",
    status=409,
    title="Delivery is still in progress",
    detail="Wait until its status is delivered or dead. due_at is the time of the next attempt.",
)

ERRORS: Errors = {DeliveryNotFoundError: DELIVERY_NOT_FOUND, DeliveryPendingError: DELIVERY_PENDING}

router = api_router("webhooks", prefix="/webhooks")

_FOUND = answers(*EVERY_RUN_ROUTE, DELIVERY_NOT_FOUND)
_USUAL_OVERLAP = NewSecretBody()


@router.post(
    "/secret",
    status_code=HTTPStatus.CREATED,
    responses=answers(*EVERY_RUN_ROUTE, *EVERY_BODY),
)
@requires(Scope.ADMIN)
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
@requires(Scope.ADMIN)
async def list_webhook_secrets(request: ApiRequest) -> SecretList:
    """List the active signing secrets, newest first, without their values."""
    found = await request.service(PostgresWebhooks).secrets(request.caller.tenant)
    return SecretList(secrets=[SecretView.model_validate(info) for info in found])


@router.get("/deliveries", responses=answers(*EVERY_RUN_ROUTE))
@requires(Scope.ADMIN)
async def list_webhook_deliveries(
    query: Annotated[DeliveryQuery, Query()], request: ApiRequest
) -> DeliveryList:
    """List deliveries, newest first; `status=dead` lists those that failed permanently."""
    page = await request.service(PostgresWebhooks).find(request.caller.tenant, **dict(query))
    return DeliveryList.of(page)


@router.get("/deliveries/{delivery_id}", responses=_FOUND)
@requires(Scope.ADMIN)
async def get_webhook_delivery(delivery_id: DeliveryIdPath, request: ApiRequest) -> DeliveryView:
    """Return a delivery with its attempts and its latest outcome."""
    store = request.service(PostgresWebhooks)
    return DeliveryView.of(await store.get(request.caller.tenant, delivery_id))


@router.post(
    "/deliveries/{delivery_id}/redeliver",
    status_code=HTTPStatus.ACCEPTED,
    responses=answers(*EVERY_RUN_ROUTE, DELIVERY_NOT_FOUND, DELIVERY_PENDING),
)
@requires(Scope.ADMIN)
async def redeliver_webhook(delivery_id: DeliveryIdPath, request: ApiRequest) -> DeliveryView:
    """Redeliver a dead or delivered webhook, with the same ID and all retries."""
    store = request.service(PostgresWebhooks)
    return DeliveryView.of(await store.redeliver(request.caller.tenant, delivery_id))
