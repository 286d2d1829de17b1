"""The feature ``webhooks``: messages about the end of runs."""

from collections.abc import Mapping
from typing import Any, Final

from caseworker.core.budget.retry import JITTER, RetryPolicy
from caseworker.core.trace.payloads import Payloads
from caseworker.features.background_queue import BackgroundQueue
from caseworker.features.feature import Feature, Opened, Parts
from caseworker.features.webhooks import http
from caseworker.features.webhooks.attempts import Deliveries, DeliveryLimits
from caseworker.features.webhooks.postgres import NEXT_DUE, PostgresWebhooks
from caseworker.features.webhooks.sender import WebhookSender
from caseworker.features.webhooks.signing_secrets import SecretBox
from caseworker.platform.http.problems import invalid
from caseworker.platform.webhook_addresses import UrlRules
from caseworker.runs.http.fields import WebhookCheck
from caseworker.runs.http.kinds import view_of
from caseworker.runs.postgres.run_statements import DELIVER, WEBHOOKS_QUEUE
from caseworker.runs.run import Run
from caseworker.runs.service import RunService
from caseworker.settings.schema import WebhookSettings

RETRY_FACTOR: Final = 4.0

_UNSIGNED = "The tenant has no webhook signing secret. Create one with POST /webhooks/secret."


def open_webhooks(parts: Parts) -> Opened:
    """Build the store of deliveries, and the queue that delivers them."""
    settings = parts.settings.webhooks
    key = settings.encryption_key
    box = SecretBox(None if key is None else key.get_secret_value())
    payloads = parts.service(Payloads)
    store = PostgresWebhooks(parts.engines, box)
    sender = WebhookSender(url_rules(settings), timeout_seconds=settings.timeout_seconds)

    async def json_view(run: Run) -> Mapping[str, Any]:
        return (await view_of(run, "", payloads)).model_dump(mode="json")

    async def require_secret(tenant: str) -> None:
        if not await store.secrets(tenant):
            raise invalid("webhook", _UNSIGNED)

    deliveries = Deliveries(
        store,
        sender,
        parts.service(RunService),
        json_view,
        delivery_limits(settings),
        parts.observers.span_of,
    )
    queue = BackgroundQueue(
        tasks={DELIVER: deliveries.deliver},
        at_once=settings.max_parallel,
        next_due=NEXT_DUE,
        rescue=store.rescue,
    )
    check = WebhookCheck(require_secret)
    return Opened(
        services=[store, check, deliveries], queues={WEBHOOKS_QUEUE: queue}, close=sender.aclose
    )


def url_rules(settings: WebhookSettings) -> UrlRules:
    """Return the configured rules that webhook URLs must follow."""
    return UrlRules(allow_http=settings.allow_http, allow_private=settings.allow_private)


def delivery_limits(settings: WebhookSettings) -> DeliveryLimits:
    """Return the retry policy, timeout and size limit for webhook deliveries."""
    return DeliveryLimits(
        retry=RetryPolicy(
            max_retries=settings.max_attempts - 1,
            initial_delay_seconds=settings.first_retry_seconds,
            backoff_factor=RETRY_FACTOR,
            jitter=JITTER,
            max_delay_seconds=settings.longest_retry_seconds,
        ),
        timeout_seconds=settings.timeout_seconds,
        max_body_bytes=settings.max_body_kb * 1024,
    )


WEBHOOKS: Final = Feature(
    name="webhooks",
    routes=http.router.routes,
    errors=http.ERRORS,
    tables=["webhook_deliveries", "webhook_secrets"],
    open=open_webhooks,
)
