"""The feature ``schedules``: starts runs at the times of a cron expression."""

from functools import partial
from typing import Final

from caseworker.features.feature import Feature, Opened, Parts
from caseworker.features.schedules import http
from caseworker.features.schedules.due_runs import (
    NEXT_DUE,
    RETRY_DUE,
    RETRY_SECONDS,
    ScheduleFiring,
)
from caseworker.features.schedules.postgres import PostgresSchedules
from caseworker.runs.recover.heartbeat import Search


def open_schedules(parts: Parts) -> Opened:
    """Build the store of schedules, and the loops that fire them."""
    store = PostgresSchedules(
        parts.engines, parts.limits, max_schedules=parts.settings.admission.max_schedules
    )
    firing = ScheduleFiring(parts.engines, parts.limits, observers=parts.observers)
    due, rejected = Search(NEXT_DUE), Search(RETRY_DUE)
    loops = {
        "schedules": partial(due.run_when_due, firing.fire_due),
        "rejected schedules": partial(rejected.run_when_due, firing.retry, RETRY_SECONDS),
    }
    return Opened(services=[store], loops=loops, searches=[due, rejected])


SCHEDULES: Final = Feature(
    name="schedules",
    routes=http.router.routes,
    errors=http.ERRORS,
    tables=["schedules"],
    open=open_schedules,
)
