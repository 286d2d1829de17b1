"""The feature ``schedules``: starts runs at the times of a cron expression."""

from typing import Final

from caseworker.features.feature import Feature, Opened, Parts
from caseworker.features.schedules import http
from caseworker.features.schedules.firing import SEARCH_SECONDS, ScheduleFiring
from caseworker.features.schedules.postgres import PostgresSchedules


def open_schedules(parts: Parts) -> Opened:
    """Build the store of schedules, and the loop that fires them."""
    settings = parts.settings
    store = PostgresSchedules(
        parts.engines, parts.limits, max_schedules=settings.admission.max_schedules
    )
    firing = ScheduleFiring(
        parts.engines,
        parts.limits,
        observers=parts.observers,
        interval_seconds=min(SEARCH_SECONDS, 2 * settings.worker.heartbeat_seconds),
    )
    return Opened(services=[store], loops={"schedules": firing.run})


SCHEDULES: Final = Feature(
    name="schedules",
    routes=http.router.routes,
    errors=http.ERRORS,
    tables=["schedules"],
    open=open_schedules,
)
