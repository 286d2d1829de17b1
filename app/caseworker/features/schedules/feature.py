"""The feature ``schedules``: starts runs at the times of a cron expression."""

from typing import Final

from caseworker.features.feature import Feature, Opened, Parts
from caseworker.features.schedules import http
from caseworker.features.schedules.postgres import (
    FIRE,
    OVERDUE,
    SCHEDULES_QUEUE,
    PostgresSchedules,
)
from caseworker.runs.queue.background import BackgroundQueue

AT_ONCE: Final = 2
"""Maximum number of schedules that a process fires concurrently. Each holds a connection while it
fires."""


def open_schedules(parts: Parts) -> Opened:
    """Build the store of schedules, and the queue that fires them."""
    store = PostgresSchedules(
        parts.engines,
        parts.limits,
        max_schedules=parts.settings.admission.max_schedules,
        observers=parts.observers,
    )
    queue = BackgroundQueue(
        tasks={FIRE: store.fire}, at_once=AT_ONCE, overdue=OVERDUE, rescue=store.rescue
    )
    return Opened(services=[store], queues={SCHEDULES_QUEUE: queue})


SCHEDULES: Final = Feature(
    name="schedules",
    routes=http.router.routes,
    errors=http.ERRORS,
    tables=["schedules"],
    open=open_schedules,
)
