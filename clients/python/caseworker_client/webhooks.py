"""Operations on webhooks: the secrets that sign them, and their deliveries."""

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
    """Make a new secret; the one before signs as well for so long. It is shown this once."""
    request = Request(
        method="POST",
        path="/webhooks/secret",
        json={"previous_valid_seconds": previous_valid_seconds},
        repeatable=False,
    )
    return (yield from fetch(settings, request, WebhookSecret))


def list_webhook_secrets(settings: Settings) -> Flow[WebhookSecretList]:
    """Return the secrets that sign now, newest first, without the secrets themselves."""
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
    """Return a page of deliveries, newest first; status ``dead`` are those that were given up."""
    asked = {"status": status, "run_id": run_id, "limit": str(limit), "cursor": cursor}
    params = {name: value for name, value in asked.items() if value is not None}
    request = Request(method="GET", path="/webhooks/deliveries", params=params)
    return (yield from fetch(settings, request, DeliveryList))


def get_webhook_delivery(settings: Settings, delivery_id: str) -> Flow[Delivery]:
    """Return a delivery: how often it was attempted, and what came of it."""
    request = Request(method="GET", path=f"/webhooks/deliveries/{quote(delivery_id, safe='')}")
    return (yield from fetch(settings, request, Delivery))


def redeliver_webhook(settings: Settings, delivery_id: str) -> Flow[Delivery]:
    """Send a delivery again that is dead or was delivered."""
    path = f"/webhooks/deliveries/{quote(delivery_id, safe='')}/redeliver"
    request = Request(method="POST", path=path, repeatable=False)
    return (yield from fetch(settings, request, Delivery))
