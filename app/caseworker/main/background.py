"""Webhook deliveries and schedules: the background work of a process."""

from functools import partial
from typing import Any, Final

from caseworker.api.run_views import view_of
from caseworker.core.budget.retry import JITTER, RetryPolicy
from caseworker.features.schedules.postgres import FIRE, SCHEDULES_QUEUE, PostgresSchedules
from caseworker.features.webhooks.addresses import UrlRules
from caseworker.features.webhooks.delivery import Deliveries, DeliveryLimits
from caseworker.features.webhooks.postgres import PostgresWebhooks
from caseworker.features.webhooks.sender import WebhookSender
from caseworker.features.webhooks.signing import SecretBox
from caseworker.platform.postgres.connections import Patience
from caseworker.platform.postgres.engines import Engines
from caseworker.runs.heartbeat import Loops
from caseworker.runs.observing import RunObservers
from caseworker.runs.payloads import PayloadReading
from caseworker.runs.postgres.accept_and_cancel import StoreLimits
from caseworker.runs.postgres.dispatch import QueueDispatch
from caseworker.runs.postgres.run_statements import DELIVER, WEBHOOKS_QUEUE
from caseworker.runs.queue.background import (
    RESCUE_SECONDS,
    BackgroundQueue,
    BackgroundWorker,
    JobRescue,
)
from caseworker.runs.queue.worker import QueueTimes
from caseworker.runs.run import Run
from caseworker.runs.service import RunService
from caseworker.settings.schema import Settings

SCHEDULES_AT_ONCE: Final = 2
"""Maximum number of schedules that a process fires concurrently. Each holds a connection while it
fires."""

RETRY_FACTOR: Final = 4.0


class Background:
    """The stores and the loops for delivering webhooks and firing schedules.

    Only processes that execute runs start the loops.
    """

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
        """Start the loops that deliver webhooks, fire schedules and rescue lost jobs."""
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
        """Close the HTTP connections for webhook deliveries."""
        await self._sender.aclose()


def queue_times(settings: Settings) -> QueueTimes:
    """Return the intervals at which a process polls the job queue and sends heartbeats."""
    worker = settings.worker
    return QueueTimes(
        poll=worker.poll_seconds,
        heartbeat=worker.heartbeat_seconds,
        stale=worker.stale_after_seconds,
    )


def url_rules(settings: Settings) -> UrlRules:
    """Return the configured rules that webhook URLs must follow."""
    webhooks = settings.webhooks
    return UrlRules(allow_http=webhooks.allow_http, allow_private=webhooks.allow_private)


def delivery_limits(settings: Settings) -> DeliveryLimits:
    """Return the retry policy, timeout and size limit for webhook deliveries."""
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
