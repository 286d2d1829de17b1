"""What a process does beside runs: deliveries of webhooks, and schedules that fire."""

from functools import partial
from typing import Any, Final

from app.adapters.postgres.accept_and_cancel import StoreLimits
from app.adapters.postgres.connections import Patience
from app.adapters.postgres.dispatch import QueueDispatch
from app.adapters.postgres.engines import Engines
from app.adapters.postgres.schedules import FIRE, SCHEDULES_QUEUE, PostgresSchedules
from app.adapters.postgres.webhooks import DELIVER, WEBHOOKS_QUEUE, PostgresWebhooks
from app.adapters.queue.background import (
    RESCUE_SECONDS,
    BackgroundQueue,
    BackgroundWorker,
    JobRescue,
)
from app.adapters.queue.worker import QueueTimes
from app.adapters.webhooks.sender import WebhookSender
from app.api.run_views import view_of
from app.control.retry import JITTER, RetryPolicy
from app.runs.heartbeat import Loops
from app.runs.observing import RunObservers
from app.runs.payloads import PayloadReading
from app.runs.run import Run
from app.runs.service import RunService
from app.settings.schema import Settings
from app.webhooks.addresses import UrlRules
from app.webhooks.delivery import Deliveries, DeliveryLimits
from app.webhooks.signing import SecretBox

SCHEDULES_AT_ONCE: Final = 2
"""How many schedules a process fires at once: each takes a connection meanwhile."""

RETRY_FACTOR: Final = 4.0


class Background:
    """The stores of this work, which every process has, and its loops, for those that execute."""

    def __init__(
        self,
        settings: Settings,
        url: str,
        *,
        engines: Engines,
        dispatch: QueueDispatch,
        runs: RunService,
        payloads: PayloadReading,
        limits: StoreLimits,
        observers: RunObservers,
    ) -> None:
        self._settings = settings
        self._url = url
        self._pool = engines.work
        key = settings.webhooks.encryption_key
        box = SecretBox(None if key is None else key.get_secret_value())
        self.webhooks = PostgresWebhooks(engines, dispatch, box)
        self.schedules = PostgresSchedules(
            engines,
            dispatch,
            limits,
            max_schedules=settings.admission.max_schedules,
            observers=observers,
        )
        self._sender = WebhookSender(
            url_rules(settings), timeout_seconds=settings.webhooks.timeout_seconds
        )

        async def shown(run: Run) -> dict[str, Any]:
            return (await view_of(run, "", payloads)).model_dump(mode="json")

        self._deliveries = Deliveries(
            self.webhooks,
            self._sender,
            runs,
            shown,
            delivery_limits(settings),
            observers.span_of,
        )

    def keep(self, loops: Loops, patience: Patience) -> None:
        """Begin to do this work."""
        webhooks = BackgroundQueue(
            tasks={DELIVER: self._deliveries.deliver},
            at_once=self._settings.webhooks.max_parallel,
        )
        schedules = BackgroundQueue(tasks={FIRE: self.schedules.fire}, at_once=SCHEDULES_AT_ONCE)
        worker = BackgroundWorker(
            url=self._url,
            queues={WEBHOOKS_QUEUE: webhooks, SCHEDULES_QUEUE: schedules},
            times=queue_times(self._settings),
            patience=patience,
        )
        stale_seconds = self._settings.worker.stale_after_seconds
        late_seconds = min(RESCUE_SECONDS, stale_seconds)
        rescue = JobRescue(
            pool=self._pool,
            rescues={
                WEBHOOKS_QUEUE: partial(self.webhooks.rescue, late_seconds=late_seconds),
                SCHEDULES_QUEUE: partial(self.schedules.rescue, late_seconds=late_seconds),
            },
            interval_seconds=late_seconds,
            stale_seconds=stale_seconds,
        )
        loops.keep("background", worker.run)
        loops.keep("rescue of jobs", rescue.run)

    async def aclose(self) -> None:
        """Let go of what is open."""
        await self._sender.aclose()


def queue_times(settings: Settings) -> QueueTimes:
    """Return how often a process looks at the queue."""
    worker = settings.worker
    return QueueTimes(
        poll=worker.poll_seconds,
        heartbeat=worker.heartbeat_seconds,
        stale=worker.stale_after_seconds,
    )


def url_rules(settings: Settings) -> UrlRules:
    """Return where webhooks may be sent."""
    webhooks = settings.webhooks
    return UrlRules(allow_http=webhooks.allow_http, allow_private=webhooks.allow_private)


def delivery_limits(settings: Settings) -> DeliveryLimits:
    """Return how often and for how long deliveries are attempted."""
    webhooks = settings.webhooks
    return DeliveryLimits(
        retry=RetryPolicy(
            max_retries=webhooks.max_attempts - 1,
            base_seconds=webhooks.first_retry_seconds,
            factor=RETRY_FACTOR,
            jitter=JITTER,
            max_delay_seconds=webhooks.longest_retry_seconds,
        ),
        timeout_seconds=webhooks.timeout_seconds,
        max_body_bytes=webhooks.max_body_kb * 1024,
    )
