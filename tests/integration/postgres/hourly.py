"""A schedule that fires every hour."""

from caseworker.features.schedules.cron_times import CatchUp, Timing
from caseworker.features.schedules.schedule import ScheduledRun
from caseworker.runs.run import Webhook
from tests.support.stores import new_run

HOURLY = Timing("0 * * * *", "UTC", CatchUp.ALL, 10)

SCHEDULED_RUN = ScheduledRun(
    body={"input": "2+2?", "priority": 7, "concurrency_key": "k", "concurrency_limit": 2},
    request=new_run("any").request,
    request_hash="hash",
    metadata={"team": "blue"},
    webhook=Webhook("https://example.com/hook"),
)
