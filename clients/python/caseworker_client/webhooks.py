"""Operations on webhooks: signing secrets and deliveries."""

from urllib.parse import quote

from caseworker_client.flow import Flow, Request, fetch
from caseworker_client.service_models import (
    Delivery,
    DeliveryList,
    WebhookSecret,
    WebhookSecretList,
)
from caseworker_client.settings import Settings


def rotate_webhook_secret(
    settings: Settings, *, previous_valid_seconds: int = 86_400
) -> Flow[WebhookSecret]:
    """Rotate the signing secret; its value is shown only once.

    The previous secret also signs for ``previous_valid_seconds``.
    """
    request = Request(
        method="POST",
        path="/webhooks/secret",
        json={"previous_valid_seconds": previous_valid_seconds},
        repeatable=False,
    )
    return (yield from fetch(settings, request, WebhookSecret))


def list_webhook_secrets(settings: Settings) -> Flow[WebhookSecretList]:
    """Return the active signing secrets, newest first, without their values."""
    request = Request(method="GET", path="/webhooks/secret")
    return (yield from fetch(settings, request, WebhookSecretList))


def list_webhook_deliveries(
    settings: Settings,
    *,
    status: str | None = None,
    run_id: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Flow[DeliveryList]:
    """Return a page of deliveries, newest first; ``dead`` ones have failed permanently."""
    asked = {"status": status, "run_id": run_id, "limit": str(limit), "cursor": cursor}
    params = {name: value for name, value in asked.items() if value is not None}
    request = Request(method="GET", path="/webhooks/deliveries", params=params)
    return (yield from fetch(settings, request, DeliveryList))


def get_webhook_delivery(settings: Settings, delivery_id: str) -> Flow[Delivery]:
    """Return a delivery with its attempts and its latest outcome."""
    request = Request(method="GET", path=f"/webhooks/deliveries/{quote(delivery_id, safe='')}")
    return (yield from fetch(settings, request, Delivery))


def redeliver_webhook(settings: Settings, delivery_id: str) -> Flow[Delivery]:
    """Redeliver a dead or delivered webhook."""
    path = f"/webhooks/deliveries/{quote(delivery_id, safe='')}/redeliver"
    request = Request(method="POST", path=path, repeatable=False)
    return (yield from fetch(settings, request, Delivery))
